"""Caching of the status.json of running subagents."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from retinue.core.result import Testimony
from retinue.formats.testimony_json import parse_testimony
from retinue.workspaces.workspace_view import REST, LiveTestimony
from support.roots import until
from support.values import SUBAGENT

LONG_AFTER = 1e12  # seconds: no file was changed shortly before


class Desk:
    """A status.json, and a clock that advances only during parsing or by the test."""

    def __init__(self, folder: Path, now: float = LONG_AFTER) -> None:
        self.path = folder / "full_logs" / "status.json"
        self.path.parent.mkdir()
        self.time = 0.0
        self.parsed = 0
        self.takes = 0.0
        self.live = LiveTestimony(
            lambda task, name: folder, self._parse, lambda: self.time, lambda: now
        )

    def _parse(self, data: bytes) -> Testimony:
        self.parsed += 1
        self.time += self.takes
        return parse_testimony(data)

    def write(self, percentage: int) -> None:
        text = f'{{"coordination": {{"completion_percentage": {percentage}}}}}'
        new = self.path.with_name("new")
        new.write_text(text)
        new.rename(self.path)

    def shown(self) -> float | None:
        said = self.live.read_latest(SUBAGENT)
        return None if said is None else said.completion_percentage


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_an_unchanged_file_is_parsed_once(desk: Desk) -> None:
    desk.write(10)
    assert [desk.shown() for _ in range(100)] == [10] * 100
    assert desk.parsed == 1


def test_a_changed_file_is_parsed_again(desk: Desk) -> None:
    for percentage in (10, 20, 30):
        desk.write(percentage)
        assert desk.shown() == percentage


def test_a_change_is_noticed_although_the_child_restores_the_mtime(desk: Desk) -> None:
    desk.write(10)
    before = desk.path.stat()
    assert desk.shown() == 10

    def rewritten() -> bool:
        desk.path.write_bytes(desk.path.read_bytes().replace(b"10", b"20"))
        os.utime(desk.path, ns=(before.st_atime_ns, before.st_mtime_ns))
        return desk.path.stat().st_ctime_ns > before.st_ctime_ns

    until(rewritten)  # in another tick of the kernel's clock
    assert desk.path.stat().st_size == before.st_size
    assert desk.shown() == 20


def test_a_file_changed_just_now_does_not_count_as_settled(tmp_path: Path) -> None:
    desk = Desk(tmp_path, now=0.0)
    desk.write(10)
    assert [desk.shown() for _ in range(5)] == [10] * 5
    assert desk.parsed == 5


def test_a_file_that_is_slow_to_parse_is_parsed_rarely(desk: Desk) -> None:
    desk.takes = 0.05
    desk.write(10)
    assert desk.shown() == 10
    for _ in range(50):
        desk.write(20)
        assert desk.shown() == 10
    assert desk.parsed == 1
    desk.time += REST * desk.takes
    assert desk.shown() == 20
    assert desk.parsed == 2


def test_a_half_written_file_keeps_the_last_testimony(desk: Desk) -> None:
    desk.write(10)
    assert desk.shown() == 10
    desk.path.write_text("{")
    assert desk.shown() == 10
    desk.path.unlink()
    assert desk.shown() == 10
