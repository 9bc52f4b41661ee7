"""Running commands under a ProcessRuntime, and seeing what is left of them."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import LaunchFailed
from retinue.core.result import Ending
from retinue.ports import LaunchOrder, ProcessIdentity
from retinue.runtime import procfs
from retinue.runtime.process_runtime import ChildProcess, ProcessRuntime
from support.scenes import package

SOURCE = Path(__file__).parents[2] / "src"
BOUND_S = 30.0

# Another steward: launches what its order says, releases it or not, and is killed.
STEWARD = """
import asyncio, dataclasses, json, os, pathlib, signal, sys
sys.path.insert(0, sys.argv[1])
from retinue.core.task_config import Boundary
from retinue.ports import LaunchOrder
from retinue.runtime.process_runtime import ProcessRuntime
fields = json.loads(sys.argv[2])
for name in ("workspace", "runtime_folder"):
    fields[name] = pathlib.Path(fields[name])
fields["boundary"] = Boundary(mode="inherited")
async def main():
    runtime = ProcessRuntime()
    child = await runtime.launch(LaunchOrder(**fields))
    if sys.argv[3] != "gate":
        await child.release()
    print(json.dumps(dataclasses.asdict(child.identity)), flush=True)
    if sys.argv[3] == "end":
        print(await runtime.containment(), (await child.wait_ended()).describe(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


def shell(order: LaunchOrder, script: str, **changes: Any) -> LaunchOrder:
    return replace(order, argv=("sh", "-c", script), **changes)


def run(runtime: ProcessRuntime, order: LaunchOrder) -> Ending:
    async def whole() -> Ending:
        async with asyncio.timeout(BOUND_S):
            child = await runtime.launch(order)
            await child.release()
            return await child.wait_ended()

    return asyncio.run(whole())


def run_with(
    runtime: ProcessRuntime, order: LaunchOrder, act: Callable[[ChildProcess], None]
) -> Ending:
    """Run it, and act on the child once the command has made a file `up` in its workspace."""

    async def whole() -> Ending:
        async with asyncio.timeout(BOUND_S):
            child = await runtime.launch(order)
            await child.release()
            await until((order.workspace / "up").exists)
            act(child)
            return await child.wait_ended()

    return asyncio.run(whole())


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not holds():  # noqa: ASYNC110  the kernel sets no event of ours
            await asyncio.sleep(0.002)


def processes_with(marker: str) -> list[int]:
    """Who has the marker among its arguments, all over the machine, zombies left out."""
    found = []
    for each in procfs.list_processes():
        try:
            words = Path(f"/proc/{each.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if marker.encode() in words and each.state != "Z":
            found.append(each.pid)
    return found


def holdings() -> tuple[int, int, int]:
    """How many descriptors, threads and children this process has."""
    gc.collect()  # what another test has dropped is not counted
    mine = [each for each in procfs.list_processes() if each.parent == os.getpid()]
    descriptors, threads = (len([*Path("/proc/self", name).iterdir()]) for name in ("fd", "task"))
    return descriptors, threads, len(mine)


def refusal(
    runtime: ProcessRuntime, order: LaunchOrder, *, before: Callable[[], None] = lambda: None
) -> tuple[str, Ending]:
    """Why the command could not be executed, as it was said and as it was recorded."""

    async def whole() -> tuple[str, Ending]:
        async with asyncio.timeout(BOUND_S):
            child = await runtime.launch(order)
            before()
            with pytest.raises(LaunchFailed) as refused:
                await child.release()
            return refused.value.message, await child.wait_ended()

    return asyncio.run(whole())


def other_steward(order: LaunchOrder, until_where: str, *prefix: str) -> subprocess.Popen[str]:
    fields = {name: getattr(order, name) for name in order.__dataclass_fields__}
    python = [sys.executable] if not prefix else [*prefix, "/usr/bin/python3"]
    source = package() if prefix else str(SOURCE)  # not everybody may read ours
    words = [*python, "-c", STEWARD, source, json.dumps(fields, default=str), until_where]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=order.workspace)


def identity_from(steward: subprocess.Popen[str]) -> ProcessIdentity:
    """What another steward launched, once that steward is dead."""
    said, _ = steward.communicate(timeout=BOUND_S)
    assert steward.returncode == -signal.SIGKILL
    return ProcessIdentity(**json.loads(said.splitlines()[0]))


def is_over(identity: ProcessIdentity) -> bool:
    """Whether a process has ended, reaped or not."""
    found = procfs.stat(identity.pid)
    return found is None or found.start_ticks != identity.start_ticks or found.state == "Z"
