"""Main program of the steward: the resident process of a root, started on demand."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from retinue.client.blocking_client import READ
from retinue.client.steward_log import keep_small
from retinue.clock import get_timestamp
from retinue.core import events
from retinue.core.errors import BadInput, RetinueError
from retinue.core.events import Recorded
from retinue.core.ids import TaskId
from retinue.files import storage_failures
from retinue.formats.steward_protocol import LISTENER, NEW_ROOT, STAY, error_to_json
from retinue.settings import read_settings
from retinue.steward.app import App, open_app, open_to_read, resume, update_task_files
from retinue.steward.server import ChildClients, ClientConnection, StewardServer
from retinue.steward.webhooks import start_webhooks
from retinue.version import VERSION

VARIABLE = "RETINUE_LOG"
LEVELS = ("debug", "info", "warning")
# Shown at level info; debug shows every event, warning none.
SHOWN = frozenset(
    {
        events.TASK_CREATED,
        events.TASK_CLOSED,
        events.RUN_ENDED,
        events.GATE_BLOCKED,
        events.GATE_ANSWERED,
        events.SUBAGENT_FAILED,
        events.SUBAGENT_CLOSED,
        events.MERGE_FAILED,
        events.BUDGET_EXCEEDED,
        events.PROVIDER_COOLDOWN,
        events.NODE_LOST,
    }
)


def read_level(environment: Mapping[str, str]) -> str:
    """Return the level of steward.log: `info` unless RETINUE_LOG says otherwise.

    Raises:
        BadInput: the variable has another value.
    """
    level = environment.get(VARIABLE, "").strip().lower() or "info"
    if level not in LEVELS:
        raise BadInput(f"{VARIABLE} {level[:40]!a} is not one of {', '.join(LEVELS)}")
    return level


class ActivityLog:
    """Subscriber of the journal that writes one line for each event of interest."""

    def __init__(self, level: str, write: Callable[[str], None]) -> None:
        self._level = level
        self._write = write

    def __call__(self, task: TaskId, recorded: Sequence[Recorded]) -> None:
        for each in recorded:
            kind = each.event.type
            if self._level == "debug" or (self._level == "info" and kind in SHOWN):
                who = f"{task}/{each.event.subagent}" if each.event.subagent else task
                # A title or answer must not forge a line or move the cursor of a terminal.
                said = "".join(it if it.isprintable() else " " for it in each.event.summary)
                self._write(f"{who} {kind}: {said}")


IDLE_SECONDS = 0.4  # without changes, before a full garbage collection
# Collections of younger objects since the last full one: fewer make another not worth while, and
# so many force one if the steward is never idle.
MIN_YOUNG_COLLECTIONS = 10
MAX_YOUNG_COLLECTIONS = 200


class IdleCollector:
    """Runs full garbage collections while the steward is idle; a subscriber of the journal."""

    def __init__(self) -> None:
        self._heard = False
        self._timer: asyncio.TimerHandle | None = None
        gc.set_threshold(*gc.get_threshold()[:2], MAX_YOUNG_COLLECTIONS)

    def __call__(self, task: TaskId, recorded: Sequence[Recorded]) -> None:
        self._heard = True
        if self._timer is None:
            self._wait()

    def _wait(self) -> None:
        self._heard = False
        self._timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._look)

    def _look(self) -> None:
        if self._heard:
            self._wait()
        else:
            self._timer = None
            if gc.get_count()[2] >= MIN_YOUNG_COLLECTIONS:
                gc.collect()


def stop_without_memory(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an exception that no caller handles; after a MemoryError, end the process.

    A callback that failed was to wake up or stop a subagent, which would then wait for ever. The
    next steward adopts all children and goes on from the records.
    """
    loop.default_exception_handler(context)
    if isinstance(context.get("exception"), MemoryError):
        os._exit(1)


FIRST_CALL_S = 0.02  # time to answer the client that waited for the start
# Modules that are slow to import and not needed for the first answer.
IMPORTED_LATE = (
    "retinue.formats.schemas.yaml_reader",
    "retinue.formats.schemas.brief_schema",
    "retinue.formats.schemas.config_schema",
)
# Limits that are raised from soft to hard: a shell may have lowered them, and each running child
# takes a descriptor.
RAISED_LIMITS = (
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_CPU,
    resource.RLIMIT_DATA,
    resource.RLIMIT_AS,
)
COLLECTORS = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
)


def log_problem(text: str) -> None:
    """Write a line to steward.log, which is standard error; drop it if the disk is full."""
    with suppress(OSError):
        print(f"{get_timestamp()} {text}", file=sys.stderr, flush=True)


