"""A workspace that holds only what was changed in it; the rest is seen through it.

agents/<id>/
  workspace/     what the child made and changed, and marks for what it removed
  layers/base    a link to what lies below: bases/<commit> of the root
  layers/work    the kernel's own
  layers/filled  once the rest has been copied into the workspace, too
"""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from retinue.files import hides_below, is_mark, storage_failures
from retinue.workspaces.removal import remove_tree

FOLDER = "layers"
BASE, WORK, FILLED, COPY = "base", "work", "filled", "copy"
TREE, ON = "tree", "on"  # of a base: its files, and the base that it is over itself


@dataclass(frozen=True)
class Below:
    """What lies below a workspace: checkouts of ours, the uppermost first, that nobody changes."""

    layers: tuple[Path, ...]

    def find(self, path: str) -> Path | None:
        """Where a file, link or folder of that name is.

        Its folder must be one here; layers never differ in what is a folder.
        """
        for layer in self.layers:
            place = layer / path
            try:
                status = place.lstat()
            except FileNotFoundError:
                continue
            except NotADirectoryError:
                return None
            return None if is_mark(status) else place
        return None

    def status(self, path: str) -> os.stat_result | None:
        place = self.find(path)
        return None if place is None else place.lstat()


def base_of(workspace: Path) -> Path | None:
    """What a workspace of this kind is over; None for one that is whole."""
    link = workspace.parent / FOLDER / BASE
    try:
        return Path(os.path.normpath(link.parent / os.readlink(link)))
    except OSError:
        return None


def is_over(workspace: Path, base: Path) -> bool:
    """Whether it is there, and over that base."""
    return base_of(workspace) == base and workspace.is_dir()


def is_filled(workspace: Path) -> bool:
    """Whether it was being made whole, and has all that it needs for that."""
    return (workspace.parent / FOLDER / FILLED).exists()


def below(workspace: Path) -> Below | None:
    """What is seen through a workspace; None through one that is whole."""
    base = None if is_filled(workspace) else base_of(workspace)
    return None if base is None else of_base(base)


def of_base(base: Path) -> Below:
    """All that a base consists of."""
    lower = base_under(base)
    return Below((base / TREE,) if lower is None else (base / TREE, lower / TREE))


def base_under(base: Path) -> Path | None:
    """The base that this one is over, where it is not whole."""
    try:
        return Path(os.path.normpath(base / os.readlink(base / ON)))
    except OSError:
        return None


def holder_of(workspace: Path, path: str) -> Path:
    """The folder, the workspace or one below it, that has what is seen under this path.

    The path is as anybody may have written it; whoever reads there has still to refuse it.
    """
    under = below(workspace)
    plain = not any(part in ("", ".", "..") for part in path.split("/"))
    try:
        if under is None or not plain or _decides(workspace, path):
            return workspace
        place = under.find(path)
    except (OSError, ValueError):  # no name that a file could have
        return workspace
    return workspace if place is None else Path(str(place)[: -len(path) - 1])


def _decides(workspace: Path, path: str) -> bool:
    """Whether nothing below the workspace can show under this path."""
    here = str(workspace)
    for name in path.split("/"):
        here = f"{here}/{name}"
        try:
            status = os.lstat(here)
        except OSError:
            return False
        if not stat.S_ISDIR(status.st_mode) or hides_below(here):
            return True
    return True


def names(workspace: Path, most: int) -> list[str]:
    """What is seen in a workspace and is no folder, by its paths; without git's own."""
    under = below(workspace)
    found: list[str] = []
    waiting = [("", (workspace, *(under.layers if under else ())))]
    while waiting and len(found) < most:
        above, tops = waiting.pop()
        seen = _seen(above, tops)
        seen.pop(".git", None)
        found += sorted(above + name for name, within in seen.items() if within == ())
        folders = sorted(name for name, within in seen.items() if within)
        waiting += [(f"{above}{name}/", seen[name]) for name in reversed(folders)]
    return found[:most]


