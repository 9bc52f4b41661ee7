"""The one reader of files that a child wrote.

A child may leave links, pipes, devices or a terabyte where a file is expected.
Every path is walked one component at a time from a folder that the caller
trusts, no link is ever followed, and only a regular file that has no second
name is read, never more of it than the limit. A refusal is an `Unreadable`
with a reason in one clause; it does not leave this module's callers.
"""

from __future__ import annotations

import codecs
import errno
import os
import re
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from retinue.domain.event import shorten
from retinue.domain.ids import MemberId
from retinue.domain.recovery import FinalDeclaration, Refusal, Testimony, answer_text
from retinue.wire.testimony import parse_final, parse_notices, parse_testimony
from retinue.workspaces.removal import FOLDER, opened

JSON_LIMIT_BYTES = 1 << 20
ANSWER_LIMIT_BYTES = 1 << 20
TAIL_BYTES = 4096
LAST_LINE_LIMIT = 200
MAX_NAMES = 10_000
MAX_LISTED = 100
MAX_SNAPSHOTS_TRIED = 20  # of one member; a child must not buy unbounded reading
# Without following a link, or waiting for whoever writes a pipe.
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_SNAPSHOT = re.compile(r"([0-9]{8}_[0-9]{6})(?:_([0-9]+))?")
_CHUNK = 1 << 16


class Unreadable(Exception):
    """A file or folder of a child that will not be read."""


class Missing(Unreadable):
    """Nothing is there."""


@dataclass(frozen=True, kw_only=True)
class ChildFile:
    data: bytes
    cut: bool  # the file goes on behind the limit


@dataclass(frozen=True, kw_only=True)
class ChildText:
    text: str | None
    problem: str = ""  # why there is no text although something is there


def read_child_file(root: Path | int, relative: str, limit: int, *, cut: bool = False) -> ChildFile:
    """At most `limit` bytes of a child's file, below a trusted folder or its descriptor.

    Raises:
        Missing: there is no such file.
        Unreadable: it is not a plain file of the child alone, or, unless `cut`, too large.
    """
    *folders, name = _components(relative)
    with _refusals(relative), _folder(root, folders) as folder:
        # Looked at before it is opened: opening a device or a pipe is already an act.
        _require_plain(os.stat(name, dir_fd=folder, follow_symlinks=False), relative)
        with opened(os.open(name, FILE, dir_fd=folder)) as file:
            _require_plain(os.fstat(file), relative)
            data = _read(file, limit + 1)
    if len(data) > limit and not cut:
        raise Unreadable(f"{relative!a} is larger than {limit} bytes")
    return ChildFile(data=data[:limit], cut=len(data) > limit)


def read_child_tail(root: Path | int, relative: str, limit: int) -> ChildFile:
    """The last bytes of a child's file, `limit` at most; cut where it began earlier.

    Raises:
        Missing: there is no such file.
        Unreadable: it is not a plain file of the child alone.
    """
    *folders, name = _components(relative)
    with _refusals(relative), _folder(root, folders) as folder:
        _require_plain(os.stat(name, dir_fd=folder, follow_symlinks=False), relative)
        with opened(os.open(name, FILE, dir_fd=folder)) as file:
            status = os.fstat(file)
            _require_plain(status, relative)
            start = max(0, status.st_size - limit)
            os.lseek(file, start, os.SEEK_SET)
            return ChildFile(data=_read(file, limit), cut=start > 0)


def list_child_folder(root: Path | int, relative: str) -> list[str]:
    """The names in a child's folder, sorted; of more than 10,000 only that many.

    Raises:
        Missing: there is no such folder.
        Unreadable: it is a link, or not a folder.
    """
    with (
        _refusals(relative),
        _folder(root, _components(relative)) as folder,
        os.scandir(folder) as entries,
    ):
        return sorted(entry.name for entry in islice(entries, MAX_NAMES))


def is_empty(folder: Path) -> bool:
    """Whether a child left nothing at all in a folder that is its own; else look, and be told."""
    try:
        with opened(os.open(folder, FOLDER)) as here, os.scandir(here) as entries:
            return next(entries, None) is None
    except OSError:
        return False


def list_left(workspace: Path, but: Collection[str]) -> tuple[str, ...]:
    """Some of what a child left in its workspace, by their names; no more than a parent reads.

    Folders of git's, and those named in `but`, are left out.
    """
    found: list[str] = []
    waiting, looked_at = [""], 0
    while waiting and len(found) < MAX_LISTED and looked_at < MAX_NAMES:
        above = waiting.pop(0)
        with suppress(OSError), os.scandir(f"{workspace}/{above}") as entries:
            for entry in islice(entries, MAX_NAMES - looked_at):
                looked_at += 1
                if entry.is_dir(follow_symlinks=False):
                    inside = above + entry.name
                    waiting += [f"{inside}/"] if entry.name != ".git" and inside not in but else []
                else:
                    found.append(above + entry.name)
    return tuple(sorted(found)[:MAX_LISTED])