async def serve_root(
    root: Path, ready: int, *, root_is_new: bool, stays: bool, listener: socket.socket | None
) -> None:
    """Open the root and serve it until the steward is stopped or, unless it stays, idle."""
    settings = replace(read_settings(root, os.environ), root_is_new=root_is_new)
    level = read_level(os.environ)
    app = open_app(settings, log_problem)
    telemetry = _start_telemetry(app)
    app.journal.subscribe(ActivityLog(level, log_problem))
    webhooks = start_webhooks(app.settings.root, log_problem)
    if webhooks is not None:
        app.journal.subscribe(webhooks)
    if level != "warning":
        log_problem(f"steward {VERSION} started, process {os.getpid()}, root {app.settings.root}")
    try:
        await _serve(app, ready, stays, listener)
        if telemetry is not None:
            telemetry.measure()
    finally:
        await app.close()
        if telemetry is not None:
            telemetry.close()
        if webhooks is not None:
            webhooks.close()
        if level != "warning":
            log_problem("steward stopped")


def _start_telemetry(app: App) -> Any:
    """Export to the collector that the environment names; the SDK is imported only then."""
    if not any(os.environ.get(name) for name in COLLECTORS):
        return None
    try:
        telemetry = import_module("retinue.telemetry").Telemetry(app)
    except ModuleNotFoundError as error:
        log_problem(f"no telemetry: {error.name} is missing; pip install 'retinue[otel]'")
        return None
    app.journal.subscribe(telemetry)
    return telemetry


async def _serve(app: App, ready: int, stays: bool, listener: socket.socket | None) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(stop_without_memory)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    server = StewardServer(app, stopping.set, stays=stays, listener=listener)
    with storage_failures(app.settings.root):
        # Listen first: clients that connect while work is resumed wait in the backlog.
        server.start()
        resume(app)
    _tell(ready, {"ready": True, "pid": os.getpid()})
    settling = asyncio.create_task(_finish_start(app))
    with _watch_parent(stopping.set) if stays else nullcontext():
        await stopping.wait()
    settling.cancel()
    await server.close()


@contextmanager
def _watch_parent(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` when the process that started this one ends, also by SIGKILL.

    A service manager watches that process, and would start a second steward beside this one.
    """
    loop = asyncio.get_running_loop()
    try:
        parent = os.pidfd_open(os.getppid())
    except ProcessLookupError:
        stop()
        yield
        return
    loop.add_reader(parent, stop)
    try:
        yield
    finally:
        loop.remove_reader(parent)
        os.close(parent)


async def serve_reader(root: Path, ready: int, descriptor: int) -> None:
    """Serve one connection from an untrusted root, read-only, until its client leaves."""
    app = open_to_read(read_settings(root, os.environ), log_problem)
    served: list[asyncio.Task[None]] = []

    def stop() -> None:
        for client in served:
            client.cancel()

    connection = ClientConnection(app, stop, served.append, ChildClients(), None, lambda: True)
    try:
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: connection, socket.socket(fileno=descriptor)
        )
        _tell(ready, {"ready": True, "pid": os.getpid()})
        await asyncio.wait(served)
    finally:
        await app.close()


async def _finish_start(app: App) -> None:
    """Do what was put off to start fast."""
    await asyncio.sleep(FIRST_CALL_S)
    for name in IMPORTED_LATE:
        import_module(name)
        await asyncio.sleep(0)  # serve clients between imports
    # Everything alive now stays alive: take it out of later collections.
    gc.freeze()
    gc.enable()
    app.journal.subscribe(IdleCollector())
    app.supervisor.started.set()
    await update_task_files(app)


def _tell(ready: int, message: object) -> None:
    """Report to the process that started this one, over its pipe."""
    with suppress(OSError):
        os.write(ready, json.dumps(message).encode() + b"\n")
        os.close(ready)


def main() -> int:
    root = Path(sys.argv[1])
    ready = int(sys.argv[2])
    words = sys.argv[3:]
    # Security: files of the steward are for its user only.
    os.umask(0o077)
    # Undo what the starting process may have set: blocked signals, and an ignored SIGCHLD, with
    # which the exit status of git would be lost.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    keep_small(root)
    for kind in RAISED_LIMITS:
        most = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most, most))
    # Start-up makes hardly any garbage; `_finish_start` enables the collector again.
    gc.disable()
    try:
        if words[:1] == [READ]:
            asyncio.run(serve_reader(root, ready, int(words[1])))
        else:
            listener = None
            if LISTENER in words:
                listener = socket.socket(fileno=int(words[words.index(LISTENER) + 1]))
                listener.set_inheritable(False)
            work = serve_root(
                root,
                ready,
                root_is_new=NEW_ROOT in words,
                stays=STAY in words,
                listener=listener,
            )
            asyncio.run(work)
    except RetinueError as error:
        _tell(ready, {"error": error_to_json(error)})
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
