"""Answering and continuing subagents at the wrong moment, and at the very first right one."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.core.brief import Brief
from retinue.core.errors import RetinueError
from support.roots import CONFIG, Root, at_once, command, sh, until
from support.traces import is_over

ASKS = """
if [ "$RETINUE_ATTEMPT" = 1 ]; then
    printf '{"status":"blocked","questions":["which?"]}' > "$RETINUE_FINAL"
    exit
fi
cat "$RETINUE_BRIEF"
"""


def test_a_running_subagent_cannot_be_continued(root: Root, task: str) -> None:
    (name,) = root.spawn(task, command("sleep", "60"))
    before = root.state()
    refused = root.refusal("subagent.continue", task=task, subagent=name, message="more")
    assert refused.code == "not_settled"
    assert root.state() == before
    root.call("subagent.cancel", task=task, subagent=name, kill=True)


def test_a_subagent_that_is_being_cancelled_cannot_be_continued(root: Root, task: str) -> None:
    up = root.path.parent / "deaf"
    (name,) = root.spawn(task, sh(f"trap '' INT TERM; touch {up}; while :; do sleep 0.05; done"))
    until(up.exists)
    client = root.client()

    def go_on() -> Any:
        until(lambda: "cancel_requested" in root.types(task, name))
        return client.call("subagent.continue", task=task, subagent=name, message="more")

    ended, refused = at_once(
        partial(root.client().call, "subagent.cancel", task=task, subagent=name), go_on
    )
    assert isinstance(ended, dict)
    assert isinstance(refused, RetinueError)
    assert refused.code == "not_settled"
    assert list(root.rows(task)) == [name]


@pytest.mark.parametrize("by", ["gc", "hand", "link"])
def test_a_subagent_whose_workspace_is_gone_cannot_be_continued(
    root: Root, task: str, by: str
) -> None:
    (result,) = root.run(task, sh("echo x > kept; echo ok", subagent_id="gone"))
    workspace = Path(result["workspace"])
    if by == "gc":
        root.call("task.close", task=task)
        root.call("gc", force=True)
    else:
        shutil.rmtree(workspace)
        if by == "link":
            workspace.symlink_to("/etc")
    assert not workspace.is_dir() or by == "link"
    before = root.state()
    refused = root.refusal("subagent.continue", task=task, subagent="gone", message="more")
    assert refused.code == "workspace_gone"
    assert root.state() == before


def test_a_blocked_subagent_whose_workspace_is_gone_cannot_be_answered(
    root: Root, task: str
) -> None:
    (result,) = root.run(task, sh(ASKS, subagent_id="asking"))
    assert result["status"] == "blocked"
    shutil.rmtree(result["workspace"])
    before = root.state()
    refused = root.refusal("subagent.continue", task=task, subagent="asking", message="this")
    assert refused.code == "workspace_gone"
    assert root.state() == before
    assert root.rows(task)["asking"]["status"] == "blocked"


def test_simultaneous_answers_start_one_attempt(root: Root, task: str) -> None:
    root.run(task, sh(ASKS, subagent_id="asking"))
    told = {"task": task, "subagent": "asking"}
    acts = [
        partial(root.client().call, "subagent.continue", message=f"word-{number}", **told)
        for number in range(6)
    ]
    outcomes = at_once(*acts)
    assert sum(isinstance(each, dict) for each in outcomes) == 1
    answer = until_result(root, task, "asking")["answer"]
    assert answer.count("word-") == 1
    assert root.types(task, "asking").count("started") == 2
    root.sound()


def test_an_answered_subagent_holds_its_slot_before_it_is_up(root: Root) -> None:
    task = root.create_task(limit=1)
    slow = ASKS + "sleep 60"
    root.run(task, sh(slow, subagent_id="asking"))
    brief = command("sleep", "60", subagent_id="other")
    outcomes = at_once(
        partial(root.client().call, "subagent.continue", task=task, subagent="asking", message="a"),
        partial(root.client().call, "subagent.spawn", task=task, tasks=[brief]),
    )
    (loser,) = [each for each in outcomes if isinstance(each, RetinueError)]
    assert loser.code == "limit_exceeded"
    assert sum(row["status"] == "running" for row in root.rows(task).values()) == 1
    root.call("task.cancel", task=task, kill=True)


def test_an_answer_reaches_an_attempt_that_a_crash_kept_from_starting(fresh: Root) -> None:
    task = fresh.create_task()
    fresh.run(task, sh(ASKS, subagent_id="asking"))
    fresh.stop()
    armed = Root(fresh.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETINUE_FAILPOINT", "workspace_made")
        lost = armed.refusal("subagent.continue", task=task, subagent="asking", message="use tea")
    assert lost.code == "steward_lost"
    dying = int((fresh.path / "steward.lock").read_text())
    until(lambda: is_over(dying))  # until then it may still be reached
    answer = until_result(fresh, task, "asking")["answer"]
    assert "use tea" in answer
    fresh.sound()


@pytest.mark.parametrize("limit", [1, 3])
def test_an_end_can_be_acted_on_as_soon_as_it_is_reported(tmp_path: Path, limit: int) -> None:
    """In one process nothing lies between the end and the next call."""

    async def whole(act: Callable[[retinue.Task], Awaitable[Any]]) -> list[str]:
        async with retinue.open(tmp_path / ".retinue") as held:
            task = await held.create_task(title="t", config=CONFIG.format(limit=limit))
            await task.spawn([Brief(argv=["sh", "-c", ASKS], id="asking")])
            assert (await task.wait_any(10)).status == "blocked"
            await act(task)
            await task.wait_all(10)
            return [row["status"] for row in await task.subagents()]

    more = [Brief(argv=["echo", "ok"], id=f"more-{number}") for number in range(limit)]
    assert asyncio.run(whole(lambda task: task.continue_("asking", "this"))) == ["completed"]
    assert asyncio.run(whole(lambda task: task.cancel("asking"))) == ["cancelled"]
    statuses = asyncio.run(whole(lambda task: task.run(more)))
    assert statuses == ["blocked", *["completed"] * limit]


def until_result(root: Root, task: str, name: str) -> Any:
    """The result of one that is closed."""
    until(lambda: root.rows(task)[name]["state"] == "closed")
    return root.call("subagent.result", task=task, subagent=name)
