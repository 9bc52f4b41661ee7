"""Spawning for a parent that ends meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from retinue.core.brief import Brief
from retinue.core.errors import Refused
from retinue.steward.contract_factory import SpawnRequest
from support.fakes import FakeRuntime, exited
from support.stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path / "retinue.db")
    yield stage
    stage.close()


def test_no_subagent_is_spawned_for_a_parent_that_ends_meanwhile(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (parent,) = stage.do(stage.spawn(Brief("work", argv=("true",), id="above", delegation_depth=1)))
    decided = asyncio.Event()

    async def isolation_missing(runtime: FakeRuntime, behind: object) -> None:
        await decided.wait()

    monkeypatch.setattr(FakeRuntime, "isolation_missing", isolation_missing)
    request = SpawnRequest(briefs=[Brief("part", argv=("true",))], base=Path("/"), parent=parent)
    asked = stage.begin(stage.service.spawning.admit(stage.task, request))
    stage.machine.leave("above", final_answer="42")
    stage.machine.end("above", exited(0))
    stage.settle_down()
    decided.set()
    stage.settle_down()
    with pytest.raises(Refused, match="above has ended"):
        asked.result()
    assert [each.id for each in stage.subagents()] == ["above"]
