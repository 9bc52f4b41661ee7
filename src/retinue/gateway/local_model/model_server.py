"""Server process of the local model: one for each user, started on demand, ends when idle.

A client connects to the Unix socket, receives the address and key of the HTTP server, and stays
connected while it uses the model. The process ends after an idle time without clients. So it can
outlive the stewards that use it, but not for long.
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

from retinue.gateway.local_model.weights import INSTALL, SMOLLM2, intact
from retinue.sockets import listen_in

SOCKET = "server.sock"
LOCK = "server.lock"
IDLE_VARIABLE = "RETINUE_LOCAL_IDLE_SECONDS"
IDLE_SECONDS = 300.0
LONGEST_IDLE = 86_400.0

SLOTS = 2  # concurrent requests; others wait
HTTP_THREADS = 64
TAKE_OVER_SECONDS = 1.0
LONGEST_ANSWER = 4096  # tokens, if the request sets no limit
MISSING_LIBRARY = "cannot open shared object file"  # the linker's error for a missing library


class ModelServer:
    """Server that ends after an idle time without clients, or if the model cannot be loaded."""

    def __init__(self, listener: socket.socket, idle_seconds: float) -> None:
        self._listener = listener
        self._idle_seconds = idle_seconds
        self._clients: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._loaded: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    async def serve_until_idle(self, path: Path) -> None:
        """Load the model and serve clients until the idle time is over or a signal arrives."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        server = await asyncio.start_server(self._receive, sock=self._listener)
        self._restart_timer()
        engine, answer = await asyncio.to_thread(load, path)
        self._loaded.set_result(answer)
        # Without a model, end as soon as the waiting clients have their error.
        if engine is None:
            self._idle_seconds = 0.0
            self._restart_timer()
        await self._stopping.wait()
        server.close()
        for client in self._clients:
            client.cancel()

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = asyncio.current_task()
        assert client is not None
        self._clients.add(client)
        try:
            # All clients share the future: cancelling one must not cancel it.
            answer = await asyncio.shield(self._loaded)
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
            # Returns when the client disconnects.
            await reader.read()
        except ConnectionError:
            pass
        finally:
            writer.close()
            self._clients.discard(client)
            self._restart_timer()

    def _restart_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        loop = asyncio.get_running_loop()
        self._idle_timer = (
            loop.call_later(self._idle_seconds, self._check_idle) if not self._clients else None
        )

    def _check_idle(self) -> None:
        if not self._clients:
            self._stopping.set()


def load(path: Path) -> tuple[Any, dict[str, Any]]:
    """Load the model; return the engine and its address, or None and an error."""
    if not intact(path):
        return None, {"error": f"the weights in {path} are damaged; run '{INSTALL}'"}
    # Every user of the machine can connect to the loopback port, so it needs a key.
    key = secrets.token_hex(32)
    try:
        library = importlib.import_module("xllamacpp")
        engine = library.Server(_build_parameters(library, path, key))
    except (ImportError, RuntimeError, ValueError, AttributeError) as error:
        why = f"the local model could not be loaded: {error}"
        return None, {"error": f"{why}; {_describe_remedy(str(error))}"}
    url = f"{engine.listening_address}/v1"
    return engine, {"url": url, "key": key}


def _describe_remedy(error: str) -> str:
    if MISSING_LIBRARY in error:
        return "install this system library (on Debian, libgomp.so.1 is in libgomp1)"
    return f"run '{INSTALL}'"


def _build_parameters(library: Any, path: Path, key: str) -> Any:
    """Return the engine's parameters, with limits on slots, context, threads and caches."""
    parameters = library.CommonParams()
    parameters.model.path = str(path)
    parameters.model_alias = {SMOLLM2.name}
    parameters.api_keys = [key]
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.n_parallel = SLOTS
    parameters.n_ctx = SLOTS * SMOLLM2.context_tokens
    parameters.n_predict = LONGEST_ANSWER
    # The authors' advice, with a penalty against repetition. A request may override them.
    parameters.sampling.temp = 0.2
    parameters.sampling.top_p = 0.9
    parameters.sampling.penalty_repeat = 1.1
    parameters.cache_ram_mib = 0
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = count_threads()
    parameters.n_threads_http = HTTP_THREADS
    parameters.n_gpu_layers = 0
    parameters.warmup = False
    parameters.ui = False
    parameters.endpoint_slots = False
    parameters.verbosity = 1
    return parameters


def count_threads() -> int:
    """Return half of the processors, at most four; the clients need the other half."""
    return max(1, min(4, len(os.sched_getaffinity(0)) // 2))


def read_idle_seconds() -> float:
    with suppress(ValueError):
        return min(LONGEST_IDLE, max(0.0, float(os.environ.get(IDLE_VARIABLE, ""))))
    return IDLE_SECONDS


async def serve(listener: socket.socket, path: Path) -> None:
    await ModelServer(listener, read_idle_seconds()).serve_until_idle(path)


def _acquire_lock(folder: Path) -> bool:
    """Return whether this process is the only server; wait briefly for one that is ending."""
    # flock has no timeout of its own, so a timer signal interrupts it.
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    signal.signal(signal.SIGALRM, _raise_timeout)
    signal.setitimer(signal.ITIMER_REAL, TAKE_OVER_SECONDS)
    try:
        # The descriptor stays open, so the lock is held until the process ends.
        fcntl.flock(lock, fcntl.LOCK_EX)
    except TimeoutError:
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return True


def _raise_timeout(number: int, frame: object) -> None:
    raise TimeoutError


def main() -> int:
    folder = Path(sys.argv[1])
    ready = int(sys.argv[2])
    os.umask(0o077)
    # First the lock, then the socket: only the holder may replace the socket file.
    if not _acquire_lock(folder):
        os.write(ready, b"held")
        return 0
    listener = listen_in(folder, SOCKET)
    os.write(ready, b"ready")
    os.close(ready)
    asyncio.run(serve(listener, folder / SMOLLM2.file))
    # The lock is still held, so the socket file belongs to this process.
    with suppress(FileNotFoundError):
        (folder / SOCKET).unlink()
    sys.stdout.flush()
    # A normal exit would wait for threads of the library that may still compute an answer.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
