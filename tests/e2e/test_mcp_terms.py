"""What the tools promise is what holds: terms, warnings, tasks that were closed meanwhile."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.test_mcp import give, play, refusal
from support.mcp import (
    BOUND_S,
    CONFIG,
    ENVIRONMENT,
    FETCH,
    SPAWN,
    STATUS,
    WAIT,
    Raw,
    client,
    command,
    project,
    task,
)
from support.roots import Root, held

OTHER = CONFIG.replace("concurrent: 5", "concurrent: 8") + "    subagent_types: [novelty]\n"
UNKNOWN = "    subagent_types: [evaluater, novelty]\n"


def promised(server: Raw) -> tuple[int, list[str]]:
    """How many tasks a call may have, and which types, as the tools say."""
    (spawn, *_) = server.answer(server.send("tools/list"))["result"]["tools"]
    tasks = spawn["inputSchema"]["properties"]["tasks"]
    assert f"At most {tasks['maxItems']} tasks" in spawn["description"]
    return tasks["maxItems"], tasks["items"]["properties"]["subagent_type"]["enum"]


def spawned(server: Raw, *tasks: Any, **more: Any) -> Any:
    answer = server.answer(server.call(SPAWN, {"tasks": list(tasks), **more}))["result"]
    said = "\n".join(block["text"] for block in answer["content"])
    for warning in answer["structuredContent"].get("warnings", ()):
        assert f"warning: {warning}" in said
    return answer["structuredContent"]


def complaint(server: Raw) -> str:
    """The first line on standard error."""
    assert server.process.stderr is not None
    return server.process.stderr.readline().decode()


@pytest.mark.requirement("R176", "R195")
@pytest.mark.parametrize("explicit", [False, True])
def test_the_tools_promise_what_the_open_task_allows_and_tell_what_does_not_count(
    own: Path, explicit: bool
) -> None:
    with Raw(own) as before:
        assert "warnings" not in spawned(before.open(), task("echo one", "one"))
    other = own.parent / "other.yaml" if explicit else own / "config.yaml"
    other.write_text(OTHER)
    with Raw(own, *(["--config", str(other)] if explicit else [])) as server:
        said = complaint(server)
        assert said.startswith("warning: task mcp keeps its own configuration") and "close" in said
        usual = ["explorer", "researcher", "evaluator"]
        assert promised(server.open()) == (5, usual)
        refused = spawned(server, *[task(f"echo {number}") for number in range(6)])
        assert refused["error"]["code"] == "too_many_tasks"
        (warning,) = spawned(server, task("echo two", "two"))["warnings"]
        assert str(other) in warning and str(own / "tasks/mcp/task.yaml") in warning
        with_root = Root(own)
        with_root.call("task.close", task="mcp")
        with_root.release()
        assert promised(server) == (8, ["novelty"])
        assert "warnings" not in spawned(server, task("echo three", "three"))
        assert promised(server) == (8, ["novelty"])


def test_what_is_edited_in_the_open_task_is_promised_and_ends_the_warning(own: Path) -> None:
    with Raw(own) as server:
        spawned(server.open(), task("echo one", "one"))
    (own / "config.yaml").write_text(CONFIG.replace("concurrent: 5", "concurrent: 8"))
    with Raw(own) as server:
        assert promised(server.open())[0] == 5
        assert spawned(server, task("echo two", "two"))["warnings"]
        file = own / "tasks/mcp/task.yaml"
        file.write_text(file.read_text().replace("Agents: 5", "Agents: 8"))
        assert "warnings" not in spawned(server, task("echo three", "three"))
        assert promised(server)[0] == 8


@pytest.mark.requirement("R155", "R156", "R157", "R158", "R253")
def test_a_task_that_is_named_has_its_own_terms(own: Path) -> None:
    with_root = Root(own)
    text = OTHER + "    background_subagents: {enabled: false}\n"
    with_root.call("task.create", title="t", task_id="mine", config_text=text)
    with_root.release()
    with Raw(own, "--task", "mine") as server:
        assert promised(server.open()) == (8, ["novelty"])
        assert "start the server with another --task" in complaint(server)


@pytest.mark.requirement("R196")
def test_an_unknown_type_is_reported_at_the_start_of_the_server_and_with_one_spawn(
    tmp_path: Path,
) -> None:
    with project(tmp_path, UNKNOWN) as root, Raw(root) as server:
        assert "there is no subagent type 'evaluater'" in complaint(server)
        tasks = [task("echo a", "a"), task("echo b", "b")]
        (warning,) = spawned(server.open(), *tasks)["warnings"]
        assert "'evaluater'" in warning and "available: " in warning
        begun = spawned(server, task("echo c", "c"), task("echo d", "d"), background=True)
        assert begun["warnings"] == [warning]


@pytest.mark.requirement("R161", "R218")
def test_a_time_beyond_the_limits_is_reported_to_the_caller(own: Path) -> None:
    with Raw(own) as server:
        asked = (task("echo a", "a", timeout_seconds=700), task("echo b", "b", timeout_seconds=0.1))
        (warning,) = spawned(server.open(), *asked)["warnings"]
        assert warning.startswith("a has 600 s for an attempt, not 700 s as asked: ")
        assert "warnings" not in spawned(server, task("echo c", "c"))


def test_a_call_that_meets_what_has_ended_says_so_and_starts_nothing(own: Path) -> None:
    with Raw(own) as server:
        first = spawned(server.open(), task("exit 3", "a"))
        again = spawned(server, task("exit 3", "a"), task("echo b", "b"))
        assert again["results"][0] == first["results"][0]
        (warning,) = again["warnings"]
        assert warning.startswith("a ended at 2") and "nothing was started" in warning
        later = spawned(server, task("exit 3", "a"), background=True)
        assert later["warnings"] == [warning]


def test_servers_follow_when_a_task_is_closed_and_nothing_of_it_is_lost(own: Path) -> None:
    async def scene() -> None:
        async with asyncio.timeout(BOUND_S * 2), client(own) as one, client(own) as two:
            await give(one, SPAWN, tasks=[task("echo 1", "first")])
            await give(two, "list_subagents")
            await give(one, SPAWN, tasks=[task("echo 2", "second")], background=True)
            with_root = Root(own)
            with_root.call("subagent.wait_all", task="mcp", timeout_seconds=BOUND_S)
            with_root.call("task.close", task="mcp")
            with_root.release()
            script = "until [ -e go ]; do sleep 0.01; done; echo 3"
            begun = await give(two, SPAWN, tasks=[task(script, "third")], background=True)
            told = [each["subagent_id"] for each in begun["background_results"]]
            assert told == ["second"], "an end in the closed task is told all the same"
            for each in (one, two):
                rows = (await give(each, "list_subagents"))["subagents"]
                assert [row["subagent_id"] for row in rows] == ["third"]
                assert (await give(each, STATUS, job_id="third"))["status"] == "running"
                assert (await give(each, FETCH, job_id="first"))["result"]["answer"] == "1"
                assert "unknown_subagent" in await refusal(each, STATUS, job_id="nobody")
            (own / "tasks/mcp-2/agents/third/workspace/go").touch()
            assert (await give(one, WAIT))["job_id"] == "third"
            assert (await give(two, WAIT))["status"] == "idle"
            said = await refusal(two, "continue_subagent", subagent_id="first", message="more")
            assert "task_closed" in said

    asyncio.run(scene())


def test_an_id_with_other_work_is_refused_and_the_hint_can_be_followed(own: Path) -> None:
    async def scene() -> None:
        async with asyncio.timeout(BOUND_S), client(own) as connected:
            await give(connected, SPAWN, tasks=[task("echo 1", "a")])
            said = await refusal(connected, SPAWN, tasks=[task("echo 2", "a")])
            assert "duplicate_id" in said and "continue_subagent" in said
        with_root = Root(own)
        with_root.call("task.close", task="mcp")
        with_root.release()
        async with asyncio.timeout(BOUND_S), client(own) as later:
            (again,) = (await give(later, SPAWN, tasks=[task("echo 1", "a")]))["results"]
            assert "/tasks/mcp/" in again["workspace"], "a repeated call finds its subagent"
            (other,) = (await give(later, SPAWN, tasks=[task("echo 2", "a")]))["results"]
            assert "/tasks/mcp-2/" in other["workspace"], "a closed task refuses no id"

    asyncio.run(scene())


@pytest.mark.requirement("R181")
def test_a_listed_subagent_is_continued_by_its_id(own: Path) -> None:
    async def scene(connected: Any) -> None:
        await give(connected, SPAWN, tasks=[task("echo one", "a")])
        (row,) = (await give(connected, "list_subagents"))["subagents"]
        assert set(row) == {"subagent_id", "status", "elapsed_seconds", "task", "workspace"}
        whose = row["subagent_id"]
        again = await give(connected, "continue_subagent", subagent_id=whose, message="# more")
        rows = (await give(connected, "list_subagents"))["subagents"]
        lines = {each["subagent_id"]: each.get("continues") for each in rows}
        assert lines == {"a": None, again["subagent_id"]: "a"}

    play(own, scene)


@pytest.mark.requirement("R87", "R88")
def test_the_contract_says_what_the_call_was_for(own: Path) -> None:
    async def scene(connected: Any) -> None:
        await give(connected, SPAWN, tasks=[task("echo one\n# more", "a"), task("echo two", "b")])
        contract = json.loads((own / "tasks/mcp/agents/a/contract.json").read_text())
        goal = "Delegated by agents: echo one; echo two"
        assert contract["parent"]["task_prompt"] == contract["parent"]["goal_summary"] == goal

    play(own, scene)


@pytest.mark.requirement("R199")
@pytest.mark.parametrize("types", ["[evaluator, novelty]", "[evaluator]"])
def test_a_report_without_transformative_changes_suggests_novelty_where_it_is_active(
    tmp_path: Path, types: str
) -> None:
    async def scene(connected: Any) -> None:
        script = "echo 'Transformative changes: 0'"
        answer = await connected.call_tool(SPAWN, {"tasks": [task(script, "a")]})
        active = "novelty" in types
        assert ("type novelty" in answer.structured_content.get("hint", "")) == active
        assert ("type novelty" in answer.content[-1].text) == active

    with project(tmp_path, f"    subagent_types: {types}\n") as root:
        play(root, scene)


NO_KEY = """
agents: [{id: m, backend: {type: openai, model: gpt-5-mini}}]
orchestrator: {coordination: {subagent_runtime_mode: inherited}}
"""
NO_ISOLATION = CONFIG.replace(
    "subagent_runtime_mode: inherited",
    "subagent_runtime_mode: isolated\n    subagent_host_launch_prefix: [/no/such/prefix]",
)
REFUSALS = {"no_key": NO_KEY, "isolation_unavailable": NO_ISOLATION, "no_backend": None}


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A root that does not exist yet, on a machine without keys and without the local model."""
    monkeypatch.setitem(ENVIRONMENT, "HOME", str(tmp_path))
    (tmp_path / "project").mkdir()
    root = tmp_path / "project" / ".retinue"
    with held(root):
        yield root


