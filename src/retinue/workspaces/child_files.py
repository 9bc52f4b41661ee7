"""The only reader of files and trees that a child wrote.

A child may leave links, pipes, devices or a terabyte where a file is expected. Paths are walked
one component at a time from a trusted folder, and no link is followed. Only a regular file with
a single name is read, and never beyond the limit. A refusal is an `UnreadableFile` with a short
reason; callers of this module handle it.

A walk over a tree works while the child changes it, and can be bounded; large ones belong in a
thread. Other walks are separate for a reason: `owned_files` removes trees, `overlay` merges the
layers of each folder, and `child.context_mounts` and `team.tree_copy` run inside the child, with
its rights.
"""

from __future__ import annotations

import codecs
import errno
import os
import re
import stat
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter
from pathlib import Path

from retinue.core.ids import MemberId
from retinue.core.result import AgentNotice, FinalDeclaration, Refusal, Testimony, answer_text
from retinue.core.safe_text import shorten
from retinue.files import PASSED, hold_descriptor, unlock
from retinue.formats.testimony_json import parse_final, parse_notices, parse_testimony
from retinue.workspaces.owned_files import FOLDER

LONGEST_PATH = 4096  # PATH_MAX of Linux, with the NUL byte at its end


@dataclass(frozen=True, kw_only=True)
class FolderListing:
    """One folder of a tree. Its entries and its descriptor are usable until the next one."""

    path: str  # from the top, with a trailing slash; empty for the top itself
    descriptor: int
    entries: list[os.DirEntry[str]]  # by name
    enter: list[str]  # names of the folders to walk; the caller may change it

    def locate(self, name: str) -> str:
        """Return a path of an entry for system calls that take no folder descriptor."""
        return f"/proc/self/fd/{self.descriptor}/{name}"


class TreeWalk:
    """Walk over a tree, folder by folder; `complete` tells whether its bound was kept."""

    def __init__(
        self,
        top: Path | int,
        starts: Sequence[str] = ("",),
        *,
        most: int | None = None,
        breadth_first: bool = False,
        unlocking: bool = False,
        on_error: Callable[[str, OSError], None] | None = None,
    ) -> None:
        """Args:
        top: a trusted folder, or its descriptor.
        starts: the folders below the top to walk; by default the top itself.
        most: the most entries to visit; none beyond it is listed.
        breadth_first: so that a bound leaves out the deepest folders.
        unlocking: give the owner access to folders from which the child removed it.
        on_error: called with the path of an unreadable folder; by default it is left out.
        """
        self._top = top
        self._starts = [f"{start}/" if start else "" for start in starts]
        self._left = most
        self._breadth_first = breadth_first
        self._unlocking = unlocking
        self._on_error = on_error
        self.complete = True

    def __iter__(self) -> Iterator[FolderListing]:
        try:
            parents = _Parents(self._top, unlocking=self._unlocking)
        except OSError as fault:
            self._report("", fault)
            return
        with parents:
            yield from self._walk(parents)

    def _walk(self, parents: _Parents) -> Iterator[FolderListing]:
        waiting = deque(self._starts if self._breadth_first else reversed(self._starts))
        while waiting and self.complete:
            path = waiting.popleft() if self._breadth_first else waiting.pop()
            try:
                _require_nameable(path)
                with hold_descriptor(parents.open(path.split("/")[:-1])) as here:
                    listing = self._list(path, here)
                    yield listing
            except OSError as fault:
                self._report(path, fault)
                continue
            # Reversed for the depth-first walk, which takes the last one next.
            names = listing.enter if self._breadth_first else reversed(listing.enter)
            waiting += [f"{path}{name}/" for name in names]

    def _report(self, path: str, fault: OSError) -> None:
        if self._on_error is not None:
            self._on_error(path, fault)

    def _list(self, path: str, here: int) -> FolderListing:
        with os.scandir(here) as found:
            entries = list(islice(found, self._left))
            if self._left is not None:
                self._left -= len(entries)
                self.complete = self._left > 0 or next(found, None) is None
        entries.sort(key=attrgetter("name"))
        folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        return FolderListing(path=path, descriptor=here, entries=entries, enter=folders)


def _require_nameable(path: str) -> None:
    """Require a path that the kernel accepts: git and other programs name files by it.

    Raises:
        OSError: it is too long.
    """
    if len(os.fsencode(path)) >= LONGEST_PATH:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))


