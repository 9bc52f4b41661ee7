"""Processes of coding agents: started, heard, and ended with everything that they started."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from retinue.agents.launch import AgentLaunch
from retinue.agents.link import LinkFailed
from retinue.agents.process_link import LONGEST_LINE, AgentProcess

LAUNCH = AgentLaunch(argv=(), environment={"PATH": os.environ["PATH"]}, cwd="/")
BOUND_S = 20


class Heard:
    """Lines and the end of one program."""

    def __init__(self) -> None:
        self.lines: list[bytes | None] = []
        self.came = asyncio.Event()
        self.ended: asyncio.Future[LinkFailed] = asyncio.get_running_loop().create_future()

    def hear(self, line: bytes | None) -> None:
        self.lines.append(line)
        self.came.set()


async def start(code: str) -> tuple[AgentProcess, Heard]:
    heard = Heard()
    argv = (sys.executable, "-S", "-c", code)
    process = AgentProcess(argv, LAUNCH, heard.hear, heard.ended.set_result)
    await process.start()
    return process, heard


def test_lines_are_received_and_the_end_quotes_stderr() -> None:
    async def run() -> None:
        code = "import sys; print('one'); sys.stdout.write('two'); sys.exit('it broke')"
        process, heard = await start(code)
        error = await asyncio.wait_for(heard.ended, BOUND_S)
        assert heard.lines == [b"one", b"two"]
        assert error.code == "agent_ended"
        assert "exit code 1" in error.message and "it broke" in error.message
        with pytest.raises(LinkFailed):
            process.write({})
        await process.close()

    asyncio.run(run())


def test_a_program_that_does_not_exist_is_not_started() -> None:
    async def run() -> None:
        heard = Heard()
        process = AgentProcess(("/no/such/agent",), LAUNCH, heard.hear, heard.ended.set_result)
        with pytest.raises(LinkFailed) as caught:
            await process.start()
        assert caught.value.code == "agent_not_started"

    asyncio.run(run())


def test_a_cancelled_start_ends_the_program() -> None:
    async def run() -> None:
        heard = Heard()
        process = AgentProcess(("/bin/sleep", "60"), LAUNCH, heard.hear, heard.ended.set_result)
        starting = asyncio.create_task(process.start())
        await asyncio.sleep(0)  # the program runs, and its pipes are not connected
        starting.cancel()
        error = await asyncio.wait_for(heard.ended, BOUND_S)
        assert "killed by SIGKILL" in error.message

    asyncio.run(run())


def test_a_line_that_is_too_long_is_reported_without_its_text() -> None:
    async def run() -> None:
        code = f"print('x' * {LONGEST_LINE + 1}); print('after')"
        process, heard = await start(code)
        await asyncio.wait_for(heard.ended, BOUND_S)
        assert heard.lines == [None, b"after"]
        await process.close()

    asyncio.run(run())


def test_output_that_is_closed_ends_the_link_without_an_exit() -> None:
    async def run() -> None:
        process, heard = await start("import os, sys; os.close(1); sys.stdin.read()")
        error = await asyncio.wait_for(heard.ended, BOUND_S)
        assert "closed its output" in error.message
        await process.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("code", "seconds"),
    [
        ("import sys; print('up', flush=True); sys.stdin.read()", 0.9),
        # Deaf to the end of its input.
        ("import signal; print('up', flush=True); signal.pause()", 1.9),
        # Deaf to SIGTERM, too.
        (
            "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True)\n"
            "while True: signal.pause()",
            4.0,
        ),
    ],
)
def test_close_ends_a_program_by_the_mildest_means_it_obeys(code: str, seconds: float) -> None:
    async def run() -> None:
        process, heard = await start(code)
        await asyncio.wait_for(heard.came.wait(), BOUND_S)
        began = time.monotonic()
        await process.close()
        assert time.monotonic() - began < seconds
        assert heard.ended.done()

    asyncio.run(run())


def test_commands_that_an_agent_leaves_behind_end_with_it(tmp_path: Path) -> None:
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    # The command holds the fifo open for as long as it lives.
    code = (
        "import subprocess, sys\n"
        f"subprocess.Popen(['/bin/sh', '-c', 'exec 3<>{fifo}; echo up; tail -f /dev/null'])\n"
        "sys.stdin.read()"
    )

    async def run() -> None:
        process, heard = await start(code)
        await asyncio.wait_for(heard.came.wait(), BOUND_S)
        await process.close()

    asyncio.run(run())
    with pytest.raises(OSError, match="No such device or address"):
        os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)  # nothing reads it any more
