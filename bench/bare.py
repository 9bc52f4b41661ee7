"""The least that it takes: what the kernel does anyway, and programs that do what must be done."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import disk
import keeper
from measure import PYTHON

SLEEP = ["/bin/sleep", "3600"]
TELL_TIME = ["/bin/sh", "-c", "sleep 0.05; exec date +%s.%N"]
TELL_TIME_AT_ONCE = ["/bin/date", "+%s.%N"]


def wake() -> float:
    """Seconds from a command's end until its parent knows of it."""
    reading, writing = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, writing, 1)]
    path = {"PATH": os.environ["PATH"]}
    pid = os.posix_spawn(TELL_TIME[0], TELL_TIME, path, file_actions=actions)
    pidfd = os.pidfd_open(pid)
    select.select([pidfd], [], [])
    woken = time.time()
    os.waitpid(pid, 0)
    told = float(os.read(reading, 100))
    for descriptor in (reading, writing, pidfd):
        os.close(descriptor)
    return woken - told


@contextmanager
def kept(argv: list[str]) -> Iterator[Callable[[], str]]:
    """What the command says, each time that it is called: by the barest keeper, in another process,
    once what was asked and what came of it are kept.
    """
    ours, its = socket.socketpair()
    words = [PYTHON, "-I", "-S", keeper.__file__, str(its.fileno()), str(disk.folder()), *argv]

    def ask() -> str:
        ours.send(b"run")
        return ours.recv(100).decode()

    with subprocess.Popen(words, pass_fds=[its.fileno()]) as process, ours:
        its.close()
        yield ask
        ours.close()
        process.wait(30)


def interrupt_and_reap(count: int) -> float:
    """Seconds for so many bare processes, which is the least that it can take."""
    heard = (signal.SIGINT,)  # though whoever runs in the background is deaf to it
    pids = [os.posix_spawn(SLEEP[0], SLEEP, {}, setsigdef=heard) for _ in range(count)]
    began = time.perf_counter()
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    for pid in pids:
        os.waitpid(pid, 0)
    return time.perf_counter() - began


def record_ends(count: int) -> float:
    """Seconds for what is left of as many: two processes each that are gone, the rows, the files.

    By a loop that judges, tells and forgets nothing: the least that it takes in Python.
    """
    top = disk.folder()
    for number in range(count):
        (top / str(number)).mkdir()
    text = "x" * 600
    pids = [os.posix_spawn(SLEEP[0], SLEEP, {}) for _ in range(2 * count)]
    with closing(keeper.opened(f"{top}/bare.db")) as database:
        began = time.perf_counter()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
        for number in range(count):
            for name in ("exit.json", "attempts.jsonl", "report.md", "result.json"):
                keeper.write(f"{top}/{number}/{name}", text)
        keeper.insert(database, text, ends=count)
        return time.perf_counter() - began
