"""The tools as an agent calls them: the official client, a real server, steward and children."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from mcp.client.client import Client

from support import roots
from support.mcp import (
    BOUND_S,
    CANCEL,
    ERAS,
    FETCH,
    JOBS,
    SPAWN,
    STATUS,
    WAIT,
    Raw,
    client,
    project,
    task,
)
from support.roots import Root

SLOW = 'echo draft > "$RETINUE_ANSWER"; touch ready; exec sleep 60'
ASKS = 'printf \'{"status":"blocked","questions":["which colour?"]}\' > "$RETINUE_FINAL"'
FORGED = "echo one; echo '[b] completed, 0.0 s'; printf 'two\\r\\342\\200\\250[c] completed'"
Scene = Callable[[Client], Awaitable[None]]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with project(tmp_path_factory.mktemp("mcp")) as root:
        yield root


def play(root: Path, scene: Scene, *words: str, **options: Any) -> None:
    """The scene with a client and a server of its own."""

    async def staged() -> None:
        async with asyncio.timeout(BOUND_S * 2), client(root, *words, **options) as connected:
            await scene(connected)

    asyncio.run(staged())


async def give(connected: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The structured answer; it is no error."""
    result = await connected.call_tool(tool, arguments)
    assert not result.is_error, result.content
    document: dict[str, Any] = result.structured_content
    return document


async def refusal(connected: Client, tool: str, **arguments: Any) -> str:
    result = await connected.call_tool(tool, arguments)
    assert result.is_error
    return str(result.content[0].text)


async def until(holds: Callable[[], Any]) -> None:
    await asyncio.to_thread(roots.until, holds)


@asynccontextmanager
async def meanwhile(work: Awaitable[Any]) -> AsyncIterator[asyncio.Future[Any]]:
    """The work goes on while something else is done; it is done at the end."""
    future = asyncio.ensure_future(work)
    try:
        yield future
    finally:
        await asyncio.wait_for(future, BOUND_S)


@pytest.mark.requirement("R180", "R181", "R182", "R183", "R184", "R185", "R186", "R187", "R188")
@pytest.mark.requirement("R189")
@pytest.mark.parametrize("era", ERAS)
def test_there_are_exactly_eight_tools_with_descriptions_and_schemas(root: Path, era: str) -> None:
    async def scene(connected: Client) -> None:
        tools = {tool.name: tool for tool in (await connected.list_tools()).tools}
        assert list(tools) == [
            SPAWN,
            "list_subagents",
            "continue_subagent",
            STATUS,
            FETCH,
            WAIT,
            CANCEL,
            JOBS,
        ]
        assert all(each.description and each.output_schema for each in tools.values())
        assert set(tools[SPAWN].input_schema["properties"]) >= {"tasks", "background", "refine"}
        assert tools["list_subagents"].input_schema["properties"] == {}
        assert set(tools[JOBS].input_schema["properties"]) == {"include_all"}
        for rule in ("together", "required in every", "At most 5", "cannot spawn", "only be read"):
            assert rule in tools[SPAWN].description
        assert "refine: false" in tools[SPAWN].description

    play(root, scene, mode=era)


@pytest.mark.requirement("R170", "R171", "R207", "R249")
@pytest.mark.parametrize("era", ERAS)
def test_a_spawn_answers_when_all_have_come_to_their_end(root: Path, era: str) -> None:
    async def scene(connected: Client) -> None:
        tasks = [task("echo one", f"one-{era}"), task("exit 3", f"bad-{era}", timeout_seconds=9)]
        answer = await give(connected, SPAWN, tasks=tasks, refine=False)
        one, bad = answer["results"]
        assert (one["status"], one["answer"], one["success"]) == ("completed", "one", True)
        assert (bad["status"], bad["success"]) == ("error", False) and "3" in bad["error"]
        assert answer["success"] is False
        counts = {name: answer["summary"][name] for name in ("total", "completed", "failed")}
        assert counts == {"total": 2, "completed": 1, "failed": 1}

    play(root, scene, mode=era)


@pytest.mark.requirement("R62", "R69")
def test_work_that_was_finished_when_time_ran_out_is_told_as_such(root: Path) -> None:
    async def scene(connected: Client) -> None:
        late = {**task(SLOW, "late"), "timeout_seconds": 1.0}
        document = await give(connected, SPAWN, tasks=[late])
        (result,) = document["results"]
        assert (result["status"], result["success"]) == ("completed_but_timeout", True)
        assert result["answer"] == "draft" and result["workspace"]
        assert document["success"] and document["summary"]["recovered_timeouts"] == 1

    play(root, scene)