class _Parents:
    """Opener of folders below a top. It keeps the parent of the last one open for its siblings."""

    def __init__(self, top: Path | int, *, unlocking: bool = False) -> None:
        """Raises:
        OSError: the top cannot be opened, or is a link.
        """
        self._unlocking = unlocking
        self._top = os.dup(top) if isinstance(top, int) else self._enter(str(top), None)
        try:
            self._parent = os.dup(self._top)
        except OSError:
            os.close(self._top)
            raise
        self._folders: list[str] = []  # names of the folders from the top to the parent

    def __enter__(self) -> _Parents:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._parent)
        os.close(self._top)

    def open(self, folders: Sequence[str]) -> int:
        """Return a descriptor for reading a folder.

        Raises:
            OSError: it does not exist, or a link is on the way.
        """
        *above, name = folders or ["."]
        if above != self._folders:
            self._move_to(above)
        return self._enter(name, self._parent, FOLDER)

    def _move_to(self, above: list[str]) -> None:
        here = os.dup(self._top)
        try:
            for name in above:
                outer = here
                here = self._enter(name, outer)
                os.close(outer)
        except OSError:
            os.close(here)
            raise
        os.close(self._parent)
        self._parent, self._folders = here, above

    def _enter(self, name: str, parent: int | None, flags: int = PASSED) -> int:
        needed = os.R_OK | os.W_OK | os.X_OK
        if self._unlocking and not os.access(name, needed, dir_fd=parent):
            unlock(name, parent)
        # Folders on the way need not be readable: PASSED.
        return os.open(name, flags, dir_fd=parent)


@contextmanager
def open_child_folder(top: Path | int, folders: Sequence[str]) -> Iterator[int]:
    """Yield a descriptor of a folder, reached from the top without following any link.

    Raises:
        OSError: it does not exist, or a link is on the way.
    """
    with _Parents(top) as parents, hold_descriptor(parents.open(folders)) as here:
        yield here


JSON_LIMIT_BYTES = 1 << 20
LAST_WORDS = "last_words.txt"  # of a coding agent
ANSWER_LIMIT_BYTES = 1 << 20
ERROR_OUTPUT_BYTES = 64 * 1024  # of both streams together, with their headings
TAIL_BYTES = 4096
LAST_LINE_LIMIT = 200
MAX_NAMES = 10_000
MAX_LISTED = 100
MAX_SNAPSHOTS_TRIED = 20  # per member; a child must not cause unbounded reading
# Follow no link, do not wait for the writer of a pipe, and take no controlling terminal.
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_SNAPSHOT = re.compile(r"([0-9]{8}_[0-9]{6})(?:_([0-9]+))?")
_CHUNK = 1 << 16
_CONTINUATION = bytes(range(0x80, 0xC0))  # bytes inside a UTF-8 character
_HEADING_BYTES = 48  # upper bound of a heading with its line ends


class UnreadableFile(Exception):
    """A file or folder of a child that is refused."""


class MissingFile(UnreadableFile):
    """A file or folder that does not exist."""


@dataclass(frozen=True, kw_only=True)
class ChildFile:
    data: bytes
    cut: bool  # whether the file is longer than the limit


@dataclass(frozen=True, kw_only=True)
class ChildText:
    text: str | None
    problem: str = ""  # why an existing file gave no text


def read_child_file(root: Path | int, relative: str, limit: int, *, cut: bool = False) -> ChildFile:
    """Return at most `limit` bytes of a child's file below a trusted folder or its descriptor.

    Raises:
        MissingFile: there is no such file.
        UnreadableFile: it is not a plain file with one name, or, unless `cut`, too large.
    """
    with open_child_file(root, relative) as (file, _):
        data = _read(file, limit + 1)
    if len(data) > limit and not cut:
        raise UnreadableFile(f"{relative!a} is larger than {limit} bytes")
    return ChildFile(data=data[:limit], cut=len(data) > limit)


@contextmanager
def open_child_file(root: Path | int, relative: str) -> Iterator[tuple[int, os.stat_result]]:
    """Yield a descriptor of a child's file and its status.

    Raises:
        MissingFile: there is no such file.
        UnreadableFile: it is not a plain file with one name.
    """
    *folders, name = _split_path(relative)
    with _translate_errors(relative), open_child_folder(root, folders) as folder:
        # Check before opening: opening a device or a pipe can already have effects.
        _require_plain(os.stat(name, dir_fd=folder, follow_symlinks=False), relative)
        with hold_descriptor(os.open(name, FILE, dir_fd=folder)) as file:
            # Check again: the child may have replaced the file in between.
            status = os.fstat(file)
            _require_plain(status, relative)
            yield file, status