@pytest.mark.requirement("R155")
@pytest.mark.parametrize("code", REFUSALS)
@pytest.mark.parametrize("background", [False, True])
def test_a_refused_first_spawn_leaves_nothing_and_a_later_configuration_counts(
    bare: Path, code: str, background: bool
) -> None:
    async def scene() -> None:
        async with asyncio.timeout(BOUND_S), client(bare) as connected:
            if (config := REFUSALS[code]) is not None:
                write_config(bare, config)
            before = names_in(bare)
            said = await refusal(
                connected, SPAWN, tasks=[task("echo 1", "a")], background=background
            )
            assert f"error[{code}]" in said
            assert f"the configuration in use is {bare / 'config.yaml'}" in said
            assert names_in(bare) == before, "no root where there was none"
            assert (await give(connected, "list_subagents"))["subagents"] == []
            write_config(bare, CONFIG)
            (result,) = (await give(connected, SPAWN, tasks=[task("echo 1", "a")]))["results"]
            assert (result["answer"], "/tasks/mcp/" in result["workspace"]) == ("1", True)

    asyncio.run(scene())


AGENTS = """
agents:
  - {id: gone, backend: {type: codex, program: /no/such/program}}
  - {id: alone, backend: {type: acp, argv: [/bin/true], wire: anthropic}}
providers: [{id: p, backend: {type: chatcompletion, base_url: "http://127.0.0.1:9/v1", model: m}}]
orchestrator: {coordination: {subagent_runtime_mode: inherited}}
"""
OTHERS: dict[str, dict[str, Any]] = {
    "agent_not_installed": {"agent": "gone"},
    "wire_mismatch": {"agent": "alone"},
    "access_not_enforced": {"agent": "alone", "access": "read"},
    "context_outside": {"agent": "alone", "context_paths": ["/etc/hostname"]},
}


