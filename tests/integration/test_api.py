"""The Python API, in-process and through a steward: one behaviour, two carriers."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any, Literal, get_origin

import pytest

import retinue
from retinue import (
    BadInput,
    Brief,
    LimitExceeded,
    NotFound,
    NothingToWaitFor,
    Refused,
    Retinue,
    StewardUnavailable,
    WaitTimedOut,
)
from retinue.core.errors import KINDS
from support.api import (
    BOUND_S,
    Opening,
    create,
    let_go,
    playing,
    sh,
    statuses,
    until,
    until_async,
)
from support.roots import CONFIG

ASKS = 'printf \'{"status":"blocked","questions":["which?"]}\' > "$RETINUE_FINAL"'


@pytest.mark.requirement("R14", "R22", "R37", "R41")
def test_a_spawned_one_is_waited_for_and_its_result_read(opened: Opening) -> None:
    async def scene(r: Retinue) -> None:
        task = await create(r)
        slow, quick = await task.spawn([sh("sleep 60", "slow"), sh("echo forty-two", "quick")])
        assert (slow.id, quick.id, slow.status) == ("slow", "quick", "running")
        assert await task.wait_any(timeout=20) == retinue.Settled("quick", "completed")
        result = await task.result("quick")
        assert (result.success, result.answer, result.workspace) == (
            True,
            "forty-two",
            quick.workspace,
        )
        cancelled = await task.cancel("slow", kill=True)
        for each, spawned in ((result, quick), (cancelled, slow)):
            assert each.workspace_path == each.workspace == spawned.workspace

    playing(scene, opened)


@pytest.mark.requirement("R149", "R204", "R205", "R206")
def test_a_blocking_call_gives_the_results_of_all_in_its_order(opened: Opening) -> None:
    async def scene(r: Retinue) -> None:
        task = await create(r)
        batch = await task.run([sh("sleep 0.2; echo one"), sh("exit 3"), sh("echo three")])
        assert [result.answer for result in batch.results] == ["one", None, "three"]
        assert batch.results[1].error.startswith("exited with code 3")
        assert not batch.success
        assert (batch.summary["total"], batch.summary["completed"], batch.summary["failed"]) == (
            3,
            2,
            1,
        )
        settled = await task.wait_all(timeout=20)
        assert [each.status for each in settled] == ["completed", "failed", "completed"]

    playing(scene, opened)


@pytest.mark.requirement("R36", "R38", "R39")
def test_a_wait_ends_with_its_own_time_and_gives_everyone_once(opened: Opening) -> None:
    async def scene(r: Retinue) -> None:
        task = await r.create_task(
            title="site", config=CONFIG.format(limit=8), timeout_seconds=3000
        )
        await task.spawn([sh(ASKS, "asks"), sh("exit 1", "fails"), sh("echo x", "completes")])
        seen = [await task.wait_any(timeout=5) for _ in range(3)]
        assert {each.id: each.status for each in seen} == {
            "asks": "blocked",
            "fails": "failed",
            "completes": "completed",
        }
        assert await task.wait_any(timeout=5, consumer="other", peek=True) == seen[0]
        assert await task.wait_any(timeout=5, consumer="other") == seen[0]
        await task.spawn([sh("sleep 60", "runs")])
        with pytest.raises(WaitTimedOut):
            await task.wait_any(timeout=0.1)
        waiting = asyncio.create_task(task.wait_any(timeout=20))
        await task.cancel("runs", reason="enough")
        assert await waiting == retinue.Settled("runs", "cancelled")

    playing(scene, opened)


def test_a_wait_returns_at_once_if_nothing_runs_and_all_results_were_delivered(
    opened: Opening,
) -> None:
    async def scene(r: Retinue) -> None:
        task = await create(r)
        with pytest.raises(NothingToWaitFor):  # and not after the hour that a task gives
            await task.wait_any()
        await task.run([sh("echo x", "bio")])
        assert (await task.wait_any(peek=True)).id == "bio"
        assert (await task.wait_any()).id == "bio"
        with pytest.raises(NothingToWaitFor) as refused:
            await task.wait_any()
        assert (refused.value.code, refused.value.exit_code) == ("nothing_to_wait_for", 4)
        assert (await task.wait_any(consumer="other")).id == "bio"
        await task.spawn([sh(ASKS, "asks")])
        assert (await task.wait_any()).status == "blocked"
        with pytest.raises(NothingToWaitFor) as refused:
            await task.wait_any()
        assert "asks is blocked" in refused.value.hint

    playing(scene, opened)


@pytest.mark.requirement("R43")
def test_a_cancelled_subagent_returns_its_partial_result(opened: Opening) -> None:
    async def scene(r: Retinue) -> None:
        task = await create(r)
        script = 'printf so-far > "$RETINUE_ANSWER"; echo half > note; sleep 60'
        (spawned,) = await task.spawn([sh(script, "docs")])
        note = Path(spawned.workspace, "note")
        await until(lambda: note.exists() and note.read_text() == "half\n")
        result = await task.cancel("docs", reason="not needed")
        assert (result.status, result.success, result.answer) == ("cancelled", False, "so-far")
        assert "not needed" in result.error
        with pytest.raises(Refused) as refused:
            await task.cancel("docs")
        assert refused.value.code == "already_cancelled"

    playing(scene, opened)


def test_a_blocked_one_goes_on_with_the_answer_in_its_brief(opened: Opening) -> None:
    async def scene(r: Retinue) -> None:
        task = await create(r)
        script = f'if [ $RETINUE_ATTEMPT = 1 ]; then {ASKS}; else cat "$RETINUE_BRIEF"; fi'
        await task.spawn([sh(script, "asks")])
        assert await task.wait_any(timeout=20) == retinue.Settled("asks", "blocked")
        assert (await task.result("asks")).questions == ("which?",)
        went_on = await task.continue_("asks", "take the red one")
        assert went_on.id == "asks"
        assert await task.wait_any(timeout=20) == retinue.Settled("asks", "completed")
        assert "take the red one" in str((await task.result("asks")).answer)

    playing(scene, opened)


def test_a_closed_one_has_a_successor_in_the_same_workspace(opened: Opening) -> None:
    async def scene(r: Retinue) -> None:
        task = await create(r)
        script = 'echo made >> made; cat made; tail -1 "$RETINUE_BRIEF"'
        first = (await task.run([sh(script, "bio")])).results[0]
        successor = await task.continue_("bio", "once more")
        assert successor.id != "bio"
        await task.wait_all(timeout=20)
        second = await task.result(successor.id)
        assert second.workspace == first.workspace
        assert str(second.answer).splitlines() == ["made", "made", "once more"]

    playing(scene, opened)


def test_a_second_continue_goes_on_from_the_first(opened: Opening) -> None:
    async def scene(r: Retinue) -> None:
        task = await create(r)
        await task.run([sh('cat "$RETINUE_BRIEF"', "bio")])
        for message in ("more", "and more"):
            newest = await task.continue_("bio", message)
            await task.wait_all(timeout=20)
        answer = str((await task.result(newest.id)).answer)
        assert answer.endswith("\n\nmore\n\nand more")

    playing(scene, opened)


def test_events_are_read_from_a_number_on_and_followed_to_the_end(opened: Opening) -> None:
    async def scene(r: Retinue) -> None:
        task = await create(r)
        follower = asyncio.create_task(collect(task.events(follow=True)))
        await task.run([sh("echo x", "bio")])
        await task.close()
        followed = await follower
        listed = await collect(task.events())
        assert followed == listed
        assert [event["seq"] for event in listed] == list(range(1, len(listed) + 1))
        assert listed[-1]["type"] == "task.closed"
        assert await collect(task.events(since=5)) == listed[5:]

    playing(scene, opened)


async def collect(stream: AsyncIterator[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event async for event in stream]


def test_a_follower_that_stops_listening_leaves_the_others_alone(opened: Opening) -> None:
    async def scene(r: Retinue) -> None:
        task = await create(r)
        async for event in task.events(follow=True):
            assert event["seq"] == 1
            break
        assert (await task.run([sh("echo x")])).success
        assert len(await r.tasks()) == 1

    playing(scene, opened)


def test_a_closed_task_takes_no_more_work(opened: Opening) -> None:
    async def scene(r: Retinue) -> None:
        task = await create(r)
        await task.spawn([sh("sleep 60", "runs")])
        with pytest.raises(Refused) as running:
            await task.close()
        assert running.value.code == "task_running"
        await task.cancel("runs", kill=True)
        await task.close()
        await task.close()
        with pytest.raises(Refused) as closed:
            await task.spawn([sh("echo x")])
        assert closed.value.code == "task_closed"
        (listed,) = await r.tasks()
        assert (listed["state"], listed["outcome"]) == ("closed", "failed")

    playing(scene, opened)


def test_refusals_are_typed_and_carry_the_codes_of_the_command_line(opened: Opening) -> None:
    async def scene(r: Retinue) -> None:
        task = await create(r, limit=1)
        await task.spawn([sh("sleep 60", "runs")])
        refusals: list[tuple[Awaitable[object], type[Exception], str]] = [
            (task.spawn([sh("echo x")]), LimitExceeded, "limit_exceeded"),
            (task.spawn([sh("x"), sh("y")]), BadInput, "too_many_tasks"),
            (task.spawn([sh("echo x", "../x")]), BadInput, "invalid_id"),
            (task.spawn([sh("x", timeout_seconds=-1)]), BadInput, "invalid_timeout"),
            (task.spawn([Brief(" ")]), BadInput, "invalid_request"),
            (task.result("runs"), NotFound, "no_result_yet"),
            (task.result("nobody"), NotFound, "unknown_subagent"),
            (r.task("nothing").wait_any(timeout=1), NotFound, "unknown_task"),
            (task.continue_("runs", "go on"), Refused, "not_settled"),
            (r.create_task(title=" "), BadInput, "invalid_request"),
            (r.create_task(title="x", config="a: ["), BadInput, "bad_yaml"),
            (r.create_task(title="x", max_concurrent=0), BadInput, "bad_config"),
            (r.call("no.such.verb"), BadInput, "unknown_verb"),
        ]
        for asked, kind, code in refusals:
            with pytest.raises(kind) as refused:
                await asked
            assert isinstance(refused.value, retinue.RetinueError)
            assert refused.value.code == code, refused.value.message
        await task.cancel("runs", kill=True)

    playing(scene, opened)


def test_a_misspelled_verb_or_parameter_is_not_blamed_on_the_steward_alone(opened: Opening) -> None:
    async def scene(r: Retinue) -> None:
        task = await create(r)
        for asked in (r.call("task.shoe", task=task.id), r.call("task.show", task=task.id, many=1)):
            with pytest.raises(BadInput) as refused:
                await asked
            assert "misspelled" in refused.value.hint

    playing(scene, opened)


def test_a_cancelled_blocking_call_cancels_its_children(opened: Opening) -> None:
    async def scene(r: Retinue) -> None:
        task = await create(r)
        await task.spawn([sh("sleep 60", "other")])
        call = asyncio.create_task(task.run([sh("sleep 60", "one"), sh("sleep 60", "two")]))
        await until_async(
            lambda: statuses(task), {"other": "running", "one": "running", "two": "running"}
        )
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        ended = {"other": "running", "one": "cancelled", "two": "cancelled"}
        assert await statuses(task) == ended, "it ends after those it takes along"
        assert "its caller is gone" in (await task.result("one")).error
        await task.cancel("other", kill=True)

    playing(scene, opened)


def test_a_cancelled_wait_takes_nothing_away(opened: Opening) -> None:
    async def scene(r: Retinue) -> None:
        task = await create(r)
        await task.spawn([sh("sleep 0.3; echo x", "bio")])
        waiting = asyncio.create_task(task.wait_any(timeout=20))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await task.wait_any(timeout=5) == retinue.Settled("bio", "completed")

    playing(scene, opened)


@pytest.mark.requirement("R251")
def test_background_children_outlive_their_caller(own: Path, opened: Opening) -> None:
    async def leave() -> str:
        async with opened() as r:
            task = await create(r)
            await task.spawn([sh("while ! test -e go; do sleep 0.02; done; echo late", "bio")])
            return task.id

    async def come_back(name: str) -> None:
        async with opened() as r:
            task = r.task(name)
            (row,) = await task.subagents()
            assert row["status"] == "running"
            let_go(row["workspace"])
            assert await task.wait_any(timeout=20) == retinue.Settled("bio", "completed")
            assert (await task.result("bio")).answer == "late"

    name = asyncio.run(leave())
    asyncio.run(come_back(name))


def test_a_second_holder_is_refused_and_the_first_is_named(own: Path) -> None:
    async def scene() -> None:
        async with retinue.open(own):
            with pytest.raises(StewardUnavailable) as second:
                async with retinue.open(own):
                    pass
            assert second.value.code == "root_held"
            assert "retinue.connect()" in second.value.hint and "end that" in second.value.hint
            assert str(os.getpid()) in second.value.message
            with pytest.raises(StewardUnavailable) as connecting:
                async with retinue.connect(own):
                    pass
            assert connecting.value.code == "root_held"
            assert connecting.value.hint.startswith("end the program that holds it")
        async with retinue.connect(own) as r:
            pid = (await r.call("steward.status"))["pid"]
            with pytest.raises(StewardUnavailable, match=str(pid)):
                async with retinue.open(own):
                    pass

    asyncio.run(scene())


def test_a_client_of_a_dead_steward_goes_on_with_a_new_one(own: Path) -> None:
    async def scene() -> None:
        async with retinue.connect(own) as r:
            task = await create(r)
            await task.spawn([sh("sleep 0.3; echo survived", "bio")])
            os.kill((await r.call("steward.status"))["pid"], signal.SIGKILL)
            assert (await task.wait_any(timeout=20)).status == "completed"
            assert (await task.result("bio")).answer == "survived"

    asyncio.run(scene())


def test_children_of_a_holder_that_was_killed_are_adopted_by_the_next(own: Path) -> None:
    script = (
        "import asyncio, os, retinue, signal, sys\n"
        "async def main():\n"
        "    async with retinue.open(sys.argv[1]) as r:\n"
        "        task = await r.create_task(title='t', config=sys.argv[2])\n"
        "        argv = ['sh', '-c', 'while ! test -e go; do sleep 0.02; done; echo adopted']\n"
        "        (bio,) = await task.spawn([retinue.Brief(argv=argv, id='bio', retries=0)])\n"
        "        print(task.id, bio.workspace, flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    words = [sys.executable, "-c", script, str(own), CONFIG.format(limit=2)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=BOUND_S)
    name, workspace = done.stdout.split()

    async def adopt() -> None:
        async with retinue.open(own) as r:
            task = r.task(name)
            assert [row["status"] for row in await task.subagents()] == ["running"]
            let_go(workspace)
            assert (await task.wait_any(timeout=20)).status == "completed"
            assert (await task.result("bio")).answer == "adopted"
            shown = await r.call("subagent.show", task=name, subagent="bio")
            assert len(shown["attempts"]) == 1

    asyncio.run(adopt())


@pytest.mark.requirement("R161", "R196")
def test_what_a_call_is_told_beside_its_subject_is_a_warning_where_it_was_made(
    opened: Opening,
) -> None:
    async def scene(r: Retinue) -> None:
        unknown = CONFIG.format(limit=2) + "    subagent_types: [explorer, nobody]\n"
        with pytest.warns(UserWarning, match="there is no subagent type 'nobody'") as told:
            await r.create_task(title="site", config=unknown)
        assert [each.filename for each in told] == [__file__]
        task = await create(r)
        with pytest.warns(UserWarning, match="bio has 600 s for an attempt, not 700 s") as told:
            await task.run([sh("echo x", "bio", timeout_seconds=700)])
        assert [each.filename for each in told] == [__file__]

    playing(scene, opened)


def test_every_key_of_a_row_is_documented(opened: Opening) -> None:
    page = (
        Path(__file__).parents[2].joinpath("docs/reference/python.md").read_text(encoding="utf-8")
    )
    words = set(re.findall(r"`([^`]+)`", page.partition("\n## Rows\n")[2]))

    async def scene(r: Retinue) -> None:
        task = await create(r)
        await task.run([sh("echo x", "ended")])
        await task.spawn([sh("sleep 60", "runs")])
        (listed,) = await r.tasks()
        for row in (listed, listed["counts"], *await task.subagents()):
            assert set(row) <= words
        await task.cancel("runs", kill=True)

    playing(scene, opened)


def test_the_public_names_are_typed_and_listed() -> None:
    for name in retinue.__all__:
        value = getattr(retinue, name)
        # A Literal has no docstring; the reference lists its values.
        assert value.__doc__ or get_origin(value) is Literal, f"{name} is not documented"
    assert set(KINDS) <= set(retinue.__all__), "every error can be caught by a public name"
    with pytest.raises(AttributeError):
        _ = retinue.nothing_of_the_kind
    assert Path(str(retinue.__file__)).with_name("py.typed").exists()


def test_a_program_lends_its_own_python_with_its_packages(opened: Opening) -> None:
    async def scene(r: Retinue) -> None:
        task = await create(r)
        words = ["python3", "-c", "import pytest, sys; print(sys.prefix)"]
        (result,) = (await task.run([Brief(argv=words, python=True, retries=0)])).results
        assert result.answer.strip() == sys.prefix, result

    playing(scene, opened)
