"""Budgets of delegated subagents: shares of what their parent has left."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from retinue.core.brief import Brief
from retinue.core.budget import Budget
from retinue.core.subagent import Subagent
from retinue.core.task_config import TaskConfig
from retinue.steward.contract_factory import SpawnRequest
from support.fakes import FakeMachine, FakeRuntime, FakeTasks
from support.stage import Stage, make_contract_factory


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[tuple[Stage, Subagent]]:
    stage = Stage(tmp_path / "retinue.db")
    brief = Brief("work", argv=("true",), id="parent", delegation_depth=1)
    (made,) = stage.do(stage.spawned(_request([brief])))
    yield stage, made
    stage.close()


def _request(briefs: list[Brief], parent: Subagent | None = None) -> SpawnRequest:
    return SpawnRequest(briefs=briefs, base=Path("/"), parent=parent)


@pytest.mark.parametrize(
    ("children", "asked", "given"),
    [
        (1, Budget(), Budget(tokens=300, turns=3)),
        (2, Budget(), Budget(tokens=200, turns=2)),
        (1, Budget(tokens=50, usd=1.0), Budget(tokens=50, usd=1.0, turns=3)),
    ],
)
def test_each_subagent_gets_a_share_and_the_parent_keeps_one(
    parent: tuple[Stage, Subagent], children: int, asked: Budget, given: Budget
) -> None:
    stage, above = parent
    tasks = FakeTasks(TaskConfig(max_concurrent=9, min_timeout_ms=1, budget=asked))
    left = Budget(tokens=600, turns=6)
    factory = make_contract_factory(tasks, FakeRuntime(FakeMachine()), lambda each: left)
    briefs = [Brief("part", argv=("true",)) for _ in range(children)]
    task = stage.records.get_task(stage.task)
    admission = asyncio.run(factory.make_admission(task, _request(briefs, above)))
    assert [draft.contract.budget for draft in admission.drafts] == [given] * children


def test_the_budget_of_a_parent_is_read_once_per_call(
    parent: tuple[Stage, Subagent],
) -> None:
    stage, above = parent
    asked: list[Subagent] = []

    def left(subagent: Subagent) -> Budget:
        asked.append(subagent)
        return Budget(tokens=1510)

    tasks = FakeTasks(TaskConfig(max_concurrent=200, min_timeout_ms=1))
    factory = make_contract_factory(tasks, FakeRuntime(FakeMachine()), left)
    briefs = [Brief("part", argv=("true",)) for _ in range(150)]
    task = stage.records.get_task(stage.task)
    admission = asyncio.run(factory.make_admission(task, _request(briefs, above)))
    assert {draft.contract.budget.tokens for draft in admission.drafts} == {10}
    assert asked == [above]
