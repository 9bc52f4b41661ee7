"""What a subagent leaves behind, for whoever wants to look: claims, read with distrust."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from retinue.domain.errors import NotFound
from retinue.domain.ids import MemberId
from retinue.domain.recovery import Testimony
from retinue.domain.result import clean_text
from retinue.domain.subagent import Subagent
from retinue.files import is_mark
from retinue.wire.conversation import entry_from_line
from retinue.wire.views import timestamp
from retinue.workspaces.folder import FolderWorkspace
from retinue.workspaces.layers import holder_of
from retinue.workspaces.patches import PATCH
from retinue.workspaces.reader import (
    ChildFile,
    Missing,
    Unreadable,
    read_child_file,
    read_child_tail,
    read_testimony,
)
from retinue.workspaces.removal import FOLDER
from retinue.workspaces.sessions import CONVERSATION

MAX_FILES = 500
MAX_LOOKED_AT = 20_000  # names in a workspace, changed or not
MAX_DEPTH = 12
CONVERSATION_BYTES = 512 * 1024
MAX_ENTRIES = 200
SHOWN_BYTES = 256 * 1024
NOT_THEIRS = {".git"}
CLOCK_REALTIME_COARSE = 5  # for which Python has no name


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A file that was written since the subagent began."""

    path: str
    kind: str  # file, link or other
    size: int
    modified_at: str


class Inspection:
    def __init__(self, workspaces: FolderWorkspace) -> None:
        self._workspaces = workspaces

    def output(self, subagent: Subagent, stream: str, attempt: int, limit: int) -> ChildFile:
        """The end of what an attempt printed; nothing where it printed nothing."""
        folder = self._workspaces.runtime_folder_of(subagent, attempt)
        try:
            return read_child_tail(folder, f"{stream}.log", limit)
        except Unreadable:
            return ChildFile(data=b"", cut=False)

    def team(self, subagent: Subagent) -> tuple[Testimony | None, dict[MemberId, str]]:
        """What the team says of itself, and the newest answer of each member."""
        return read_testimony(self._folder(subagent) / "full_logs")

    def conversation(self, subagent: Subagent) -> tuple[list[dict[str, Any]], bool]:
        """The newest entries, oldest first, and whether there are older ones.

        While a team is at work, those of its present attempt: ours are put together at its end.
        """
        folder = self._folder(subagent)
        at_work = subagent.contract.team is not None and subagent.standing.in_attempt
        try:
            place = folder / "full_logs" if at_work else folder
            tail = read_child_tail(place, CONVERSATION, CONVERSATION_BYTES)
        except Unreadable:
            return [], False
        lines = tail.data.split(b"\n")[1 if tail.cut else 0 :]
        entries = [entry for line in lines if (entry := entry_from_line(line)) is not None]
        return entries[-MAX_ENTRIES:], tail.cut or len(entries) > MAX_ENTRIES

    def files(self, subagent: Subagent) -> tuple[list[Listed], bool]:
        """What was written in its workspace since it began, and whether there is more."""
        top = self._workspaces.workspace_of(subagent)
        since = _tick_before(subagent.started_at)
        found = list(islice((each for each in _walk(top) if each.modified_at >= since), MAX_FILES))
        return sorted(found, key=lambda each: each.path), len(found) == MAX_FILES

    def file(self, subagent: Subagent, path: str) -> ChildFile:
        """The beginning of a file in its workspace.

        Raises:
            NotFound: there is none that can be shown.
        """
        top = holder_of(self._workspaces.workspace_of(subagent), path)
        try:
            return read_child_file(top, path, SHOWN_BYTES, cut=True)
        except Missing:
            raise NotFound(f"no file {path[:200]!a}", code="unknown_file") from None
        except Unreadable as refusal:
            raise NotFound(f"not shown: {refusal}", code="unreadable_file") from None

    def patch(self, subagent: Subagent) -> ChildFile | None:
        """The beginning of what it changed in a repository, once that was taken."""
        try:
            folder = self._folder(subagent) / "artifacts"
            return read_child_file(folder, PATCH, SHOWN_BYTES, cut=True)
        except Unreadable:
            return None

    def _folder(self, subagent: Subagent) -> Path:
        return self._workspaces.folder_of(subagent.task, subagent.id)


def _tick_before(moment: str) -> str:
    """The time of a file is that of the kernel's last tick."""
    if not moment:
        return ""
    seconds = datetime.fromisoformat(moment).timestamp()
    return timestamp(seconds - time.clock_getres(CLOCK_REALTIME_COARSE))


def _walk(top: Path) -> Iterator[Listed]:
    """Every file below, by descriptors: no link is followed, and no more than so many."""
    looked_at = 0
    try:
        folders = [("", os.open(top, FOLDER))]
    except OSError:
        return
    try:
        while folders and looked_at < MAX_LOOKED_AT:
            prefix, here = folders.pop()
            try:
                names = _names(here, MAX_LOOKED_AT - looked_at)
                looked_at += len(names)
                for name, status in names:
                    if stat.S_ISDIR(status.st_mode):
                        folders += _below(here, prefix, name)
                    elif not is_mark(status):
                        yield _listed(prefix + name, status)
            finally:
                os.close(here)
    finally:
        for _, left in folders:
            os.close(left)


def _names(folder: int, most: int) -> list[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        found = [entry.name for entry in islice(entries, most) if entry.name not in NOT_THEIRS]
    known = []
    for name in sorted(found):
        try:
            known.append((name, os.stat(name, dir_fd=folder, follow_symlinks=False)))
        except OSError:  # gone meanwhile
            continue
    return known


def _below(here: int, prefix: str, name: str) -> list[tuple[str, int]]:
    if prefix.count("/") >= MAX_DEPTH:
        return []
    try:
        return [(f"{prefix}{name}/", os.open(name, FOLDER, dir_fd=here))]
    except OSError:
        return []


def _listed(path: str, status: os.stat_result) -> Listed:
    kinds = {stat.S_IFREG: "file", stat.S_IFLNK: "link"}
    return Listed(
        path=clean_text(path),
        kind=kinds.get(stat.S_IFMT(status.st_mode), "other"),
        size=status.st_size,
        modified_at=timestamp(status.st_mtime),
    )
