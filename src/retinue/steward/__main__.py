"""The resident holder of a root: started on demand, gone when idle."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import signal
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from retinue.app import App, catch_up, open_app, resume
from retinue.clock import now
from retinue.domain.errors import RetinueError
from retinue.files import storage_failures
from retinue.settings import read_settings
from retinue.steward.diary import keep_small
from retinue.steward.server import Server
from retinue.steward.tidying import Tidying
from retinue.wire.protocol import error_to_json

FIRST_CALL_S = 0.02  # in which whoever waited for the start has been answered
LATE = ("retinue.wire.forms.yaml", "retinue.wire.forms.brief", "retinue.wire.forms.config")
# What a shell may have less of than the system allows. Each child that runs takes a descriptor.
LIMITED = (
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_CPU,
    resource.RLIMIT_DATA,
    resource.RLIMIT_AS,
)
COLLECTORS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def complain(text: str) -> None:
    """Into steward.log, which is this process's standard error; on a full disk, into nothing."""
    with suppress(OSError):
        print(f"{now()} {text}", file=sys.stderr, flush=True)


async def hold(root: Path, ready: int) -> None:
    app = open_app(read_settings(root, os.environ), complain)
    telemetry = _telemetry(app)
    try:
        await _serve(app, ready)
    finally:
        await app.close()
        if telemetry is not None:
            telemetry.close()


def _telemetry(app: App) -> Any:
    """Ends are told as spans where the environment names a collector; loaded only then."""
    if not any(os.environ.get(name) for name in COLLECTORS):
        return None
    try:
        telemetry = import_module("retinue.telemetry").Telemetry(app)
    except ModuleNotFoundError as error:
        complain(f"no telemetry: {error.name} is missing; pip install 'retinue[otel]'")
        return None
    app.service.waiting.subscribe(telemetry)
    return telemetry


async def _serve(app: App, ready: int) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    server = Server(app, stopping.set)
    with storage_failures(app.settings.root):
        server.start()  # first: whoever comes meanwhile waits at the door, and is served after that
        resume(app)
    _tell(ready, {"ready": True, "pid": os.getpid()})
    settling = asyncio.create_task(_settle_in(app))
    await stopping.wait()
    settling.cancel()
    await server.close()


async def _settle_in(app: App) -> None:
    """What the start went without is there, before anybody but the first client needs it."""
    await asyncio.sleep(FIRST_CALL_S)
    for name in LATE:
        import_module(name)
        await asyncio.sleep(0)  # for whoever asks meanwhile
    gc.freeze()
    gc.enable()
    app.service.waiting.subscribe(Tidying())
    app.service.supervisor.at_leisure.set()
    await catch_up(app)


def _tell(ready: int, message: object) -> None:
    """Whoever started this process knows how it went."""
    with suppress(OSError):
        os.write(ready, json.dumps(message).encode() + b"\n")
        os.close(ready)


def main() -> int:
    root, ready = Path(sys.argv[1]), int(sys.argv[2])
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # as whoever starts it may have them otherwise
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else nobody learns how git ended
    keep_small(root)
    for kind in LIMITED:
        most = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most, most))
    gc.disable()  # next to nothing of what is made until it is ready is garbage
    try:
        asyncio.run(hold(root, ready))
    except RetinueError as error:
        _tell(ready, {"error": error_to_json(error)})
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