@pytest.mark.parametrize("code", OTHERS)
def test_a_refusal_that_a_configuration_can_change_names_its_file(bare: Path, code: str) -> None:
    async def scene() -> None:
        async with asyncio.timeout(BOUND_S), client(bare) as connected:
            speaks = "anthropic" if code == "wire_mismatch" else "chat"
            write_config(bare, AGENTS.replace("wire: anthropic", f"wire: {speaks}"))
            said = await refusal(connected, SPAWN, tasks=[task("x", "a", **OTHERS[code])])
            assert f"error[{code}]" in said
            assert f"the configuration in use is {bare / 'config.yaml'}" in said

    asyncio.run(scene())


def test_a_closed_task_decides_nothing_and_the_next_spawn_counts_by_the_configuration_of_now(
    bare: Path,
) -> None:
    async def scene() -> None:
        async with asyncio.timeout(BOUND_S), client(bare) as connected:
            write_config(bare, CONFIG)
            await give(connected, SPAWN, tasks=[task("echo 1", "a")])
            stored = bare / "tasks/mcp/task.yaml"
            stored.write_text(stored.read_text().replace("type: command", "type: openai"))
            stored.write_text(stored.read_text().replace("argv:", "x-argv:"))
            said = await refusal(connected, SPAWN, tasks=[task("echo 2", "b")])
            assert str(stored) in said
            with_root = Root(bare)
            with_root.call("task.close", task="mcp")
            with_root.release()
            write_config(bare, NO_KEY)
            said = await refusal(connected, SPAWN, tasks=[task("echo 2", "b")])
            assert f"configuration in use is {bare / 'config.yaml'}" in said and "no_key" in said
            assert [each.name for each in (bare / "tasks").iterdir()] == ["mcp"]
            write_config(bare, CONFIG)
            (result,) = (await give(connected, SPAWN, tasks=[task("echo 2", "b")]))["results"]
            assert (result["answer"], "/tasks/mcp-2/" in result["workspace"]) == ("2", True)

    asyncio.run(scene())