def read_testimony(full_logs: Path) -> tuple[Testimony | None, dict[MemberId, str]]:
    """What a team wrote of itself, and each registered member's newest readable answer.

    No status.json gives no testimony; one that will not be read gives a
    testimony that says only why.
    """
    try:
        with _refusals("full_logs"), _folder(full_logs, []) as folder:
            status = read_child_file(folder, "status.json", JSON_LIMIT_BYTES)
            testimony = parse_testimony(status.data)
            found = {member: _newest_answer(folder, member) for member in testimony.members}
    except Missing:
        return None, {}
    except Unreadable as refusal:
        return Testimony(problem=str(refusal)), {}
    problems = [testimony.problem, *(answer.problem for answer in found.values())]
    testimony = replace(testimony, problem="; ".join(filter(None, problems)))
    return testimony, {
        member: answer.text for member, answer in found.items() if answer.text is not None
    }


def read_answer(root: Path | int, relative: str) -> ChildText:
    """A child's text, replaced where it is not UTF-8 and marked where it is cut.

    Nothing there, or nothing but blanks, gives no text and no problem.
    """
    try:
        file = read_child_file(root, relative, ANSWER_LIMIT_BYTES, cut=True)
    except Missing:
        return ChildText(text=None)
    except Unreadable as refusal:
        return ChildText(text=None, problem=str(refusal))
    # An unfinished character at the cut is held back instead of becoming a mark.
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(file.data, final=not file.cut)
    if answer_text(text) is None:
        return ChildText(text=None)
    return ChildText(text=f"{text}\n[cut after {ANSWER_LIMIT_BYTES} bytes]" if file.cut else text)


def read_last_line(root: Path | int, relative: str) -> str:
    """The last line of a child's text that says anything, fit to be shown; empty without one."""
    try:
        tail = read_child_tail(root, relative, TAIL_BYTES).data.decode("utf-8", "replace")
    except Unreadable:
        return ""
    said = [line for line in tail.splitlines() if line.strip()]
    shown = "".join(each if each.isprintable() else " " for each in said[-1]) if said else ""
    return shorten(shown, LAST_LINE_LIMIT)


def read_final(root: Path | int, relative: str) -> FinalDeclaration | None:
    """What a command declared of its own end; None when it declared nothing."""
    try:
        return parse_final(read_child_file(root, relative, JSON_LIMIT_BYTES).data)
    except Missing:
        return None
    except Unreadable as refusal:
        return FinalDeclaration(problem=str(refusal))


def read_notices(full_logs: Path) -> tuple[tuple[Refusal, ...], tuple[str, ...]]:
    """The tools that a team says it denied its members, and what it says it had to leave out."""
    try:
        return parse_notices(
            read_child_file(full_logs, "notices.jsonl", JSON_LIMIT_BYTES, cut=True).data
        )
    except Unreadable:
        return (), ()


def _newest_answer(folder: int, member: MemberId) -> ChildText:
    """The newest answer that can be read; the first refusal on the way, when there is none."""
    try:
        snapshots = [_SNAPSHOT.fullmatch(name) for name in list_child_folder(folder, member)]
    except Missing:
        return ChildText(text=None)
    except Unreadable as refusal:
        return ChildText(text=None, problem=str(refusal))
    newest_first = sorted(
        (match for match in snapshots if match),
        key=lambda match: (match[1], int(match[2] or 0)),
        reverse=True,
    )
    problem = ""
    for match in newest_first[:MAX_SNAPSHOTS_TRIED]:
        answer = read_answer(folder, f"{member}/{match[0]}/answer.txt")
        problem = problem or answer.problem
        if answer.text is not None:
            return replace(answer, problem=problem)
    return ChildText(text=None, problem=problem)


def _components(relative: str) -> list[str]:
    components = relative.split("/")
    if any(component in ("", ".", "..") for component in components):
        raise Unreadable(f"{relative!a} is not a plain relative path")
    return components


@contextmanager
def _refusals(relative: str) -> Iterator[None]:
    """Whatever the file system refuses is an Unreadable that names the path."""
    try:
        yield
    except FileNotFoundError:
        raise Missing(f"{relative!a} does not exist") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise Unreadable(f"{relative!a} leads through a link or a non-folder") from None
        raise Unreadable(f"{relative!a} cannot be read: {error.strerror}") from None
    except ValueError:  # a NUL, or a character that no file name can have
        raise Unreadable(f"{relative!a} is not a file name") from None


@contextmanager
def _folder(root: Path | int, folders: list[str]) -> Iterator[int]:
    """A descriptor of the folder, reached from the root without following any link."""
    here = os.dup(root) if isinstance(root, int) else os.open(root, FOLDER)
    try:
        for name in folders:
            above, here = here, os.open(name, FOLDER, dir_fd=here)
            os.close(above)
        yield here
    finally:
        os.close(here)


def _require_plain(status: os.stat_result, relative: str) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise Unreadable(f"{relative!a} is a symbolic link")
    if not stat.S_ISREG(status.st_mode):
        raise Unreadable(f"{relative!a} is not a regular file")
    # None at all is a file that was replaced after it was opened, which is no danger.
    if status.st_nlink > 1:
        raise Unreadable(f"{relative!a} is a hard link")


def _read(file: int, most: int) -> bytes:
    pieces: list[bytes] = []
    left = most
    while left > 0 and (piece := os.read(file, min(left, _CHUNK))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)
