"""The process that holds the model: one for each user, started on demand, gone when idle.

Whoever wants to ask connects to its Unix socket, is told address and secret of the HTTP server,
and stays connected for as long as it asks. While nobody is connected, a clock runs; then the
process ends. So it outlives the stewards that use it, and never for long.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib
import json
import os
import secrets
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from retinue.gateway.local.weights import INSTALL, SMOLLM2, intact
from retinue.sockets import listen_in

SOCKET = "server.sock"
LOCK = "server.lock"
IDLE_VARIABLE = "RETINUE_LOCAL_IDLE_SECONDS"
IDLE_SECONDS = 300.0
LONGEST_IDLE = 86_400.0

SLOTS = 2  # requests that are worked on at once; others wait
HTTP_THREADS = 64
TAKE_OVER_SECONDS = 1.0
LONGEST_ANSWER = 4096  # tokens, where the request does not say
UNSHARED = "cannot open shared object file"  # the linker's word for a library that is not there


class Presence:
    """Counts who is connected; over when nobody was for a while, or when there is no model."""

    def __init__(self, listener: socket.socket, idle_seconds: float) -> None:
        self._listener = listener
        self._idle_seconds = idle_seconds
        self._guests: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()
        self._clock: asyncio.TimerHandle | None = None
        self._loaded: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    async def last(self, path: Path) -> None:
        """Nobody needs this process any more."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._over.set)
        server = await asyncio.start_server(self._receive, sock=self._listener)
        self._wind_up()
        engine, answer = await asyncio.to_thread(load, path)
        self._loaded.set_result(answer)
        if engine is None:
            self._idle_seconds = 0.0
            self._wind_up()
        await self._over.wait()
        server.close()
        for guest in self._guests:
            guest.cancel()

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        guest = asyncio.current_task()
        assert guest is not None
        self._guests.add(guest)
        try:
            answer = await asyncio.shield(self._loaded)
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
            await reader.read()  # until it goes
        except ConnectionError:
            pass
        finally:
            writer.close()
            self._guests.discard(guest)
            self._wind_up()

    def _wind_up(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
        loop = asyncio.get_running_loop()
        self._clock = loop.call_later(self._idle_seconds, self._look) if not self._guests else None

    def _look(self) -> None:
        if not self._guests:
            self._over.set()


def load(path: Path) -> tuple[Any, dict[str, Any]]:
    """The server, and how to reach it; or nothing, and why."""
    if not intact(path):
        return None, {"error": f"the weights in {path} are damaged; run '{INSTALL}'"}
    key = secrets.token_hex(32)
    try:
        library = importlib.import_module("xllamacpp")
        engine = library.Server(_parameters(library, path, key))
    except (ImportError, RuntimeError, ValueError, AttributeError) as error:
        why = f"the local model could not be loaded: {error}"
        return None, {"error": f"{why}; {_remedy(str(error))}"}
    url = f"{engine.listening_address}/v1"
    return engine, {"url": url, "key": key}


def _remedy(error: str) -> str:
    if UNSHARED in error:
        return "install this library of the system (on Debian, libgomp.so.1 is in libgomp1)"
    return f"run '{INSTALL}'"


def _parameters(library: Any, path: Path, key: str) -> Any:
    """All that would grow with use has a bound: slots, context, threads, caches."""
    given = library.CommonParams()
    given.model.path = str(path)
    given.model_alias = {SMOLLM2.name}
    given.api_keys = [key]
    given.hostnames = ["127.0.0.1"]
    given.port = 0
    given.n_parallel = SLOTS
    given.n_ctx = SLOTS * SMOLLM2.context_tokens
    given.n_predict = LONGEST_ANSWER
    # As its makers advise, and a little against saying the same again; a request may differ.
    given.sampling.temp, given.sampling.top_p, given.sampling.penalty_repeat = 0.2, 0.9, 1.1
    given.cache_ram_mib = 0
    given.cpuparams.n_threads = given.cpuparams_batch.n_threads = threads()
    given.n_threads_http = HTTP_THREADS
    given.n_gpu_layers = 0
    given.warmup = False
    given.ui = False
    given.endpoint_slots = False
    given.verbosity = 1
    return given


def threads() -> int:
    """Half of the processors, four at most: the other half is for those who ask."""
    return max(1, min(4, len(os.sched_getaffinity(0)) // 2))


def idle_seconds() -> float:
    with suppress(ValueError):
        return min(LONGEST_IDLE, max(0.0, float(os.environ.get(IDLE_VARIABLE, ""))))
    return IDLE_SECONDS


async def serve(listener: socket.socket, path: Path) -> None:
    await Presence(listener, idle_seconds()).last(path)


def _take(folder: Path) -> bool:
    """Whether this process is the one. Another that is just ending is given time for it."""
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, TAKE_OVER_SECONDS)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # kept open, and so held, until the process ends
    except TimeoutError:
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return True


def _too_long(number: int, frame: object) -> None:
    raise TimeoutError


def main() -> int:
    folder, ready = Path(sys.argv[1]), int(sys.argv[2])
    os.umask(0o077)
    if not _take(folder):
        os.write(ready, b"held")
        return 0
    listener = listen_in(folder, SOCKET)
    os.write(ready, b"ready")
    os.close(ready)
    asyncio.run(serve(listener, folder / SMOLLM2.file))
    with suppress(FileNotFoundError):
        (folder / SOCKET).unlink()  # the lock is still held: it is ours
    sys.stdout.flush()
    os._exit(0)  # the library's own threads may be in the middle of an answer nobody reads


if __name__ == "__main__":
    sys.exit(main())