def to_identity(status: os.stat_result) -> tuple[int, ...]:
    """Return values that differ between two files, or between two contents of one file.

    A child can set the modification time (mtime), but not the change time (ctime).
    """
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def read_child_tail(root: Path | int, relative: str, limit: int) -> ChildFile:
    """Return the last `limit` bytes of a child's file.

    Raises:
        MissingFile: there is no such file.
        UnreadableFile: it is not a plain file with one name.
    """
    with open_child_file(root, relative) as (file, status):
        start = max(0, status.st_size - limit)
        os.lseek(file, start, os.SEEK_SET)
        return ChildFile(data=_read(file, limit), cut=start > 0)


def list_child_folder(root: Path | int, relative: str) -> list[str]:
    """Return the names in a child's folder, sorted; at most `MAX_NAMES`.

    Raises:
        MissingFile: there is no such folder.
        UnreadableFile: it is a link, or not a folder.
    """
    with (
        _translate_errors(relative),
        open_child_folder(root, _split_path(relative)) as folder,
        os.scandir(folder) as entries,
    ):
        return sorted(entry.name for entry in islice(entries, MAX_NAMES))


def is_empty(folder: Path) -> bool:
    """Return whether a child's folder is certainly empty; False if it cannot be read."""
    try:
        with hold_descriptor(os.open(folder, FOLDER)) as here, os.scandir(here) as entries:
            return next(entries, None) is None
    except OSError:
        return False


def list_left(workspace: Path, but: Collection[str]) -> tuple[str, ...]:
    """Return some files that a child left in its workspace, at most `MAX_LISTED`.

    Folders named .git, and those in `but`, are left out.
    """
    found: list[str] = []
    # Breadth first, so that the limit cuts off the deepest files.
    for folder in TreeWalk(workspace, most=MAX_NAMES, breadth_first=True):
        paths = [(entry, folder.path + entry.name) for entry in folder.entries]
        found += [path for entry, path in paths if not entry.is_dir(follow_symlinks=False)]
        inside = [name for name in folder.enter if name != ".git"]
        folder.enter[:] = [name for name in inside if folder.path + name not in but]
        if len(found) >= MAX_LISTED:
            break
    return tuple(sorted(found)[:MAX_LISTED])


def read_testimony(full_logs: Path) -> tuple[Testimony | None, dict[MemberId, str]]:
    """Return a team's testimony, and the newest readable answer of each registered member.

    Without status.json there is no testimony. If it cannot be read, the testimony contains only
    the problem.
    """
    try:
        with _translate_errors("full_logs"), open_child_folder(full_logs, []) as folder:
            status = read_child_file(folder, "status.json", JSON_LIMIT_BYTES)
            testimony = parse_testimony(status.data)
            found = {member: _find_newest_answer(folder, member) for member in testimony.members}
    except MissingFile:
        return None, {}
    except UnreadableFile as refusal:
        return Testimony(problem=str(refusal)), {}
    problems = [testimony.problem, *(answer.problem for answer in found.values())]
    testimony = replace(testimony, problem="; ".join(filter(None, problems)))
    return testimony, {
        member: answer.text for member, answer in found.items() if answer.text is not None
    }


def read_answer(root: Path | int, relative: str) -> ChildText:
    """Return a child's text; invalid UTF-8 is replaced and a cut is marked.

    A missing or blank file gives no text and no problem.
    """
    try:
        file = read_child_file(root, relative, ANSWER_LIMIT_BYTES, cut=True)
    except MissingFile:
        return ChildText(text=None)
    except UnreadableFile as refusal:
        return ChildText(text=None, problem=str(refusal))
    # With final=False the decoder drops a character that the cut divides.
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(file.data, final=not file.cut)
    if answer_text(text) is None:
        return ChildText(text=None)
    return ChildText(text=f"{text}\n[cut after {ANSWER_LIMIT_BYTES} bytes]" if file.cut else text)


def read_last_line(root: Path | int, relative: str) -> str:
    """Return the last non-blank line of a child's text, made printable; empty without one."""
    try:
        tail = read_child_tail(root, relative, TAIL_BYTES).data.decode("utf-8", "replace")
    except UnreadableFile:
        return ""
    said = [line for line in tail.splitlines() if line.strip()]
    shown = "".join(each if each.isprintable() else " " for each in said[-1]) if said else ""
    return shorten(shown, LAST_LINE_LIMIT)