def _seen(above: str, tops: tuple[Path, ...]) -> dict[str, tuple[Path, ...]]:
    """What is seen in a folder: files with nothing, folders with where there is more of them."""
    found: dict[str, tuple[Path, ...]] = {}
    closed: set[str] = set()  # nothing below can add to them
    for top in tops:
        try:
            with os.scandir(top / above) as entries:
                here = [(entry, entry.stat(follow_symlinks=False)) for entry in entries]
        except OSError:
            continue
        for entry, status in here:
            folder, name = stat.S_ISDIR(status.st_mode), entry.name
            if name not in closed and not is_mark(status) and (folder or name not in found):
                found[name] = (*found.get(name, ()), top) if folder else ()
            if not folder or hides_below(entry.path):
                closed.add(name)
    return found


def put_over(workspace: Path, base: Path) -> None:
    """From now on the workspace is over the base."""
    layers = workspace.parent / FOLDER
    with storage_failures(layers):
        if os.path.lexists(layers):
            remove_tree(layers)
        (layers / WORK).mkdir(parents=True, mode=0o700)
        (layers / BASE).symlink_to(os.path.relpath(base, layers))


def make_whole(workspace: Path, under: Below, uid: int | None) -> None:
    """The workspace holds all that is seen in it, and no marks; done again, it changes nothing.

    It is over its base until `let_go` is called.

    Raises:
        StorageFailed: the disk said no.
    """
    layers = workspace.parent / FOLDER
    if workspace.is_symlink() or not workspace.is_dir():
        return  # whoever replaced it has to live with that
    with storage_failures(workspace):
        if not (layers / FILLED).exists():
            filling = _Filling(workspace, layers / COPY, uid)
            for layer in under.layers:
                filling.fill(layer)
            # Before the first mark goes: what it stood for must not come back.
            (layers / FILLED).touch()
        _clear_marks(workspace)


def let_go(workspace: Path) -> None:
    """The workspace is over nothing any more."""
    layers = workspace.parent / FOLDER
    with storage_failures(layers):
        (layers / BASE).unlink(missing_ok=True)  # first: the rest is of no use to anybody
        if os.path.lexists(layers):
            remove_tree(layers)


class _Filling:
    def __init__(self, workspace: Path, copy: Path, uid: int | None) -> None:
        self._workspace = str(workspace)
        self._copy = copy
        self._uid = uid

    def fill(self, layer: Path) -> None:
        """What the layer has and the workspace neither has nor hides is in the workspace."""
        waiting = [""]
        while waiting:
            above = waiting.pop()
            with os.scandir(f"{layer}/{above}") as entries:
                for entry in entries:
                    path = f"{above}{entry.name}"
                    if self._open(entry, f"{self._workspace}/{path}"):
                        waiting.append(f"{path}/")

    def _open(self, entry: os.DirEntry[str], target: str) -> bool:
        """Whether what is within has still to be looked at; the entry itself is in its place."""
        status = entry.stat(follow_symlinks=False)
        try:
            own = os.lstat(target)
        except FileNotFoundError:
            return self._put(entry.path, status, target)
        both = stat.S_ISDIR(status.st_mode) and stat.S_ISDIR(own.st_mode)
        return both and not hides_below(target)

    def _put(self, source: str, status: os.stat_result, target: str) -> bool:
        if stat.S_ISDIR(status.st_mode):
            os.mkdir(target)
            os.chmod(target, stat.S_IMODE(status.st_mode))
            self._give(target)
            return True
        self._copy.unlink(missing_ok=True)
        if is_mark(status):
            os.mknod(self._copy, stat.S_IFCHR, 0)
        elif stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(source), self._copy)
        else:
            _copy_file(source, str(self._copy), status)
        self._give(str(self._copy))
        os.utime(self._copy, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)
        os.rename(self._copy, target)  # whole, or not there
        return False

    def _give(self, path: str) -> None:
        if self._uid is not None:
            os.chown(path, self._uid, self._uid, follow_symlinks=False)


def _copy_file(source: str, target: str, status: os.stat_result) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(source, "rb") as file, open(os.open(target, flags, 0o600), "wb") as copy:
        shutil.copyfileobj(file, copy, 1 << 20)
        os.fchmod(copy.fileno(), stat.S_IMODE(status.st_mode))


def _clear_marks(workspace: Path) -> None:
    waiting = [str(workspace)]
    while waiting:
        folder = waiting.pop()
        if hides_below(folder):
            os.removexattr(folder, "user.overlay.opaque", follow_symlinks=False)
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif is_mark(entry.stat(follow_symlinks=False)):
                    os.unlink(entry.path)
