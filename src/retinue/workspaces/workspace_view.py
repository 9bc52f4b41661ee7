"""Read access to a subagent's output, for people and parents. Everything read is a claim."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from retinue.clock import format_timestamp
from retinue.core.data_structures import BoundedDict
from retinue.core.errors import NotFound
from retinue.core.ids import MemberId, TaskId
from retinue.core.result import Testimony
from retinue.core.safe_text import clean_text
from retinue.core.subagent import Subagent
from retinue.core.voting import SNAPSHOTS, TEMPORARY, WINNER
from retinue.files import is_whiteout
from retinue.formats.steward_protocol import MOST_FILES
from retinue.formats.testimony_json import entry_from_line, parse_testimony
from retinue.workspaces.agent_folder import CONVERSATION, FolderWorkspace
from retinue.workspaces.child_files import (
    JSON_LIMIT_BYTES,
    ChildFile,
    MissingFile,
    TreeWalk,
    UnreadableFile,
    open_child_file,
    read_child_file,
    read_child_tail,
    read_testimony,
    to_identity,
)
from retinue.workspaces.git.merge import PATCH
from retinue.workspaces.overlay import find_holder, list_names

MAX_FILES = 500
MAX_LOOKED_AT = 20_000  # names visited in a workspace, changed or not
MAX_DEPTH = 12
CONVERSATION_BYTES = 512 * 1024
MAX_ENTRIES = 200
SHOWN_BYTES = 256 * 1024
NOT_THEIRS = {".git"}
CLOCK_REALTIME_COARSE = 5  # missing in Python's time module


@dataclass(frozen=True, kw_only=True)
class ListedFile:
    """A file written since the subagent started."""

    path: str
    kind: str  # file, link or other
    size: int
    modified_at: str


class WorkspaceInspector:
    def __init__(self, workspaces: FolderWorkspace) -> None:
        self._workspaces = workspaces

    def read_output(self, subagent: Subagent, stream: str, attempt: int, limit: int) -> ChildFile:
        """Return the end of an attempt's output stream; empty without one."""
        folder = self._workspaces.find_runtime_folder(subagent, attempt)
        try:
            return read_child_tail(folder, f"{stream}.log", limit)
        except UnreadableFile:
            return ChildFile(data=b"", cut=False)

    def read_team(self, subagent: Subagent) -> tuple[Testimony | None, dict[MemberId, str]]:
        """Return the team's testimony, and the newest answer of each member."""
        return read_testimony(self._get_folder(subagent) / "full_logs")

    def read_entries(self, subagent: Subagent) -> tuple[list[dict[str, Any]], bool]:
        """Return the newest conversation entries, oldest first, and whether there are older ones.

        While a team works, the entries are those of its current attempt; all attempts are
        combined at the end.
        """
        folder = self._get_folder(subagent)
        at_work = subagent.contract.team is not None and subagent.standing.in_attempt
        try:
            place = folder / "full_logs" if at_work else folder
            tail = read_child_tail(place, CONVERSATION, CONVERSATION_BYTES)
        except UnreadableFile:
            return [], False
        # After a cut the first line is incomplete.
        lines = tail.data.split(b"\n")[1 if tail.cut else 0 :]
        entries = [entry for line in lines if (entry := entry_from_line(line)) is not None]
        return entries[-MAX_ENTRIES:], tail.cut or len(entries) > MAX_ENTRIES

    def list_files(self, subagent: Subagent) -> tuple[list[ListedFile], bool]:
        """Return files written in the workspace since the start, and whether there are more."""
        top = self._workspaces.find_workspace(subagent)
        since = _find_tick_before(subagent.started_at)
        found = list(islice((each for each in _walk(top) if each.modified_at >= since), MAX_FILES))
        return sorted(found, key=lambda each: each.path), len(found) == MAX_FILES

    def read_file(self, subagent: Subagent, path: str) -> ChildFile:
        """Return the beginning of a file in the workspace.

        Raises:
            NotFound: there is no such file, or it cannot be shown.
        """
        top = find_holder(self._workspaces.find_workspace(subagent), path)
        try:
            return read_child_file(top, path, SHOWN_BYTES, cut=True)
        except MissingFile:
            raise NotFound(f"no file {path[:200]!a}", code="unknown_file") from None
        except UnreadableFile as refusal:
            raise NotFound(f"not shown: {refusal}", code="unreadable_file") from None

    def read_patch(self, subagent: Subagent) -> ChildFile | None:
        """Return the beginning of the patch with the subagent's changes; None if there is none."""
        try:
            folder = self._get_folder(subagent) / "artifacts"
            return read_child_file(folder, PATCH, SHOWN_BYTES, cut=True)
        except UnreadableFile:
            return None

    def _get_folder(self, subagent: Subagent) -> Path:
        return self._workspaces.get_folder(subagent.task, subagent.id)


def _find_tick_before(moment: str) -> str:
    """Return the time one clock tick earlier: file times are those of the kernel's last tick."""
    if not moment:
        return ""
    seconds = datetime.fromisoformat(moment).timestamp()
    return format_timestamp(seconds - time.clock_getres(CLOCK_REALTIME_COARSE))


