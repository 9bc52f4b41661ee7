"""Subagents of an MCP client that work on its git repository."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.test_mcp import give, play, refusal
from e2e.test_mcp_tasks import ended, spawned
from support.mcp import BOUND_S, SPAWN, WAIT, Raw, project, task
from support.roots import Root, holder, until

ASKS = (
    'if grep -q "colour [i]s" "$RETINUE_BRIEF"; then echo red > c.md; echo done; else '
    """printf '{"status":"blocked","questions":["which colour?"]}' > "$RETINUE_FINAL"; fi"""
    "\nexit 0"
)


HELD = "until [ -e ../go ]; do sleep 0.05; done"


def kill_steward(root: Path) -> None:
    pid = holder(root)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: holder(root) != pid)


async def collect_plan(connected: Any, *answers: Any) -> tuple[list[str], dict[str, Any]]:
    """Return the subagents whose results came with these answers or later, and the plan's end."""
    told: list[str] = []
    waited = list(answers)
    while True:
        for each in waited:
            results = [each["result"]] if each.get("result") else []
            results += each.get("background_results", [])
            told += [result["subagent_id"] for result in results]
            if plans := each.get("plans", []):
                return told, plans[0]
        waited = [await give(connected, WAIT, timeout_seconds=BOUND_S)]


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


def test_standing_context_reaches_tasks_and_plans_and_a_missing_one_is_refused(root: Path) -> None:
    config = (root / "config.yaml").read_text()
    (root / "config.yaml").write_text(f"{config}    subagent_context_paths: [rules.md]\n")
    reads = 'cat "$RETINUE_CONTEXT"/paths/rules.md'

    async def scene(connected: Any) -> None:
        said = await refusal(connected, SPAWN, tasks=[task(reads, "early")])
        assert "rules.md" in said and "subagent_context_paths" in said, said
        planned = [
            merging(reads, "p", owns=["p"]),
            merging(reads, "q", owns=["q"], depends_on=["p"]),
        ]
        said = await refusal(connected, SPAWN, tasks=planned)
        assert "rules.md" in said and "subagent_context_paths" in said, said
        assert (await give(connected, "list_subagents"))["subagents"] == []
        (root.parent / "rules.md").write_text("be kind\n")
        for tasks in ([task(reads, "one")], planned):
            answer = await give(connected, SPAWN, tasks=tasks)
            assert {each["answer"] for each in answer["results"]} == {"be kind"}, answer

    play(root, scene)


def test_a_plan_survives_its_steward_and_a_question_is_answered_by_the_next(root: Path) -> None:
    tasks = [
        merging(ASKS, "asks", owns=["c.md"]),
        merging("cp c.md copy.md; echo done", "copy", owns=["copy.md"], depends_on=["asks"]),
        merging(f"{HELD}; echo h > h.md; echo done", "held", owns=["h.md"]),
    ]

    async def scene(connected: Any) -> None:
        answer = await give(connected, SPAWN, tasks=tasks, background=True)
        held = Path(answer["subagents"][2]["workspace"]).parent
        asked = await give(connected, WAIT, timeout_seconds=BOUND_S)
        assert (asked["job_id"], asked["status"]) == ("asks", "blocked")
        assert asked["interrupted"] and "which colour?" in asked["injected_content"]
        kill_steward(root)
        continued = await give(
            connected, "continue_subagent", subagent_id="asks", message="the colour is red"
        )
        assert continued["success"] and continued["integration"]["reason"] == "merged", continued
        kill_steward(root)
        (held / "go").touch()
        told, plan = await collect_plan(connected, continued)
        assert sorted(told) == ["copy", "held"] and plan["success"], plan
        trailers = "--format=%(trailers:key=Sub-Agent-Id,valueonly)"
        merged = git(root.parent, "log", trailers, plan["branch"]).split()
        assert sorted(merged) == ["asks", "copy", "held"]

    play(root, scene)


def test_a_call_with_dependent_tasks_reports_progress_and_outlives_a_steward(root: Path) -> None:
    heard: list[str] = []
    base = root / "tasks"

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(str(message))
        # The first report comes while the first task is held.
        for folder in base.glob("mcp-plan-*/agents/base"):
            if len(heard) == 1:
                kill_steward(root)
            (folder / "go").touch()

    async def scene(connected: Any) -> None:
        tasks = [
            merging(f"{HELD}; echo base > base.md; echo done", "base", owns=["base.md"]),
            merging("cp base.md copy.md; echo done", "copy", owns=["copy.md"], depends_on=["base"]),
        ]
        answer = await connected.call_tool(SPAWN, {"tasks": tasks}, progress_callback=hear)
        document = answer.structured_content
        assert document["success"], document
        assert [each["subagent_id"] for each in document["results"]] == ["base", "copy"]
        assert "base running" in heard[0]
        assert (await give(connected, WAIT))["status"] == "idle"

    play(root, scene)
