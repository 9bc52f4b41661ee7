"""File tools of a member. They read the context and the member's home, and write to the home.

For an isolated child the kernel enforces the same; without isolation this check is the only one.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import NoReturn

from retinue.files import is_root_folder, open_plain, read_plain, write_all
from retinue.processes import wait_exit
from retinue.team.tree_copy import MissingFiles, walk

MOST_FOUND = 200
MOST_SEARCHED_BYTES = 4 * 1024 * 1024  # larger files are skipped
LONGEST_LINE = 300  # characters shown of a matching line
GIT, ROOT = ".git", ".retinue"


def find(pattern: str, top: Path, names: str, hidden: Collection[Path] = ()) -> str:
    """Return the matching lines of the files below `top` whose names match, as `file:line: text`.

    Some short patterns run for ever: call it with `run_in_fork`.

    Raises:
        ValueError: the pattern is not a regular expression.
    """
    wanted = _compile_pattern(pattern)
    lacking = MissingFiles(top)
    found: list[str] = []
    for path, at in iter_files(top, lacking, hidden):
        if not fnmatch(path.name, names) or at.st_size > MOST_SEARCHED_BYTES:
            continue
        name = path.name if path == top else path.relative_to(top)
        with lacking.collect_errors(path):
            text = read_plain(path, MOST_SEARCHED_BYTES).decode("utf-8", "replace")
            for number, line in enumerate(text.splitlines(), start=1):
                if wanted.search(line):
                    found.append(f"{name}:{number}: {line[:LONGEST_LINE]}")
                if len(found) >= MOST_FOUND:
                    return "\n".join(found) + "\n[more matches than are shown]"
    return "\n".join(found or ["no matches"]) + format_left_out(lacking)


def iter_files(
    top: Path, lacking: MissingFiles, hidden: Collection[Path] = ()
) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the plain files below a folder in name order, without .git and Retinue's folders."""
    if top.is_file():
        yield top, top.stat()
        return
    for path, at in walk(top, lacking, but={GIT}, hidden=HiddenFolders(hidden)):
        if stat.S_ISREG(at.st_mode):
            yield path, at


class HiddenFolders(Collection[Path]):
    """Folders that no context includes: those in the contract, and every `.retinue` folder.

    A root may have been created after the contract was written.
    """

    def __init__(self, known: Collection[Path]) -> None:
        self._known = frozenset(known)

    def __contains__(self, folder: object) -> bool:
        if folder in self._known:
            return True
        return isinstance(folder, Path) and folder.name == ROOT and is_root_folder(folder)

    def __iter__(self) -> Iterator[Path]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def format_left_out(lacking: MissingFiles) -> str:
    return f"\n[left out: {lacking}]" if lacking else ""