def read_error_output(runtime: Path, limit: int = ERROR_OUTPUT_BYTES) -> str:
    """Return the end of a command's output, each stream below its name; at most `limit` bytes.

    A stream of several lines is cut at the start of a line. Each stream may use the space that
    the other does not need. Blank streams are left out.
    """
    found: dict[str, tuple[bytes, bool]] = {}
    for name in ("stdout", "stderr"):
        with suppress(UnreadableFile):
            tail = read_child_tail(runtime, f"{name}.log", limit)
            # The cut may divide a character: drop the rest of it.
            data = tail.data.lstrip(_CONTINUATION) if tail.cut else tail.data
            text = data.decode("utf-8", "replace").rstrip()
            if text.strip():
                found[name] = text.encode(), tail.cut
    room = limit - len(found) * _HEADING_BYTES
    sizes = {name: len(data) for name, (data, _) in found.items()}
    parts = []
    for name, (data, cut) in found.items():
        others = sum(size for other, size in sizes.items() if other != name)
        kept = _cut_to_last_lines(data, room - min(others, room // 2))
        cut = cut or len(kept) < len(data)
        heading = f"[{name}, the last {len(kept)} bytes]" if cut else f"[{name}]"
        parts.append(f"{heading}\n{kept.decode()}")
    return "\n".join(parts)


def _cut_to_last_lines(data: bytes, most: int) -> bytes:
    """Return the end of a UTF-8 text, from the start of a line or at least of a character."""
    if len(data) <= most:
        return data
    kept = data[len(data) - most :].lstrip(_CONTINUATION)
    return kept.partition(b"\n")[2] or kept


def read_final(root: Path | int, relative: str) -> FinalDeclaration | None:
    """Return what a command declared about its own end; None if it declared nothing."""
    try:
        return parse_final(read_child_file(root, relative, JSON_LIMIT_BYTES).data)
    except MissingFile:
        return None
    except UnreadableFile as refusal:
        return FinalDeclaration(problem=str(refusal))


def read_notices(
    full_logs: Path,
) -> tuple[tuple[Refusal, ...], tuple[str, ...], tuple[AgentNotice, ...]]:
    """Return what a team reports: tools denied to members, omissions, events of coding agents."""
    try:
        return parse_notices(
            read_child_file(full_logs, "notices.jsonl", JSON_LIMIT_BYTES, cut=True).data
        )
    except UnreadableFile:
        return (), (), ()


def _find_newest_answer(folder: int, member: MemberId) -> ChildText:
    """Return the newest readable answer; without one, the first problem met."""
    try:
        names = list_child_folder(folder, member)
        snapshots = [_SNAPSHOT.fullmatch(name) for name in names]
    except MissingFile:
        return ChildText(text=None)
    except UnreadableFile as refusal:
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
    # A coding agent that was cut off before its answer: what it said last.
    if LAST_WORDS in names:
        said = read_answer(folder, f"{member}/{LAST_WORDS}")
        return replace(said, problem=problem or said.problem)
    return ChildText(text=None, problem=problem)


def _split_path(relative: str) -> list[str]:
    """Split a relative path; refuse empty components, "." and ".."."""
    components = relative.split("/")
    if any(component in ("", ".", "..") for component in components):
        raise UnreadableFile(f"{relative!a} is not a plain relative path")
    return components


@contextmanager
def _translate_errors(relative: str) -> Iterator[None]:
    """Turn file system errors into an `UnreadableFile` that names the path."""
    try:
        yield
    except FileNotFoundError:
        raise MissingFile(f"{relative!a} does not exist") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise UnreadableFile(f"{relative!a} leads through a link or a non-folder") from None
        raise UnreadableFile(f"{relative!a} cannot be read: {error.strerror}") from None
    except ValueError:  # NUL, or a character that cannot be encoded
        raise UnreadableFile(f"{relative!a} is not a file name") from None


def _require_plain(status: os.stat_result, relative: str) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise UnreadableFile(f"{relative!a} is a symbolic link")
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableFile(f"{relative!a} is not a regular file")
    # A second name could make a file outside readable. A count of 0 is harmless: the file was
    # replaced after it was opened.
    if status.st_nlink > 1:
        raise UnreadableFile(f"{relative!a} is a hard link")


def _read(file: int, most: int) -> bytes:
    pieces: list[bytes] = []
    left = most
    while left > 0 and (piece := os.read(file, min(left, _CHUNK))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)
