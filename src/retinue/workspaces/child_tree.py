"""The walk over trees that a child wrote.

A child may leave links, pipes, folders without permissions, millions of files, and may change the
tree during the walk. Each folder is opened from the top one component at a time, and no link is
followed. A walk can be bounded; large ones belong in a thread.

Other walks are separate for a reason. `removal` takes a tree apart. `child.context_mounts` and
`team.tree_copy` run inside the child, with its rights.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from pathlib import Path

from retinue.workspaces.removal import FOLDER, PASSED, hold_descriptor, unlock

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
        self._parent = os.dup(self._top)
        self._folders: list[str] = []  # the way from the top to the parent

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
