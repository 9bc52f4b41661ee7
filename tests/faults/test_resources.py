"""Whatever was taken is given back, and running out of it is told, survived and over."""

from __future__ import annotations

import resource
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from retinue.core.errors import LimitExceeded, RetinueError
from support.reader import Reader
from support.roots import Root, at_once, command, sh, until
from support.traces import children_of, holdings

GROWTH_KB = 4096  # of 300 children: what is remembered of the newest 1024 may still be growing


def test_closed_subagents_leave_nothing_in_the_steward(fresh: Root) -> None:
    pid, task = fresh.pid, fresh.create_task(limit=10)

    def thirty_times_ten() -> None:
        for _ in range(30):
            results = fresh.run(task, *[command("echo", "ok")] * 10)
            assert all(result["success"] for result in results)

    thirty_times_ten()
    before, memory = holdings(pid), memory_kb(pid)
    thirty_times_ten()
    assert memory_kb(pid) - memory < GROWTH_KB
    after = holdings(pid)
    assert all(abs(now - then) <= 2 for then, now in zip(before, after, strict=True)), after
    assert not zombies_of(pid)
    fresh.sound()


def test_connections_that_come_and_go_leave_nothing_in_the_steward(root: Root, task: str) -> None:
    def come_and_go() -> None:
        for _ in range(40):
            client = root.client()
            client.call("subagent.list", task=task)
            client.close()

    come_and_go()
    before = holdings(root.pid)
    come_and_go()
    until(lambda: abs(holdings(root.pid)[0] - before[0]) <= 2)


@pytest.mark.parametrize(
    ("name", "less"),
    [("NOFILE", 128), ("FSIZE", 1 << 40), ("CPU", 1 << 20), ("DATA", 1 << 40), ("AS", 1 << 40)],
)
def test_what_a_steward_may_take_is_the_system_s_to_say_not_a_shell_s(
    fresh: Root, name: str, less: int
) -> None:
    kind: int = getattr(resource, f"RLIMIT_{name}")
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (less, hard))
    try:
        fresh.create_task()
    finally:
        resource.setrlimit(kind, (soft, hard))
    assert resource.prlimit(fresh.pid, kind) == (hard, hard)


@pytest.mark.parametrize("spare", [64, 24, 8, 3])
def test_without_descriptors_a_spawn_is_told_and_later_ones_work(fresh: Root, spare: int) -> None:
    """As many as 64 in all, and then fewer and fewer beyond those in use."""
    task = fresh.create_task(limit=20)
    fresh.run(task, command("echo", "first"))
    clients = [fresh.client() for _ in range(2)]
    pid = fresh.pid
    limit = spare if spare == 64 else holdings(pid)[0] + spare
    usual = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, usual[1]))
    briefs = [command("sleep", "1", subagent_id=f"one-{number}") for number in range(20)]
    try:
        outcomes = at_once(
            partial(clients[0].call, "subagent.spawn", task=task, tasks=briefs[:10], wait=True),
            partial(clients[1].call, "subagent.spawn", task=task, tasks=briefs[10:], wait=True),
        )
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)
    for outcome in outcomes:
        if isinstance(outcome, RetinueError):
            assert outcome.code != "internal", outcome.message
            assert "too many open files" in outcome.message.lower(), outcome.message
            continue
        for result in outcome["results"]:
            assert result["status"] in ("error", "completed")
            said = result["error"].lower()
            assert said == "no output" or "too many open files" in said, result
    until(lambda: all(row["state"] == "closed" for row in fresh.rows(task).values()))
    assert fresh.run(task, command("echo", "ok"))[0]["answer"] == "ok"
    until(lambda: fresh.events(task)[-1]["type"] == "agent.subagent_closed")
    fresh.sound()


def zombies_of(pid: int) -> list[int]:
    return [child for child, state in children_of(pid).items() if state == "Z"]


def memory_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (resident,) = [line for line in lines if line.startswith("VmRSS:")]
    return int(resident.split()[1])


def test_without_descriptors_what_a_child_left_is_still_read(fresh: Root) -> None:
    task, pid = fresh.create_task(), fresh.pid
    numbers = {int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir()}
    free = next(number for number in count() if number not in numbers)  # below those of children
    script = "touch up; until [ -e ../go ]; do sleep 0.02; done; echo kept"
    fresh.spawn(task, sh(script, subagent_id="one", max_retries=0))
    until((fresh.folder(task, "one") / "workspace" / "up").exists)
    usual = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, usual[1]))
    try:
        (fresh.folder(task, "one") / "go").touch()
        until(lambda: fresh.rows(task)["one"]["status"] != "running")
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)
    result = fresh.call("subagent.result", task=task, subagent="one")
    assert (result["status"], result["answer"]) == ("completed", "kept")


def test_without_descriptors_a_client_is_told_so_and_the_next_is_served_once_there_are(
    fresh: Root,
) -> None:
    fresh.create_task()  # a steward of an unused root ends with its last client
    pid, usual = fresh.pid, resource.prlimit(fresh.pid, resource.RLIMIT_NOFILE)
    numbers = [int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir()]
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (max(numbers) + 4, usual[1]))
    crowd = [fresh.client() for _ in range(len(numbers) + 8)]
    said = at_once(*[partial(client.call, "steward.status") for client in crowd])
    told = {each.code for each in said if isinstance(each, RetinueError)}
    assert told == {"too_many_open_files"}
    assert any(not isinstance(each, RetinueError) for each in said)
    assert "Traceback" not in (fresh.path / "steward.log").read_text()
    for client in crowd:
        client.close()

    def is_served() -> bool:
        try:
            return bool(fresh.client().call("steward.status")["pid"] == pid)
        except LimitExceeded:  # the crowd's connections are being closed
            return False

    until(is_served)


def test_subagents_of_a_steward_that_ran_out_of_memory_come_to_their_end(fresh: Root) -> None:
    task = fresh.create_task(limit=40)
    before, hard = resource.prlimit(fresh.pid, resource.RLIMIT_AS)
    pages = int(Path("/proc", str(fresh.pid), "statm").read_text().split()[0])
    nearly = pages * resource.getpagesize() + 2 * 1024 * 1024
    script = "sleep 0.2; head -c 900000 /dev/zero | tr '\\0' x"
    names = [f"n{number}" for number in range(20)]
    steward = fresh.pid
    resource.prlimit(steward, resource.RLIMIT_AS, (nearly, hard))
    with suppress(RetinueError, OSError):
        fresh.spawn(task, *(sh(script, subagent_id=name) for name in names))
        fresh.call("subagent.wait_all", task=task, timeout_seconds=30)
    with suppress(ProcessLookupError):  # it has ended, as it should
        resource.prlimit(steward, resource.RLIMIT_AS, (before, hard))
    fresh.release()
    fresh.call("subagent.wait_all", task=task, timeout_seconds=30)
    Reader(fresh.path).check(finished=True)
    fresh.sound()