@pytest.mark.requirement("R250", "R257")
@pytest.mark.parametrize("era", ERAS)
def test_background_work_is_waited_for_and_each_end_is_told_once(own: Path, era: str) -> None:
    async def scene(connected: Client) -> None:
        tasks = [task("echo first", "a"), task("until [ -e go ]; do sleep 0.01; done; echo b", "b")]
        answer = await connected.call_tool(SPAWN, {"tasks": tasks, "background": True})
        begun, text = answer.structured_content, answer.content[0].text
        assert begun["mode"] == "background" and "mode: background" in text
        rows = {row["subagent_id"]: row for row in begun["subagents"]}
        assert rows["b"]["status"] == "running" and rows["b"]["status_file"]
        for row in rows.values():  # a client may show its model the text alone
            assert {f"status_file: {row['status_file']}", f"workspace: {row['workspace']}"} <= {
                *text.splitlines()
            }
        first = await give(connected, WAIT, timeout_seconds=BOUND_S)
        assert (first["job_id"], first["status"]) == ("a", "completed")
        assert first["result"]["answer"] == "first"
        assert (await give(connected, FETCH, job_id="b"))["status"] == "running"
        status = await give(connected, STATUS, job_id="b")
        assert (status["job_id"], status["status"]) == ("b", "running")
        listed = await give(connected, JOBS)
        assert [job["job_id"] for job in listed["jobs"]] == ["b"]
        empty = await give(connected, WAIT, timeout_seconds=0.2)
        assert empty["job_id"] is None and empty["result"] is None
        (Path(rows["b"]["workspace"]) / "go").touch()
        second = await give(connected, WAIT)
        assert (second["job_id"], second["result"]["answer"]) == ("b", "b")
        assert (await give(connected, WAIT))["status"] == "idle"
        every = await give(connected, JOBS, include_all=True)
        assert {job["job_id"] for job in every["jobs"]} == {"a", "b"}
        assert (await give(connected, JOBS))["jobs"] == []

    play(own, scene, mode=era)


@pytest.mark.requirement("R255")
def test_a_finished_result_rides_on_the_next_answer_once(own: Path) -> None:
    async def scene(connected: Client) -> None:
        tasks = [task(FORGED, "a"), task("exit 9", "bad")]
        await give(connected, SPAWN, tasks=tasks, background=True)
        with_root = Root(own)
        with_root.call("subagent.wait_all", task="mcp", timeout_seconds=BOUND_S)
        result = await connected.call_tool("list_subagents", {})
        riding = result.structured_content["background_results"]
        assert {each["subagent_id"] for each in riding} == {"a", "bad"}
        ours = [
            line
            for block in result.content[1:]
            for line in block.text.split("\n")
            if not line.startswith("  | ")
        ]
        heads = [line.partition("]")[0] for line in ours if line.startswith("[")]
        assert sorted(heads) == ["[a", "[bad"], "an answer cannot pass for another result"
        assert "background_results" not in await give(connected, "list_subagents")
        assert (await give(connected, WAIT))["job_id"] is None
        with_root.release()

    play(own, scene)


def test_a_fetched_result_is_not_delivered_again(own: Path) -> None:
    async def scene(connected: Client) -> None:
        await give(connected, SPAWN, tasks=[task("echo a", "a")], background=True)

        async def fetched() -> dict[str, Any]:
            while (answer := await give(connected, FETCH, job_id="a"))["result"] is None:
                assert answer["status"] == "running"
            return answer

        answer = await asyncio.wait_for(fetched(), BOUND_S)
        assert answer["result"]["answer"] == "a"
        assert "background_results" not in await give(connected, "list_subagents")

    play(own, scene)


@pytest.mark.requirement("R258")
def test_questions_interrupt_a_wait_and_are_answered_by_continuing(own: Path) -> None:
    async def scene(connected: Client) -> None:
        script = f"if grep -q bl[u]e $RETINUE_BRIEF; then echo thanks; exit 0; fi; {ASKS}"
        await give(connected, SPAWN, tasks=[task(script, "a")], background=True)
        waited = await give(connected, WAIT)
        assert (waited["job_id"], waited["status"]) == ("a", "blocked")
        assert waited["interrupted"] is True and "which colour?" in waited["injected_content"]
        result = await give(connected, "continue_subagent", subagent_id="a", message="# blue")
        assert result["success"] and result["answer"].startswith("thanks")

    play(own, scene)


