"""A steward that is killed, and the one after it: children adopted, workspaces recovered."""

from __future__ import annotations

import os
import select
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import disk
from bare import SLEEP
from core import CONFIG
from measure import Figure, Sample, run_ns
from retinue.client.blocking_client import Client

QUIET_S = 0.1
TESTIMONY = """
mkdir -p "$RETINUE_LOGS/ada/20260101_120000" "$RETINUE_LOGS/bob/20260101_120001"
echo 'what ada found' >"$RETINUE_LOGS/ada/20260101_120000/answer.txt"
echo 'what bob found' >"$RETINUE_LOGS/bob/20260101_120001/answer.txt"
echo '{"coordination": {"phase": "enforcement", "completion_percentage": 60},
 "agents": {"ada": {}, "bob": {}}, "results": {"votes": {"ada": 1}},
 "costs": {"total_input_tokens": 10, "total_output_tokens": 20}}' >"$RETINUE_LOGS/status.json"
exec sleep 3600
"""


class Root:
    """A root whose steward can be killed and comes again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.client = Client(path)

    def kill(self) -> None:
        """Wait until no steward holds the root."""
        steward = os.pidfd_open(self.client.call("steward.status")["pid"])
        signal.pidfd_send_signal(steward, signal.SIGKILL)
        await_end(steward)
        self.client.close()

    def come_again(self) -> float:
        """Seconds until a new steward has answered its first call."""
        began = time.perf_counter()
        self.client = Client(self.path)
        self.client.call("steward.status")
        return time.perf_counter() - began

    def calm_down(self) -> None:
        """The steward does nothing any more; what it put off until it was ready is done."""
        pid, before = self.client.call("steward.status")["pid"], -1
        while (now := run_ns(pid)) != before:
            before = now
            time.sleep(QUIET_S)

    def spawn(self, argv: list[str], count: int, timeout: float) -> str:
        """A task with so many children that are up."""
        config = CONFIG.format(mode="inherited")
        made = self.client.call(
            "task.create", title="again", config_text=config, max_concurrent=count
        )
        brief = {"argv": argv, "context_paths": [], "max_retries": 0, "timeout_seconds": timeout}
        for done in range(0, count, 100):
            tasks = [brief] * min(100, count - done)
            self.client.call("subagent.spawn", task=made["task_id"], tasks=tasks, cwd="/")
        return str(made["task_id"])

    def inits(self, task: str) -> list[int]:
        """Descriptors of the first processes of a task's children."""
        rows: list[dict[str, Any]] = self.client.call("subagent.list", task=task)  # all are open
        shown = [
            self.client.call("subagent.show", task=task, subagent=row["subagent_id"])
            for row in rows
        ]
        return [os.pidfd_open(each["attempts"][-1]["pid"]) for each in shown]


def await_end(pidfd: int, seconds: float = 60) -> None:
    poll = select.poll()  # select() knows no number beyond 1023
    poll.register(pidfd, select.POLLIN)
    ended = poll.poll(seconds * 1000)
    os.close(pidfd)
    assert ended, "it did not come to its end in time"


@contextmanager
def held() -> Iterator[Root]:
    root = Root(disk.folder() / ".retinue")
    try:
        yield root
    finally:
        steward = os.pidfd_open(root.client.call("steward.status")["pid"])
        root.client.call("steward.stop", cancel=True)
        await_end(steward)


async def restart(counts: list[int], rounds: int) -> list[Figure]:
    """A new steward is ready, having adopted the children that its predecessor left alive."""
    curve, ready = [], 0.0
    with held() as empty, held() as root:
        living = 0
        for count in counts:
            root.spawn(SLEEP, count - living, 3600)
            living = count
            starts: list[float] = []
            bare: list[float] = []
            for _ in range(rounds):
                empty.kill()
                bare.append(empty.come_again())
                empty.calm_down()
                root.kill()
                starts.append(root.come_again())
                root.calm_down()
                alive = root.client.call("steward.status")["subagents"]["alive"]
                assert alive == count, f"{alive} of {count} were adopted"
            ready = statistics.median(starts)
            curve.append((float(count), ready * 1000))
    least = statistics.median(bare) * 1000
    return [
        Figure(
            "restart",
            ready,
            f"s until a new steward is ready, {living:,} children adopted",
            0.5,
            ours=Sample(f"{living:,} adopted", ready * 1000, max(starts) * 1000),
            floor=Sample("no child to adopt", least, max(bare) * 1000),
            details={"each_ms": (ready * 1000 - least) / living},
            curve=curve,
            axes="children adopted, ms",
            note="Nearly two thirds of it is the start of a steward that adopts no child: the "
            "import of some 350 modules; a child adds about 0.14 ms.",
        )
    ]


async def recover(count: int) -> list[Figure]:
    """Workspaces whose time ran out while nobody watched, recovered by the next steward.

    They ended by their own clock. What is timed: the new steward's start to the last of
    them closed, with what its team had found, without the start of a steward itself.
    """
    patience = 3 + count / 40
    with held() as empty, held() as root:
        task = root.spawn(["/bin/sh", "-c", TESTIMONY], count, patience)
        inits = root.inits(task)
        root.kill()
        empty.kill()
        bare = empty.come_again()
        for init in inits:
            await_end(init, patience + 30)
        began = time.perf_counter()
        root.come_again()
        ends = root.client.call("subagent.wait_all", task=task, timeout_seconds=120)
        taken = time.perf_counter() - began - bare
        for name in (ends[0]["agentInstance"], ends[-1]["agentInstance"]):
            result = root.client.call("subagent.result", task=task, subagent=name)
            assert (result["status"], result["answer"]) == ("partial", "what ada found"), result
    each = taken / count * 1000
    return [
        Figure(
            "recover",
            each,
            f"ms for each of {count:,} workspaces whose time ran out",
            2,
            "It is the disk's to say: a dozen files are read and written for each, and five runs "
            "of one evening took from 1.5 to 3.2 ms.",
            ours=Sample(f"{count:,} recovered", taken * 1000),
            floor=Sample("a steward's start", bare * 1000),
        )
    ]
