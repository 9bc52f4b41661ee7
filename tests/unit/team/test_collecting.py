"""Copying files out of the workspaces of subagents."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import NotFound, RetinueError, StewardUnavailable
from retinue.core.ids import MemberId
from retinue.formats.steward_protocol import MOST_FILES
from retinue.team.inbox import Inbox
from retinue.team.tools.delegation_tools import MemberSession, SubagentFiles
from retinue.team.tools.file_tools import MemberFiles, ToolError

THEIRS = "/somewhere/agents/half/workspace"


class Desk(MemberSession):
    """Session that sends every file except the second."""

    def __init__(self, folder: Path, refusal: RetinueError) -> None:
        super().__init__("nowhere", MemberId("one"), list, Inbox(folder))
        self._refusal = refusal
        self.asked: list[str] = []

    async def ask(self, verb: str, **params: Any) -> Any:
        if verb == "files":
            return ["a", "b", "c"]
        self.asked.append(params["path"])
        if params["path"] == "b":
            raise self._refusal
        return {"content": base64.b64encode(b"x").decode()}


def test_a_file_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    desk = Desk(tmp_path, NotFound("'b': a symbolic link", code="unreadable"))
    told = asyncio.run(SubagentFiles(MemberFiles(tmp_path, []), desk).copy(THEIRS, "got"))
    assert told == "copied 2 files of half to got\n[left out: 'b': a symbolic link]"


def test_a_lost_steward_is_an_error_and_not_a_missing_file(tmp_path: Path) -> None:
    desk = Desk(tmp_path, StewardUnavailable("no steward answers"))
    with pytest.raises(ToolError, match="no steward answers"):
        asyncio.run(SubagentFiles(MemberFiles(tmp_path, []), desk).copy(THEIRS, "got"))
    assert desk.asked == ["a", "b"], "nobody is asked for the rest"


def test_an_incomplete_copy_says_so(tmp_path: Path) -> None:
    class Full(Desk):
        async def ask(self, verb: str, **params: Any) -> Any:
            if verb == "files":
                return [str(number) for number in range(MOST_FILES + 1)]
            return await super().ask(verb, **params)

    collector = SubagentFiles(MemberFiles(tmp_path, []), Full(tmp_path, NotFound("")))
    told = asyncio.run(collector.copy(THEIRS, "got"))
    assert told.startswith(f"copied {MOST_FILES} files of half to got\n[there are more")
    listed = asyncio.run(collector.listing(THEIRS, "no such name"))
    assert listed == "no files\n[more files than are shown]"