def _compile_pattern(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except RecursionError:
        raise ValueError("not a regular expression: nested too deeply") from None
    except (re.error, OverflowError) as error:
        raise ValueError(f"not a regular expression: {error}") from None


DONE, FAILED = b"+", b"-"


async def run_in_fork(work: Callable[[], str], seconds: float) -> str:
    """Return the result of `work`, run in a forked process that is gone afterwards.

    A fork, since a thread that runs a regular expression can be neither stopped nor preempted.

    Raises:
        TimeoutError: it took longer than `seconds`, and was stopped.
        ValueError: the work raised ValueError or OSError.
    """
    # In memory and without a reader: a pipe would block the process once it is full.
    said = os.memfd_create("aside")
    try:
        pid = os.fork()
        if pid == 0:
            _run_work(work, said)
        try:
            async with asyncio.timeout(seconds):
                await wait_exit(pid)
        finally:
            _kill_process(pid)
        data = os.pread(said, os.fstat(said).st_size, 0)
    finally:
        os.close(said)
    if data.startswith(DONE):
        return data[1:].decode()
    raise ValueError(data[1:].decode() or "the process ended without a result")


def _kill_process(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _run_work(work: Callable[[], str], said: int) -> NoReturn:
    """Run the work in the forked process and exit."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        try:
            told = DONE + work().encode("utf-8", "replace")
        except (ValueError, OSError) as why:
            told = FAILED + str(why).encode("utf-8", "replace")
        write_all(said, told)
    # os._exit: the process must not run the cleanup of its parent.
    finally:
        os._exit(0)


MOST_READ = 100_000  # characters of one answer
MOST_LISTED = 1000
LONGEST_PATTERN = 1000  # characters of a name pattern
SEARCH_SECONDS = 10.0
MOST_COPIED_BYTES = 256 * 1024 * 1024


class ToolDenied(Exception):
    """The contract does not allow this; the message says what it allows."""


class ToolError(Exception):
    """The call cannot be carried out; the message says what would work."""


class MemberFiles:
    """File operations of a member.

    They raise ToolDenied, ToolError and OSError, which the toolbox reports to the model.
    """

    def __init__(self, home: Path, readable: Sequence[Path], hidden: Sequence[Path] = ()) -> None:
        """`hidden` folders cannot be read, except readable paths inside them."""
        self.home = Path(os.path.realpath(home))
        self._readable = [Path(os.path.realpath(path)) for path in readable]
        self._hidden = tuple(hidden)

    def read(self, path: str, offset: int = 0, limit: int = MOST_READ) -> str:
        return cut_passage(self._read_text(self._resolve_readable(path)), offset, limit)

    def write(self, path: str, content: str) -> str:
        target = self._resolve_writable(path)
        _write(target, content.encode("utf-8", "replace"))
        return f"wrote {len(content)} characters to {self._format_path(target)}"

    def put(self, path: str, data: bytes) -> None:
        _write(self._resolve_writable(path), data)

    def edit(self, path: str, old: str, new: str) -> str:
        """Replace a passage that occurs exactly once in the file."""
        target = self._resolve_writable(path)
        text = self._read_text(target)
        count = text.count(old) if old else 0
        if count != 1:
            raise ToolError(f"the old text occurs {count} times in {path}; it must occur once")
        _write(target, text.replace(old, new).encode("utf-8", "replace"))
        return f"replaced one passage of {self._format_path(target)}"

    def listing(self, path: str = ".", pattern: str = "*") -> str:
        top = self._resolve_readable(path)
        if not top.is_dir():
            raise ToolError(f"{path} is not a folder")
        lines = []
        lacking = MissingFiles(top)
        for each, at in iter_files(top, lacking, self._hidden):
            name = str(each.relative_to(top))
            if is_match(name, pattern):
                lines.append(f"{name} ({at.st_size} bytes)")
            if len(lines) > MOST_LISTED:
                return "\n".join(lines[:MOST_LISTED]) + "\n[more files than are shown]"
        return "\n".join(lines or ["no files"]) + format_left_out(lacking)

    async def search(self, pattern: str, path: str = ".", files: str = "*") -> str:
        """Return the lines that match a regular expression, as `file:line: text`."""
        try:
            return await run_in_fork(
                partial(find, pattern, self._resolve_readable(path), files, self._hidden),
                SEARCH_SECONDS,
            )
        except ValueError as why:
            raise ToolError(str(why)) from None
        except TimeoutError:
            raise ToolError(
                f"the search was stopped after {SEARCH_SECONDS:g} seconds; give a simpler pattern, "
                "or fewer files"
            ) from None

    def copy(self, source: str, target: str) -> str:
        """Copy a readable file or folder into the member's home."""
        origin = self._resolve_readable(source)
        if origin.is_file():
            self._copy(origin, target)
            return f"copied {source} to {target}"
        lacking = MissingFiles(origin)
        found = list(iter_files(origin, lacking, self._hidden))
        size = sum(at.st_size for _, at in found)
        if size > MOST_COPIED_BYTES:
            raise ToolError(f"{source} has {size} bytes; copy parts of it")
        copied = 0
        for each, _ in found:
            with lacking.collect_errors(each):
                self._copy(each, f"{target}/{each.relative_to(origin)}")
                copied += 1
        return f"copied {copied} files of {source} to {target}{format_left_out(lacking)}"

    def can_read(self, path: str) -> bool:
        """Return whether the path exists and may be read."""
        try:
            return bool(self._resolve_readable(path))
        except (ToolDenied, ToolError, OSError):
            return False

    def _copy(self, origin: Path, target: str) -> None:
        # Checked for each file: a link inside the target folder could lead out of the home.
        place = self._resolve_writable(target)
        place.parent.mkdir(parents=True, exist_ok=True)
        # str() for the sake of the message if both are the same file.
        shutil.copyfile(str(origin), str(place))
        shutil.copymode(origin, place)

    def _resolve_readable(self, path: str) -> Path:
        """Return the real path.

        Raises:
            ToolDenied: it is outside of what may be read, or hidden.
            ToolError: it does not exist.
        """
        real = self._resolve_path(path)
        tops = [each for each in (self.home, *self._readable) if real.is_relative_to(each)]
        if not tops:
            places = ", ".join(str(root) for root in (self.home, *self._readable))
            raise ToolDenied(f"{path[:200]} is outside of what you may read: {places}")
        if self._is_hidden(real, max(tops, key=lambda each: len(each.parts))):
            raise ToolDenied(f"{path[:200]} belongs to Retinue, and is part of no context")
        if not real.exists():
            raise ToolError(f"there is no {path[:200]}")
        return real

    def _is_hidden(self, real: Path, top: Path) -> bool:
        """Return whether a hidden folder is between the path and its innermost readable top."""
        hidden = HiddenFolders(self._hidden)
        between = (each for each in (real, *real.parents) if each != top and top in each.parents)
        return any(each in hidden for each in between)

    def _resolve_writable(self, path: str) -> Path:
        real = self._resolve_path(path)
        if not real.is_relative_to(self.home):
            raise ToolDenied(f"{path[:200]} is outside of what you may write: {self.home}")
        if real.is_dir():
            raise ToolError(f"{path[:200]} is a folder")
        return real

    def _resolve_path(self, path: str) -> Path:
        if "\0" in path:
            raise ToolError("a path cannot hold NUL")
        # Links are resolved before any check, so that a link cannot lead out.
        try:
            return Path(os.path.realpath(self.home / path))
        except (OSError, ValueError) as error:
            raise ToolError(f"not a usable path: {error}") from None

    def _read_text(self, path: Path) -> str:
        if not path.is_file():
            raise ToolError(f"{path.name} is not a file")
        return read_plain(path, MOST_COPIED_BYTES).decode("utf-8", "replace")

    def _format_path(self, path: Path) -> str:
        return str(path.relative_to(self.home))


def cut_passage(text: str, offset: int, limit: int) -> str:
    """Return `limit` characters from `offset`, with a note on what follows."""
    start = max(0, offset)
    part = text[start : start + min(max(1, limit), MOST_READ)]
    rest = len(text) - start - len(part)
    return part + (f"\n[{rest} more characters from offset {start + len(part)}]" if rest else "")


def is_match(name: str, pattern: str) -> bool:
    """Return whether a path, or its last part, matches a shell pattern.

    Raises:
        ToolError: the pattern is too long.
    """
    if len(pattern) > LONGEST_PATTERN:
        raise ToolError(f"a pattern of names has at most {LONGEST_PATTERN} characters")
    return fnmatch(name, pattern) or fnmatch(name.rpartition("/")[2], pattern)


def _write(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(open_plain(target, os.O_WRONLY | os.O_CREAT, 0o666), "wb") as file:
        file.truncate()
        file.write(data)
