"""A workspace that holds only what was changed in it; the rest is seen through it.

agents/<id>/
  workspace/     what the child made and changed, and marks for what it removed
  layers/base    a link to what lies below: bases/<commit> of the root
  layers/work    the kernel's own
  layers/fill    while it is made whole, a checkout that the rest is taken from
  layers/filled  once the rest is in the workspace, too
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from retinue.files import hides_below, is_mark, storage_failures
from retinue.workspaces.removal import remove_tree

BASES, FOLDER = "bases", "layers"  # of a root, of a subagent
BASE, WORK, FILL, FILLED = "base", "work", "fill", "filled"
TREE, ON = "tree", "on"  # of a base: its files, and the base that it is over itself
COMMIT = re.compile(r"[0-9a-f]{40,64}")


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
    """What a workspace of this kind is over; None for one that is whole.

    A child without a boundary can put a link there that leads elsewhere: that is none.
    """
    link = workspace.parent / FOLDER / BASE
    try:
        base = Path(os.path.normpath(link.parent / os.readlink(link)))
    except OSError:
        return None
    ours = base.parent == workspace.parents[4] / BASES and COMMIT.fullmatch(base.name)
    return base if ours else None


def is_over(workspace: Path, base: Path) -> bool:
    """Whether it is there, and over that base; an empty one was never laid out."""
    return base_of(workspace) == base and workspace.is_dir() and any(workspace.iterdir())


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


def names(workspace: Path, most: int, but: Collection[str] = (), inside: str = "") -> list[str]:
    """What is seen in a workspace and is no folder, by its paths; without git's own, and without
    those that are left out. With a path, as anybody may have written it, what is seen there.
    """
    under = below(workspace)
    found: list[str] = []
    above, tops = "", (workspace, *(under.layers if under else ()))
    for name in inside.split("/") if inside else ():
        here = _seen(above, tops)
        if name == ".git" or name not in here:
            return []
        above, tops = f"{above}{name}/", here[name]
    if not tops:
        return [inside]
    waiting = [(above, tops)]
    while waiting and len(found) < most:
        above, tops = waiting.pop()
        seen = _seen(above, tops)
        for name in [name for name in seen if name == ".git" or above + name in but]:
            del seen[name]
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
        for folder in (layers, layers / WORK):
            folder.mkdir(mode=0o700)
        (layers / BASE).symlink_to(os.path.relpath(base, layers))


def fill_of(workspace: Path) -> Path:
    """Where a checkout of all that lies below is made, to fill the workspace with."""
    return workspace.parent / FOLDER / FILL


def make_whole(workspace: Path) -> None:
    """The workspace holds all that is seen in it, and no marks; done again, it changes nothing.

    What it lacks is moved there out of its fill, folders as a whole where it has nothing of them.
    It is over its base until `let_go` is called.

    Raises:
        StorageFailed: the disk said no.
    """
    if workspace.is_symlink() or not workspace.is_dir():
        return  # whoever replaced it has to live with that
    with storage_failures(workspace):
        _unlock(str(workspace))
        if not is_filled(workspace):
            _fill(workspace, fill_of(workspace))
            # Before the first mark goes: what it stood for must not come back.
            (workspace.parent / FOLDER / FILLED).touch()
        _clear_marks(workspace)


def let_go(workspace: Path) -> None:
    """The workspace is over nothing any more."""
    layers = workspace.parent / FOLDER
    with storage_failures(layers):
        (layers / BASE).unlink(missing_ok=True)  # first: the rest is of no use to anybody
        if os.path.lexists(layers):
            remove_tree(layers)


def _fill(workspace: Path, fill: Path) -> None:
    waiting = [""]
    while waiting:
        above = waiting.pop()
        with os.scandir(f"{fill}/{above}") as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for name, is_folder in found:
            path = f"{above}{name}"
            target = f"{workspace}/{path}"
            if not os.path.lexists(target):
                os.rename(f"{fill}/{path}", target)
            elif is_folder and _is_open(target):
                waiting.append(f"{path}/")


def _is_open(path: str) -> bool:
    """Whether it is a folder through which another is seen."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        return False
    _unlock(path)
    return not hides_below(path)


def _unlock(folder: str) -> None:
    """Whoever fills a folder may do so, and see what it hides, whatever its child left of that."""
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        os.chmod(folder, os.lstat(folder).st_mode & 0o777 | 0o700)


def _clear_marks(workspace: Path) -> None:
    waiting = [str(workspace)]
    while waiting:
        folder = waiting.pop()
        _unlock(folder)
        if hides_below(folder):
            os.removexattr(folder, "user.overlay.opaque", follow_symlinks=False)
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif is_mark(entry.stat(follow_symlinks=False)):
                    os.unlink(entry.path)
