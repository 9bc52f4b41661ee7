"""Shell commands of a member, limited in time and output."""

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

from retinue.core.result import signal_name
from retinue.processes import wait_exit

MOST_SHOWN = 15_000  # bytes of each end of the output
USUAL_SECONDS = 60.0


async def run_command(
    command: str, home: Path, environment: Mapping[str, str], seconds: float
) -> str:
    """Run a shell command; return its output and how it ended.

    Its process group is killed afterwards. Processes that left the group are killed at the end
    of the attempt.
    """
    # A file instead of a pipe: a background process could keep a pipe open.
    with tempfile.TemporaryFile() as output:
        process = _start(command, home, environment, output)
        try:
            async with asyncio.timeout(seconds):
                await wait_ended(process)
            end = describe_end(process)
        except TimeoutError:
            end = f"stopped after {seconds:g} seconds"
        finally:
            kill_group(process)
        return f"{_format_output(output)}[{end}]"


def describe_end(process: subprocess.Popen[bytes]) -> str:
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


async def wait_ended(process: subprocess.Popen[bytes]) -> None:
    """Wait until the process has ended, and reap it."""
    await wait_exit(process.pid)
    process.wait()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group and reap the process."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _format_output(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(0)
    if size <= 2 * MOST_SHOWN:
        return _add_newline(output.read())
    head = output.read(MOST_SHOWN)
    output.seek(size - MOST_SHOWN)
    cut = size - 2 * MOST_SHOWN
    return f"{_add_newline(head)}[{cut} bytes left out]\n{_add_newline(output.read())}"


def _add_newline(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    return text if not text or text.endswith("\n") else text + "\n"
