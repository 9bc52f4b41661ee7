"""A member's commands: each in a session of its own, bounded in time and output."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from retinue.domain.ending import signal_name
from retinue.processes import exited

MOST_SHOWN = 15_000  # bytes of each end of the output
USUAL_SECONDS = 60.0


async def run_command(
    command: str, home: Path, environment: Mapping[str, str], seconds: float
) -> str:
    """What a shell command printed, and how it ended; its process group is gone.

    Whatever left that group is gone at the end of the attempt. Its output goes to a file:
    whoever keeps a pipe open would keep us waiting.
    """
    with tempfile.TemporaryFile() as output:
        process = _start(command, home, environment, output)
        try:
            async with asyncio.timeout(seconds):
                await ended(process)
            end = how_ended(process)
        except TimeoutError:
            end = f"stopped after {seconds:g} seconds"
        finally:
            kill_group(process)
        return f"{_shown(output)}[{end}]"


def how_ended(process: subprocess.Popen[bytes]) -> str:
    if process.returncode < 0:
        return f"killed by {signal_name(-process.returncode)}"
    return f"exit code {process.returncode}"


def _start(
    command: str, home: Path, environment: Mapping[str, str], output: IO[bytes]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["/bin/sh", "-c", command],
        cwd=home,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


async def ended(process: subprocess.Popen[bytes]) -> None:
    """It has come to its end, and is reaped."""
    await exited(process.pid)
    process.wait()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Nothing is left of it and of what it started, unless that left its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _shown(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(0)
    if size <= 2 * MOST_SHOWN:
        return _ended(output.read())
    head = output.read(MOST_SHOWN)
    output.seek(size - MOST_SHOWN)
    cut = size - 2 * MOST_SHOWN
    return f"{_ended(head)}[{cut} bytes left out]\n{_ended(output.read())}"


def _ended(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    return text if not text or text.endswith("\n") else text + "\n"
