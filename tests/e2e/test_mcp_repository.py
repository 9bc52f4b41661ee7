"""Subagents of an MCP client that work on its git repository."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.test_mcp import give, play, refusal
from e2e.test_mcp_tasks import ended, spawned
from support.mcp import BOUND_S, SPAWN, WAIT, Raw, project, task
from support.roots import Root

ASKS = (
    'if grep -q "colour [i]s" "$RETINUE_BRIEF"; then echo red > c.md; echo done; else '
    """printf '{"status":"blocked","questions":["which colour?"]}' > "$RETINUE_FINAL"; fi"""
    "\nexit 0"
)


def git(folder: Path, *words: str) -> str:
    named = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org"}
    named |= {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org"}
    ran = subprocess.run(
        ["git", *words],
        cwd=folder,
        env=os.environ | named,
        capture_output=True,
        text=True,
        check=True,
        timeout=BOUND_S,
    )
    return ran.stdout


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with project(tmp_path) as root:
        folder = root.parent
        git(folder, "init", "-q", "-b", "main")
        (folder / "a.md").write_text("one\n")
        (folder / ".gitignore").write_text(".retinue\n")
        git(folder, "add", ".")
        git(folder, "commit", "-qm", "one")
        yield root


def merging(script: str, name: str, **more: Any) -> dict[str, Any]:
    return task(script, name, integration="merge", **more)


def test_merged_tasks_say_commit_and_diffstat_and_a_conflict_its_patch(root: Path) -> None:
    async def scene(connected: Any) -> None:
        tasks = [
            merging("echo b > b.md; echo done", "b", owns=["b.md"]),
            merging("echo 1 > a.md; echo done", "one", owns=["a.md"]),
        ]
        answer = await connected.call_tool(SPAWN, {"tasks": tasks})
        text = answer.content[0].text
        for result in answer.structured_content["results"]:
            joined = result["integration"]
            assert (joined["reason"], joined["branch"]) == ("merged", "retinue/mcp")
            assert f"integration: merged {joined['commit']} retinue/mcp" in text
        assert "  | b.md +1 -0" in text and joined["diffstat"] == ["a.md +1 -1"]
        # It starts from the checkout, which does not have what was merged before.
        late = [merging("echo 2 > a.md; echo done", "two", owns=["a.md"])]
        answer = await connected.call_tool(SPAWN, {"tasks": late})
        (result,) = answer.structured_content["results"]
        assert (result["success"], result["integration"]["reason"]) == (False, "merge_conflict")
        assert result["integration"]["patch"] in answer.content[0].text

    play(root, scene)
    assert (root.parent / "a.md").read_text() == "one\n", "the checkout is left alone"
    assert git(root.parent, "show", "retinue/mcp:b.md") == "b\n"


def test_background_output_is_merged_when_its_result_is_read(root: Path) -> None:
    async def scene(connected: Any) -> None:
        tasks = [merging("echo b > b.md; echo done", "b", owns=["b.md"])]
        await give(connected, SPAWN, tasks=tasks, background=True)
        waited = await give(connected, WAIT, timeout_seconds=BOUND_S)
        assert waited["result"]["integration"]["reason"] == "merged"
        assert (await give(connected, WAIT))["status"] == "idle"

    play(root, scene)
    assert git(root.parent, "show", "retinue/mcp:b.md") == "b\n"


def test_a_blocked_subagent_is_answered_and_three_merges_are_on_the_branch(root: Path) -> None:
    async def scene(connected: Any) -> None:
        tasks = [
            merging("echo a > x.md; echo done", "x", owns=["x.md"]),
            merging(ASKS, "asks", owns=["c.md"]),
            merging("echo b > y.md; echo done", "y", owns=["y.md"]),
        ]
        answer = await give(connected, SPAWN, tasks=tasks)
        one, asked, two = answer["results"]
        assert asked["status"] == "blocked" and asked["questions"] == ["which colour?"]
        assert "continue_subagent" in asked["next"]
        assert {each["integration"]["reason"] for each in (one, two)} == {"merged"}
        again = await give(
            connected, "continue_subagent", subagent_id="asks", message="the colour is red"
        )
        assert again["success"] and again["integration"]["reason"] == "merged", again

    play(root, scene)
    log = git(root.parent, "log", "--format=%(trailers:key=Sub-Agent-Id,valueonly)", "retinue/mcp")
    assert sorted(log.split()) == ["asks", "x", "y"]


@pytest.mark.parametrize("apply", [False, True])
def test_dependent_tasks_run_in_order_and_are_applied_on_request(root: Path, apply: bool) -> None:
    async def scene(connected: Any) -> None:
        tasks = [
            merging("echo base > base.md; echo done", "base", owns=["base.md"]),
            merging("cp base.md copy.md; echo done", "copy", owns=["copy.md"], depends_on=["base"]),
        ]
        answer = await give(connected, SPAWN, tasks=tasks, apply=apply)
        assert answer["success"], answer
        assert [each["subagent_id"] for each in answer["results"]] == ["base", "copy"]
        branches.append(answer["branch"])
        assert (await give(connected, WAIT))["status"] == "idle", "each result comes once"
        asked = {"subagent_id": "no", "message": "x"}
        assert "unknown" in await refusal(connected, "continue_subagent", **asked)

    branches: list[str] = []
    play(root, scene)
    assert git(root.parent, "show", f"{branches[0]}:copy.md") == "base\n"
    assert (root.parent / "copy.md").exists() == apply


def test_a_question_in_a_plan_is_answered_and_the_plan_goes_on(root: Path) -> None:
    async def scene(connected: Any) -> None:
        tasks = [
            merging(ASKS, "asks", owns=["c.md"]),
            merging("cp c.md copy.md; echo done", "copy", owns=["copy.md"], depends_on=["asks"]),
        ]
        answer = await give(connected, SPAWN, tasks=tasks)
        (asked,) = answer["results"]
        assert asked["status"] == "blocked" and asked["questions"] == ["which colour?"]
        assert not answer["success"] and answer["summary"]["total"] == 2
        assert "go on" in answer["note"]
        idle = await connected.call_tool(WAIT, {})
        assert idle.structured_content["status"] == "idle", "it would wait for its own answer"
        assert "blocked until you answer with continue_subagent: asks" in idle.content[0].text
        continued = await give(
            connected, "continue_subagent", subagent_id="asks", message="the colour is red"
        )
        assert continued["success"], continued
        plans = continued.get("plans", [])
        told = continued.get("background_results", [])
        while not plans:
            waited = await give(connected, WAIT, timeout_seconds=BOUND_S)
            told += [waited["result"]] if waited["result"] else []
            told += waited.get("background_results", [])
            plans = waited.get("plans", [])
        assert [each["subagent_id"] for each in told] == ["copy"]
        assert told[0]["integration"]["reason"] == "merged"
        (plan,) = plans
        assert plan["success"]
        branches.append(plan["branch"])
        last = await give(connected, WAIT)
        assert last["status"] == "idle" and "plans" not in last, "the end is told once"

    branches: list[str] = []
    play(root, scene)
    assert git(root.parent, "show", f"{branches[0]}:copy.md") == "red\n"


def test_a_background_plan_is_told_by_another_server_after_the_first(root: Path) -> None:
    async def begin(connected: Any) -> None:
        held = "until [ -e ../go ]; do sleep 0.05; done; echo base > base.md; echo done"
        tasks = [
            merging(held, "base", owns=["base.md"]),
            merging("cp base.md copy.md; echo done", "copy", owns=["copy.md"], depends_on=["base"]),
        ]
        answer = await give(connected, SPAWN, tasks=tasks, background=True)
        assert [row["subagent_id"] for row in answer["subagents"]] == ["base", "copy"]
        assert answer["mode"] == "background"
        workspaces.append(Path(answer["subagents"][0]["workspace"]))
        assert "already" in await refusal(connected, SPAWN, tasks=tasks), "its ids are taken"

    async def end(connected: Any) -> None:
        assert (await give(connected, "list_subagents"))["subagents"]
        (workspaces[0].parent / "go").touch()
        told: list[dict[str, Any]] = []
        plans: list[dict[str, Any]] = []
        while not plans:
            waited = await give(connected, WAIT, timeout_seconds=BOUND_S)
            told += [waited["result"]] if waited["result"] else []
            told += waited.get("background_results", [])
            plans = waited.get("plans", [])
        assert [each["subagent_id"] for each in told] == ["base", "copy"]
        assert plans[0]["success"] and plans[0]["branch"]

    workspaces: list[Path] = []
    play(root, begin)
    play(root, end)


def test_the_end_of_a_failed_plan_names_what_never_started(root: Path) -> None:
    async def scene(connected: Any) -> None:
        tasks = [
            merging("exit 3", "base", owns=["base.md"]),
            merging("echo done", "copy", owns=["copy.md"], depends_on=["base"]),
        ]
        answer = await give(connected, SPAWN, tasks=tasks)
        assert not answer["success"] and list(answer["not_started"]) == ["copy"]
        assert [each["subagent_id"] for each in answer["results"]] == ["base"]

    play(root, scene)


def test_an_invalid_plan_of_tasks_starts_nothing(root: Path) -> None:
    async def scene(connected: Any) -> None:
        tasks = [merging("true", "a", depends_on=["nowhere"])]
        assert "nowhere" in await refusal(connected, SPAWN, tasks=tasks)
        assert (await give(connected, "list_subagents"))["subagents"] == []

    play(root, scene)
    with_root = Root(root)
    assert with_root.call("task.list") == []
    with_root.release()


def test_a_protocol_task_merges_and_dependent_tasks_are_answered_at_once(root: Path) -> None:
    """Clients that declare the Tasks extension get the same merges as others."""
    with Raw(root) as server:
        begun = spawned(server, merging("echo b > b.md; echo done", "b", owns=["b.md"]))
        over = ended(server, begun["taskId"])
        (result,) = over["result"]["structuredContent"]["results"]
        assert result["integration"]["reason"] == "merged", result
        base = merging("echo base > base.md; echo done", "base", owns=["base.md"])
        copy = merging("cp base.md copy.md; echo done", "copy", owns=["c*"], depends_on=["base"])
        answer = spawned(server, base, copy)
        assert "taskId" not in answer, "subagents of a plan do not exist from the start"
        document = answer["structuredContent"]
        assert document["success"], document
    assert git(root.parent, "show", "retinue/mcp:b.md") == "b\n"
    assert git(root.parent, "show", f"{document['branch']}:copy.md") == "base\n"
