"""Variables, standard input and resource limits that a brief gives to its command."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue import BadInput, Brief, Retinue, Task
from support.api import Opening, create, let_go, playing, sh
from support.roots import CONFIG

MODES = pytest.mark.parametrize("mode", ["isolated", "inherited"])


async def create_in(r: Retinue, mode: str) -> Task:
    config = CONFIG.format(limit=8).replace("mode: inherited", f"mode: {mode}")
    return await r.create_task(title="site", config=config)


@MODES
def test_a_command_has_its_variables_and_its_input(opened: Opening, mode: str) -> None:
    async def scene(r: Retinue) -> None:
        task = await create_in(r, mode)
        script = 'printf "%s %s %s " "$MODE" "$HOME" "$PATH"; cat'
        given = {"MODE": "fast ü", "HOME": "/elsewhere", "PATH": "/usr/bin:/bin:/x"}
        batch = await task.run([sh(script, "it", env=given, stdin="two\nlines ü\n")])
        assert batch.results[0].answer == "fast ü /elsewhere /usr/bin:/bin:/x two\nlines ü"
        shown = await r.call("subagent.show", task=task.id, subagent="it")
        assert ["MODE", "fast ü"] in [list(each) for each in shown["contract"]["variables"]]

    playing(scene, opened)


@MODES
def test_a_second_attempt_reads_its_input_from_the_start(opened: Opening, mode: str) -> None:
    async def scene(r: Retinue) -> None:
        task = await create_in(r, mode)
        script = 'cat; [ "$RETINUE_ATTEMPT" = 2 ]'
        batch = await task.run([sh(script, stdin="words", retries=1)])
        assert batch.results[0].answer == "words"

    playing(scene, opened)


@pytest.mark.parametrize(
    ("terms", "code"),
    [
        ({"env": {"RETINUE_ANSWER": "/etc/passwd"}}, "reserved_variable"),
        ({"env": {"LD_PRELOAD": "/tmp/x.so"}}, "reserved_variable"),
        ({"env": {"A=B": "x"}}, "invalid_variable"),
        ({"env": {"A": "x\0y"}}, "invalid_variable"),
        ({"env": {"A": "x" * 200_000}}, "invalid_variable"),
        ({"env": {"A": 1}}, "invalid_request"),
        ({"stdin": "x" * (1024 * 1024 + 1)}, "invalid_request"),
        ({"limits": {"memory_mb": 10**9}}, "limit_too_wide"),
        ({"limits": {"memory_mb": 0}}, "invalid_limit"),
        ({"limits": {"memory": 10}}, "unknown_limit"),
    ],
)
def test_terms_that_cannot_be_given_are_refused_and_nothing_exists(
    opened: Opening, terms: dict[str, Any], code: str
) -> None:
    async def scene(r: Retinue) -> None:
        task = await create(r)
        with pytest.raises(BadInput) as refused:
            await task.spawn([sh("true"), sh("true", **terms)])
        assert refused.value.code == code
        assert await task.subagents() == []

    playing(scene, opened)


@MODES
def test_a_limit_below_the_configured_one_is_in_force(opened: Opening, mode: str) -> None:
    async def scene(r: Retinue) -> None:
        task = await create_in(r, mode)
        batch = await task.run([sh("ulimit -n", limits={"open_files": 77}), sh("ulimit -n")])
        first, second = [result.answer for result in batch.results]
        assert first == "77"
        assert second != "77"

    playing(scene, opened)


def test_results_come_one_by_one_as_they_settle(opened: Opening) -> None:
    async def scene(r: Retinue) -> None:
        task = await create(r)
        await task.run([sh("echo other", "other")])
        slow = sh("while ! [ -e go ]; do sleep 0.02; done; echo slow", "slow")
        spawned = await task.spawn([slow, sh("echo quick", "quick")])
        seen = []
        async for result in task.as_completed(spawned, timeout=20):
            seen.append(result.answer)
            let_go(spawned[0].workspace)
        assert seen == ["quick", "slow"]
        assert [each.answer async for each in task.as_completed(["other"])] == ["other"]
        with pytest.raises(retinue.NotFound):
            [each async for each in task.as_completed(["nobody"])]

    playing(scene, opened)


def test_run_sync_needs_no_event_loop_and_closes_its_task(own: Path, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(CONFIG.format(limit=2))
    batch = retinue.run_sync([Brief(argv=["echo", "hello"])], config=file, root=own)
    assert (batch.success, batch.results[0].answer) == (True, "hello")
    as_dict = {"orchestrator": {"coordination": {"subagent_max_concurrent": 2}}}
    with pytest.raises(BadInput) as refused:
        retinue.run_sync([sh("true") for _ in range(3)], config=as_dict, root=own)
    assert refused.value.code == "too_many_tasks"

    async def look() -> list[str]:
        async with retinue.connect(own) as r:
            return [row["state"] for row in await r.tasks()]

    assert asyncio.run(look()) == ["closed", "closed"]


def test_run_sync_inside_an_event_loop_is_refused() -> None:
    async def scene() -> None:
        retinue.run_sync([sh("true")])

    with pytest.raises(retinue.Refused) as refused:
        asyncio.run(scene())
    assert refused.value.code == "other_loop"


def test_a_plan_can_be_a_dict_or_a_file(opened: Opening, tmp_path: Path) -> None:
    plan = {"goal": "two words", "steps": [{"id": "one", "command": ["echo", "one"]}]}

    async def scene(r: Retinue) -> None:
        first = await r.run_plan(plan, config={})
        assert [each["answer"] for each in first["results"]] == ["one"]
        file = tmp_path / "plan.yaml"
        file.write_text("goal: x\nsteps:\n  - {id: two, command: [echo, two]}\n")
        second = await r.run_plan(file)
        assert [each["answer"] for each in second["results"]] == ["two"]

    playing(scene, opened)