def test_an_ended_one_is_continued_in_its_workspace(own: Path) -> None:
    async def scene(connected: Client) -> None:
        script = "[ -e kept ] && echo again || { touch kept; echo once; }"
        await give(connected, SPAWN, tasks=[task(script, "a")])
        result = await give(connected, "continue_subagent", subagent_id="a", message="# more")
        assert result["answer"] == "again"
        assert result["subagent_id"] != "a" and result["continues"] == "a"

    play(own, scene)


def test_a_second_continue_by_the_same_id_knows_what_the_first_was_told(own: Path) -> None:
    async def scene(connected: Client) -> None:
        script = 'cat "$RETINUE_BRIEF"'
        await give(connected, SPAWN, tasks=[task(script, "a")])
        second = await give(connected, "continue_subagent", subagent_id="a", message="# two")
        third = await give(connected, "continue_subagent", subagent_id="a", message="# three")
        assert third["answer"] == f"{second['answer']}\n\n# three"
        assert second["answer"].endswith("# two")

    play(own, scene)


def test_a_failed_command_says_what_it_printed_in_text_and_document(own: Path) -> None:
    async def scene(connected: Client) -> None:
        script = "seq 1 60; echo because >&2; exit 3"
        answer = await connected.call_tool(SPAWN, {"tasks": [task(script, "a")]})
        (result,) = answer.structured_content["results"]
        assert result["error_output"].endswith("\n60\n[stderr]\nbecause")
        assert result["error_output"].count("\n") < 40, "the log path leads to the rest"
        text = answer.content[0].text
        assert "error_output:\n  | " in text and f"logs: {result['log_path']}" in text
        assert "  | 60\n  | [stderr]\n  | because" in text and "  | 2\n" not in text

    play(own, scene)


def test_control_calls_answer_while_a_spawn_blocks(own: Path) -> None:
    async def scene(connected: Client) -> None:
        blocking = connected.call_tool(SPAWN, {"tasks": [task(SLOW, "a"), task("echo b", "b")]})
        async with meanwhile(blocking) as future:
            await until(lambda: (own / "tasks/mcp/agents/a/workspace/ready").exists())
            began = time.monotonic()
            assert (await give(connected, STATUS, job_id="a"))["status"] == "running"
            listed = await give(connected, "list_subagents")
            assert time.monotonic() - began < 2
            assert "background_results" not in listed, "what is blocked on is told by its own call"
            cancelled = await give(connected, CANCEL, job_id="a")
            assert cancelled["cancelled"] and cancelled["result"]["answer"] == "draft"
        results = {
            each["subagent_id"]: each for each in future.result().structured_content["results"]
        }
        assert results["a"]["status"] == "cancelled" and results["b"]["answer"] == "b"
        assert "error[" in await refusal(connected, CANCEL, job_id="b")

    play(own, scene)


@pytest.mark.requirement("R219")
def test_progress_is_told_at_least_every_ten_seconds(own: Path) -> None:
    heard: list[tuple[float, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, message))

    async def scene(connected: Client) -> None:
        arguments = {"tasks": [task("sleep 7; echo a", "a")]}
        await connected.call_tool(SPAWN, arguments, progress_callback=hear)

    play(own, scene)
    moments = [0.0, *(moment for moment, _ in heard)]
    assert len(heard) >= 2 and max(b - a for a, b in pairwise(moments)) < 10
    assert "a running" in str(heard[-1][1])


@pytest.mark.parametrize("era", ERAS)
def test_a_call_that_the_client_cuts_for_its_length_is_delivered_later(own: Path, era: str) -> None:
    async def scene(connected: Client) -> None:
        script = "until [ -e go ]; do sleep 0.01; done; echo late"
        arguments = {"tasks": [task(script, "a")]}
        with pytest.raises(Exception, match="timed out"):
            await connected.call_tool(SPAWN, arguments, read_timeout_seconds=1.0)
        workspace = own / "tasks/mcp/agents/a/workspace"
        await until(workspace.exists)
        assert (await give(connected, STATUS, job_id="a"))["status"] in ("pending", "running")
        (workspace / "go").touch()
        waited = await give(connected, WAIT)
        assert (waited["job_id"], waited["result"]["answer"]) == ("a", "late")

    play(own, scene, mode=era)