def _walk(top: Path) -> Iterator[ListedFile]:
    """Yield every file below, up to a limit."""
    for folder in TreeWalk(top, most=MAX_LOOKED_AT):
        deep = folder.path.count("/") >= MAX_DEPTH
        folder.enter[:] = [] if deep else [each for each in folder.enter if each not in NOT_THEIRS]
        for entry in folder.entries:
            with suppress(OSError):  # removed in the meantime
                status = entry.stat(follow_symlinks=False)
                if not (
                    entry.name in NOT_THEIRS or stat.S_ISDIR(status.st_mode) or is_whiteout(status)
                ):
                    yield _to_listed_file(folder.path + entry.name, status)


def _to_listed_file(path: str, status: os.stat_result) -> ListedFile:
    kinds = {stat.S_IFREG: "file", stat.S_IFLNK: "link"}
    return ListedFile(
        path=clean_text(path),
        kind=kinds.get(stat.S_IFMT(status.st_mode), "other"),
        size=status.st_size,
        modified_at=format_timestamp(status.st_mtime),
    )


MAX_KEPT = 4096
# A file that changed so recently may change again within the same tick of the kernel's clock,
# which would leave its identity the same.
SETTLED_SECONDS = 0.05
REST = 20  # pause before a file is parsed again, as a multiple of the last parse time


@dataclass(frozen=True, kw_only=True)
class TestimonyReading:
    """Last reading of one status.json."""

    identity: tuple[int, ...]
    settled: bool  # whether every later change also changes the identity
    again_at: float  # time of the clock from which it may be parsed again
    said: Testimony | None  # the last valid testimony


class LiveTestimony:
    """Reader of the status.json of running subagents.

    If a child is in the middle of writing, its last complete testimony counts. Parsing takes only
    a small part of the steward's time, however large the file is and however often it is
    requested: an unchanged file is not parsed again, and a changing one only after a pause.
    """

    def __init__(
        self,
        folder_of: Callable[[TaskId, str], Path],
        parse: Callable[[bytes], Testimony] = parse_testimony,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._folder_of = folder_of
        self._parse = parse
        self._clock = clock
        self._now = now  # wall clock, as in file times
        self._looks = BoundedDict[tuple[str, str, int], TestimonyReading](MAX_KEPT)

    def read_latest(self, subagent: Subagent) -> Testimony | None:
        key = (subagent.task, subagent.id, subagent.standing.attempt)
        logs = self._folder_of(subagent.task, subagent.id) / "full_logs"
        last = self._looks.get(key)
        if last is not None and self._clock() < last.again_at:
            return last.said
        try:
            with open_child_file(logs, "status.json") as (_, status):
                found = to_identity(status)
            if last is not None and last.settled and last.identity == found:
                return last.said
            data = read_child_file(logs, "status.json", JSON_LIMIT_BYTES).data
        except UnreadableFile:
            return last.said if last else None
        began = self._clock()
        seen = self._parse(data)
        ended = self._clock()
        whole = seen.phase is not None or not seen.problem
        changed = max(status.st_mtime, status.st_ctime)
        self._looks[key] = look = TestimonyReading(
            identity=found,
            settled=self._now() - changed > SETTLED_SECONDS,
            again_at=ended + REST * (ended - began),
            said=seen if whole else (last.said if last else None),
        )
        return look.said


MOST_BYTES = 16 * 1024 * 1024  # per file


class WorkspaceReader:
    def __init__(self, workspace_of: Callable[[Subagent], Path]) -> None:
        self._workspace_of = workspace_of

    def read_file(self, subagent: Subagent, path: str) -> bytes:
        """Return the current content of a file.

        Raises:
            NotFound: there is no plain file, or it is too large.
        """
        try:
            place = find_holder(self._workspace_of(subagent), path)
            return read_child_file(place, path, MOST_BYTES).data
        except UnreadableFile as refusal:
            raise NotFound(f"{path[:200]!a}: {refusal}", code="unreadable") from None

    def list_files(self, subagent: Subagent, inside: str = "") -> list[str]:
        """Return the names of plain files in the workspace, or in one folder of it, up to a limit.

        For a file, return its own name; for a missing path, nothing. Files of git and private
        files of a team are left out. Links are not followed.
        """
        workspace = self._workspace_of(subagent)
        return list_names(workspace, MOST_FILES + 1, _list_team_paths(workspace, subagent), inside)


def _list_team_paths(workspace: Path, subagent: Subagent) -> list[str]:
    """Return the folders that a team keeps for itself in its workspace.

    Once there is a winner, its work lies outside of the members' folders, so these are included.
    """
    contract = subagent.contract
    members = [name for name, _ in contract.list_members(subagent.id)]
    if len(members) < 2:
        return []
    decided = (workspace / contract.members_folder / SNAPSHOTS / WINNER).is_symlink()
    own = map(contract.find_member_folder, members if decided else ())
    return [
        *own,
        *(f"{contract.members_folder}/{name}".lstrip("/") for name in (SNAPSHOTS, TEMPORARY)),
    ]
