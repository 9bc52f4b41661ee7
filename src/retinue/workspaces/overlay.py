"""Workspaces as overlay mounts: they hold only changes, and the base shows through.

agents/<id>/
  workspace/     files that the child made or changed, and whiteouts for those it removed
  layers/base    link to the base below: bases/<commit> of the root
  layers/work    work folder of overlayfs
  layers/fill    temporary checkout from which missing files are moved into the workspace
  layers/filled  exists once the workspace has all files
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from retinue.core.errors import LimitExceeded
from retinue.files import is_opaque, is_whiteout, storage_failures
from retinue.workspaces.child_files import TreeWalk, open_child_folder
from retinue.workspaces.owned_files import remove_tree

BASES, FOLDER = "bases", "layers"  # in a root, in the folder of a subagent
BASE, WORK, FILL, FILLED = "base", "work", "fill", "filled"
TREE, ON = "tree", "on"  # in a base: its files, and the link to its lower base
MOST_ENTRIES = 50_000  # files and folders that one listing may visit
COMMIT = re.compile(r"[0-9a-f]{40,64}")


@dataclass(frozen=True)
class LowerLayers:
    """Read-only checkouts below a workspace, the uppermost first."""

    layers: tuple[Path, ...]

    def find(self, path: str) -> Path | None:
        """Return the path of a file, link or folder in the layers; None without one.

        Its parent must be a folder in the base. The layers agree on what is a folder.
        """
        for layer in self.layers:
            place = layer / path
            try:
                status = place.lstat()
            except FileNotFoundError:
                continue
            except NotADirectoryError:
                return None
            return None if is_whiteout(status) else place
        return None

    def read_status(self, path: str) -> os.stat_result | None:
        place = self.find(path)
        return None if place is None else place.lstat()


def find_base(workspace: Path) -> Path | None:
    """Return the base of an overlay workspace; None if the workspace is whole."""
    link = workspace.parent / FOLDER / BASE
    try:
        base = Path(os.path.normpath(link.parent / os.readlink(link)))
    except OSError:
        return None
    # A child without a sandbox can replace the link: accept only a base of this root.
    ours = base.parent == workspace.parents[4] / BASES and COMMIT.fullmatch(base.name)
    return base if ours else None


def is_over(workspace: Path, base: Path) -> bool:
    """Return whether the workspace is laid out over that base; an empty one is not."""
    return find_base(workspace) == base and workspace.is_dir() and any(workspace.iterdir())


def is_filled(workspace: Path) -> bool:
    """Return whether the workspace has received all files of its base."""
    return (workspace.parent / FOLDER / FILLED).exists()


def find_below(workspace: Path) -> LowerLayers | None:
    """Return the layers that show through a workspace; None if it is whole."""
    base = None if is_filled(workspace) else find_base(workspace)
    return None if base is None else list_layers(base)


def list_layers(base: Path) -> LowerLayers:
    """Return the layers of a base."""
    lower = find_lower_base(base)
    return LowerLayers((base / TREE,) if lower is None else (base / TREE, lower / TREE))


def find_lower_base(base: Path) -> Path | None:
    """Return the base below this one; None for a full base."""
    try:
        return Path(os.path.normpath(base / os.readlink(base / ON)))
    except OSError:
        return None


def find_holder(workspace: Path, path: str) -> Path:
    """Return the folder, the workspace or a layer, that holds what is visible at this path.

    The path is not trusted. The caller must still refuse an invalid one when it reads.
    """
    under = find_below(workspace)
    plain = not any(part in ("", ".", "..") for part in path.split("/"))
    try:
        if under is None or not plain or _is_decided(workspace, path):
            return workspace
        place = under.find(path)
    except (OSError, ValueError):  # not a valid file name
        return workspace
    return workspace if place is None else Path(str(place)[: -len(path) - 1])


def _is_decided(workspace: Path, path: str) -> bool:
    """Return whether the workspace alone decides this path, so that no layer shows there."""
    here = str(workspace)
    for name in path.split("/"):
        here = f"{here}/{name}"
        try:
            status = os.lstat(here)
        except OSError:
            return False
        if not stat.S_ISDIR(status.st_mode) or is_opaque(here):
            return True
    return True


def list_names(
    workspace: Path,
    most: int,
    but: Collection[str] = (),
    inside: str = "",
    most_entries: int = MOST_ENTRIES,
) -> list[str]:
    """Return the paths of all files that are visible in a workspace, except git's own.

    Args:
        most: the most paths to return.
        but: paths to leave out.
        inside: list only this folder or file; not trusted.

    Raises:
        LimitExceeded: there are more entries to visit than `most_entries`.
    """
    under = find_below(workspace)
    found: list[str] = []
    above = ""
    tops = (workspace, *(under.layers if under else ()))
    left = EntryBudget(most_entries)
    for name in inside.split("/") if inside else ():
        here = _list_seen(above, tops, left)
        if name == ".git" or name not in here:
            return []
        above = f"{above}{name}/"
        tops = here[name]
    if not tops:
        return [inside]
    waiting = [(above, tops)]
    while waiting and len(found) < most:
        above, tops = waiting.pop()
        seen = _list_seen(above, tops, left)
        for name in [name for name in seen if name == ".git" or above + name in but]:
            del seen[name]
        found += sorted(above + name for name, within in seen.items() if within == ())
        folders = sorted(name for name, within in seen.items() if within)
        waiting += [(f"{above}{name}/", seen[name]) for name in reversed(folders)]
    return found[:most]


class EntryBudget:
    """Number of files and folders that a walk may still visit."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most

    def look_at(self, entries: Iterator[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
        """Yield the entries of one folder, which itself counts as one.

        Raises:
            LimitExceeded: the budget is used up.
        """
        self._count()
        for entry in entries:
            self._count()
            yield entry

    def _count(self) -> None:
        if self._left == 0:
            raise LimitExceeded(
                f"there are more than {self._most} files and folders to list",
                code="too_many_files",
                hint="name a subfolder",
            )
        self._left -= 1


def _list_seen(
    above: str, tops: tuple[Path, ...], left: EntryBudget
) -> dict[str, tuple[Path, ...]]:
    """Return the visible entries of a folder: () for a file, the layers that have a folder."""
    found: dict[str, tuple[Path, ...]] = {}
    closed: set[str] = set()  # names that hide lower layers: files, whiteouts, opaque folders
    for top in tops:
        for name, status, opaque in _list_layer(top, above, left):
            folder = stat.S_ISDIR(status.st_mode)
            if name not in closed and not is_whiteout(status) and (folder or name not in found):
                found[name] = (*found.get(name, ()), top) if folder else ()
            if not folder or opaque:
                closed.add(name)
    return found


def _list_layer(top: Path, above: str, left: EntryBudget) -> list[tuple[str, os.stat_result, bool]]:
    """Return the entries of one layer's folder, each with its status and whether it is opaque."""
    try:
        with (
            open_child_folder(top, above.split("/")[:-1]) as here,
            os.scandir(here) as entries,
        ):
            return [
                (
                    entry.name,
                    entry.stat(follow_symlinks=False),
                    entry.is_dir(follow_symlinks=False)
                    and is_opaque(f"/proc/self/fd/{here}/{entry.name}"),
                )
                for entry in left.look_at(entries)
            ]
    except OSError:
        return []


def lay_over(workspace: Path, base: Path) -> None:
    """Lay the workspace over the base."""
    layers = workspace.parent / FOLDER
    with storage_failures(layers):
        if os.path.lexists(layers):
            remove_tree(layers)
        for folder in (layers, layers / WORK):
            folder.mkdir(mode=0o700)
        (layers / BASE).symlink_to(os.path.relpath(base, layers))


def get_fill_folder(workspace: Path) -> Path:
    """Return where the checkout is made that fills the workspace."""
    return workspace.parent / FOLDER / FILL


def make_whole(workspace: Path) -> None:
    """Move all missing files into the workspace and remove its marks; repeating it is harmless.

    Whole folders are moved where the workspace has none of that name. The workspace stays an
    overlay until `detach_workspace` is called.

    Raises:
        StorageFailed: the disk refused.
    """
    if workspace.is_symlink() or not workspace.is_dir():
        return  # the child replaced it; there is nothing to fill
    with storage_failures(workspace):
        _unlock(str(workspace))
        if not is_filled(workspace):
            _fill(workspace, get_fill_folder(workspace))
            # Before the first whiteout goes: a repeated fill would restore the removed files.
            (workspace.parent / FOLDER / FILLED).touch()
        _clear_marks(workspace)


def detach_workspace(workspace: Path) -> None:
    """Detach the workspace from its base."""
    layers = workspace.parent / FOLDER
    with storage_failures(layers):
        (layers / BASE).unlink(missing_ok=True)  # first: without it the rest is unused
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
    """Return whether it is a folder through which a lower one shows."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        return False
    _unlock(path)
    return not is_opaque(path)


def _unlock(folder: str) -> None:
    """Restore the owner's access to a folder, which its child may have removed."""
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        os.chmod(folder, os.lstat(folder).st_mode & 0o777 | 0o700)


def _clear_marks(workspace: Path) -> None:
    for folder in TreeWalk(workspace, unlocking=True, on_error=_raise):
        here = folder.locate(".")
        if is_opaque(here):
            os.removexattr(here, "user.overlay.opaque", follow_symlinks=False)
        for entry in folder.entries:
            if is_whiteout(entry.stat(follow_symlinks=False)):
                os.unlink(entry.name, dir_fd=folder.descriptor)


def _raise(_: str, fault: OSError) -> None:
    raise fault