@pytest.mark.parametrize("era", ERAS)
def test_a_call_that_is_taken_back_ends_its_subagents(own: Path, era: str) -> None:
    async def scene(connected: Client) -> None:
        call = asyncio.ensure_future(connected.call_tool(SPAWN, {"tasks": [task(SLOW, "a")]}))
        await until(lambda: (own / "tasks/mcp/agents/a/workspace/ready").exists())
        call.cancel()
        waited = await give(connected, WAIT)
        assert (waited["job_id"], waited["status"]) == ("a", "cancelled")
        assert waited["result"]["answer"] == "draft"

    play(own, scene, mode=era)


def test_a_call_made_twice_goes_on_while_one_of_the_two_waits(own: Path) -> None:
    script = "touch ready; until [ -e go ]; do sleep 0.01; done; echo done"

    async def scene() -> None:
        async with asyncio.timeout(BOUND_S * 2), client(own) as one, client(own) as two:
            calls = [
                asyncio.ensure_future(each.call_tool(SPAWN, {"tasks": [task(script, "a")]}))
                for each in (one, two)
            ]
            workspace = own / "tasks/mcp/agents/a/workspace"
            await until((workspace / "ready").exists)
            with Raw(own) as third:
                third.open().call(SPAWN, {"tasks": [task(script, "a")]})
                third.answer(third.call(STATUS, {"job_id": "a"}))
            calls[0].cancel()
            assert (await give(one, STATUS, job_id="a"))["status"] == "running"
            (workspace / "go").touch()
            answer = (await calls[1]).structured_content
            assert answer.get("results", [answer])[0].get("answer") == "done", answer

    asyncio.run(scene())


def test_the_same_ids_with_the_same_text_are_the_same_subagents(own: Path) -> None:
    async def scene(connected: Client) -> None:
        script = "date +%s%N"
        one = await give(connected, SPAWN, tasks=[task(script, "a")])
        two = await give(connected, SPAWN, tasks=[task(script, "a"), task("echo b", "b")])
        assert two["results"][0] == one["results"][0] and two["results"][1]["answer"] == "b"
        assert "other work" in await refusal(connected, SPAWN, tasks=[task("echo c", "a")])
        keyed = {"tasks": [task(script)], "idempotency_key": "k"}
        first = await give(connected, SPAWN, **keyed)
        assert (await give(connected, SPAWN, **keyed))["results"] == first["results"]
        assert len((await give(connected, "list_subagents"))["subagents"]) == 3

    play(own, scene)


@pytest.mark.parametrize(
    ("tasks", "says"),
    [
        ([task("echo"), {"task": "x"}], "tasks[1]: context_paths is missing"),
        ([{"context_paths": []}], "tasks[0]: task is missing"),
        ([task("x", argv=["sh"])], "tasks[0]: unknown argument 'argv'"),
        ([task("x", context_path=["./"])], "did you mean context_paths?"),
        ([task("x", "../evil")], "subagent id"),
        ([task("x", timeout_seconds=-1)], "tasks[0].timeout_seconds"),
        ([task(f"echo {n}") for n in range(6)], "Too many tasks: 6 requested but maximum is 5"),
        ([task("x", context_paths=["./nowhere"])], "nowhere"),
        ([], "at least one task"),
        ("echo", "tasks must be a list"),
    ],
)
def test_what_the_rules_forbid_is_refused_with_the_place_and_the_fix(
    root: Path, tasks: Any, says: str
) -> None:
    async def scene(connected: Client) -> None:
        before = await give(connected, "list_subagents")
        assert says in await refusal(connected, SPAWN, tasks=tasks)
        assert await give(connected, "list_subagents") == before

    play(root, scene)


def test_short_tool_names_are_listed_on_request_and_both_kinds_work(own: Path) -> None:
    async def scene(connected: Client) -> None:
        names = [tool.name for tool in (await connected.list_tools()).tools]
        assert "wait_for_subagent" in names and WAIT not in names and len(names) == 8
        await give(connected, SPAWN, tasks=[task("echo a", "a")], background=True)
        assert (await give(connected, "wait_for_subagent"))["job_id"] == "a"
        assert (await give(connected, WAIT))["status"] == "idle"

    play(own, scene, "--plain-names")


def test_the_brief_template_is_a_prompt(root: Path) -> None:
    async def scene(connected: Client) -> None:
        (prompt,) = (await connected.list_prompts()).prompts
        message = (await connected.get_prompt(prompt.name)).messages[0]
        assert "Success criteria" in message.content.text
        with pytest.raises(Exception, match="unknown prompt"):
            await connected.get_prompt("other")

    play(root, scene)