def test_an_open_task_that_refuses_names_its_own_configuration(bare: Path) -> None:
    async def scene() -> None:
        async with asyncio.timeout(BOUND_S), client(bare) as connected:
            write_config(bare, CONFIG)
            await give(connected, SPAWN, tasks=[task("echo 1", "a")])
            write_config(bare, CONFIG.replace("concurrent: 5", "concurrent: 8"))
            many = [task(f"echo {number}") for number in range(6)]
            said = await refusal(connected, SPAWN, tasks=many)
            assert f"{bare / 'tasks/mcp/task.yaml'} of task mcp" in said
            (warning,) = (await give(connected, SPAWN, tasks=[task("echo 2", "b")]))["warnings"]
            assert "keeps its own configuration" in warning, "the file was written after the start"

    asyncio.run(scene())


def test_a_refused_run_leaves_no_root_at_a_shell_and_in_python(bare: Path) -> None:
    environment = ENVIRONMENT | {"HOME": str(bare.parent.parent)}
    ran = subprocess.run(
        [*command(bare)[:-1], "run", "do it"],
        env=environment,
        cwd=bare.parent,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
    )
    assert ran.returncode == 2 and "error[no_backend]" in ran.stderr
    assert not bare.exists()
    script = (
        "import asyncio, retinue\n"
        "async def main():\n"
        "    async with retinue.connect() as r:\n"
        "        for _ in range(2):\n"  # a refusal does not end the connection
        "            try:\n"
        "                await r.run_plan('goal: x\\nsteps: [{title: a, description: b}]')\n"
        "            except retinue.RetinueError as error:\n"
        "                print(error.code)\n"
        "asyncio.run(main())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        cwd=bare.parent,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
    )
    assert ran.stdout.split() == ["no_backend", "no_backend"], ran.stderr
    assert not bare.exists()


def names_in(root: Path) -> list[str] | None:
    """Return the names in a root; None where it does not exist."""
    return sorted(each.name for each in root.iterdir()) if root.exists() else None


def write_config(root: Path, text: str) -> None:
    root.mkdir(mode=0o700, exist_ok=True)
    (root / "config.yaml").write_text(text)