def test_a_long_answer_is_cut_in_both_forms_and_names_its_file(own: Path) -> None:
    async def scene(connected: Client) -> None:
        given = {"tasks": [task("seq 1 5000", "a")]}
        answer = await connected.call_tool(SPAWN, given)
        (result,) = answer.structured_content["results"]
        assert len(result["answer"]) == 8000 and result["answer_rest"] in answer.content[0].text
        rest = await give(connected, FETCH, job_id="a", offset=16000)
        assert rest["result"]["answer"].endswith("5000")
        assert "answer_rest" not in rest["result"]
        files.append(Path(result["answer_rest"].rpartition(" ")[2]))

    files: list[Path] = []
    play(own, scene)
    assert files[0].read_text().split()[-1] == "5000"


@pytest.mark.requirement("R253")
def test_background_work_can_be_disabled(tmp_path: Path) -> None:
    async def scene(connected: Client) -> None:
        said = await refusal(connected, SPAWN, tasks=[task("echo a", "a")], background=True)
        assert "background_disabled" in said
        assert (await give(connected, SPAWN, tasks=[task("echo a", "a")]))["success"]

    more = "    background_subagents: {enabled: false}\n"
    with project(tmp_path, more) as root:
        play(root, scene)


@pytest.mark.requirement("R155", "R169", "R271")
def test_nothing_can_be_spawned_where_that_is_disabled(tmp_path: Path) -> None:
    async def scene(connected: Client) -> None:
        names = [tool.name for tool in (await connected.list_tools()).tools]
        assert SPAWN not in names and len(names) == 7
        with pytest.raises(Exception, match="unknown tool"):
            await connected.call_tool(SPAWN, {"tasks": [task("echo a")]})

    with project(tmp_path, "    enable_subagents: false\n") as root:
        play(root, scene)


@pytest.mark.requirement("R195")
def test_only_the_types_that_are_listed_are_offered(tmp_path: Path) -> None:
    async def scene(connected: Client) -> None:
        tools = {tool.name: tool for tool in (await connected.list_tools()).tools}
        item = tools[SPAWN].input_schema["properties"]["tasks"]["items"]
        assert item["properties"]["subagent_type"]["enum"] == ["novelty"]
        described = item["properties"]["subagent_type"]["description"]
        (content,) = (await connected.read_resource("retinue://types")).contents
        for text in (described, content.text):
            assert "novelty: Propose" in text and "explorer:" not in text
        said = await refusal(connected, SPAWN, tasks=[task("echo a", subagent_type="explorer")])
        assert "novelty" in said

    with project(tmp_path, "    subagent_types: [novelty]\n") as root:
        play(root, scene)


def test_a_closed_task_is_followed_by_the_next(own: Path) -> None:
    async def scene(connected: Client) -> None:
        await give(connected, SPAWN, tasks=[task("echo a", "a")])
        with_root = Root(own)
        with_root.call("task.close", task="mcp")
        await give(connected, SPAWN, tasks=[task("echo b", "b")])
        assert set(with_root.rows("mcp-2")) == {"b"}
        with_root.release()

    play(own, scene)


def test_several_servers_see_the_same_subagents_and_tell_each_end_once(own: Path) -> None:
    async def scene() -> None:
        async with (
            asyncio.timeout(BOUND_S * 2),
            client(own) as one,
            client(own, mode=ERAS[1]) as two,
        ):
            await give(one, SPAWN, tasks=[task("echo a", "a")], background=True)
            waited = await asyncio.gather(
                give(one, WAIT, timeout_seconds=2), give(two, WAIT, timeout_seconds=2)
            )
            told = [each["job_id"] for each in waited if each["job_id"]]
            told += [
                row["subagent_id"] for each in waited for row in each.get("background_results", [])
            ]
            assert told == ["a"]
            listed = await give(two, "list_subagents")
            assert [row["subagent_id"] for row in listed["subagents"]] == ["a"]

    asyncio.run(scene())


def test_the_caller_is_in_the_contract(own: Path) -> None:
    async def scene(connected: Client) -> None:
        meta = {"claudecode/toolUseId": "toolu_1", "threadId": "thread-2"}
        await connected.call_tool(SPAWN, {"tasks": [task("echo a", "a")]}, meta=meta)
        contract = json.loads((own / "tasks/mcp/agents/a/contract.json").read_text())
        caller = contract["parent"]["caller"]
        assert (caller["call"], caller["session"]) == ("toolu_1", "thread-2")
        assert caller["client"].startswith("mcp")

    play(own, scene)
