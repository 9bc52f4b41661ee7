"""What a child left in a workspace that is over a base: new, changed, and removed."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from retinue.domain.join import REFUSED, JoinFailed
from retinue.files import hides_below, is_mark
from retinue.workspaces.intake import OURS, shown_path
from retinue.workspaces.layers import Below

LINK_MODE, FILE_MODE, PROGRAM_MODE = 0o120000, 0o100644, 0o100755


@dataclass(frozen=True, kw_only=True, slots=True)
class Left:
    """A file or a link in the workspace."""

    path: str
    mode: int  # as git knows it
    size: int
    known: bool  # whether the base has a file of that name


@dataclass(frozen=True, kw_only=True)
class Folder:
    known: bool  # whether it is one in the base
    hides: bool  # whether nothing of the base is seen in it
    foreign: bool = False  # whether it is a submodule's, or within one


@dataclass(kw_only=True)
class Survey:
    left: list[Left] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)  # files and whole folders of the base
    kept: list[str] = field(default_factory=list)  # submodules in folders that were made anew
    nested: list[str] = field(default_factory=list)  # git folders that are not the workspace's
    foreign: list[str] = field(default_factory=list)  # files in the folder of a submodule
    folders: dict[str, Folder] = field(default_factory=dict)  # by their paths with a slash


class Surveyor:
    def __init__(
        self, workspace: Path, below: Below, submodules: Mapping[str, str], report: str
    ) -> None:
        self._workspace = workspace
        self._below = below
        self._submodules = submodules
        self._spared = {OURS, report}
        self._seen = Survey(folders={"": Folder(known=True, hides=False)})

    def survey(self) -> Survey:
        """No link is followed.

        Raises:
            JoinFailed: something cannot be looked at, or a file became what git does not know.
        """
        waiting = [""]
        while waiting:
            above = waiting.pop()
            try:
                with os.scandir(self._workspace / above) as entries:
                    for entry in entries:
                        if self._look(entry, above):
                            waiting.append(f"{above}{entry.name}/")
            except OSError as error:
                shown = shown_path(above) or "its workspace"
                raise JoinFailed(
                    f"{shown} cannot be read: {error.strerror}", reason=REFUSED
                ) from None
        return self._seen

    def _look(self, entry: os.DirEntry[str], above: str) -> bool:
        """Whether it is a folder to look into."""
        path, seen, folder = f"{above}{entry.name}", self._seen, self._seen.folders[above]
        if path in self._spared:
            return False
        if entry.name.lower() == ".git":
            if path != ".git":
                seen.nested.append(path)
            return False
        status = entry.stat(follow_symlinks=False)
        is_folder = stat.S_ISDIR(status.st_mode)
        if folder.foreign:
            seen.folders[f"{path}/"] = folder
            if not is_folder:
                seen.foreign.append(path)
            return is_folder
        base = self._below.status(path) if folder.known else None
        was_folder = base is not None and stat.S_ISDIR(base.st_mode)
        if is_folder:
            return self._look_at_folder(entry, path, folder, base)
        if base is not None and not folder.hides and (was_folder or is_mark(status)):
            seen.gone.append(path)
        if not is_mark(status):
            known = (base is not None and not was_folder) or path in self._submodules
            self._take(path, status, known=known)
        return False

    def _look_at_folder(
        self, entry: os.DirEntry[str], path: str, above: Folder, base: os.stat_result | None
    ) -> bool:
        if path in self._submodules:  # nothing in there is the repository's
            if above.hides:
                self._seen.kept.append(path)
            self._seen.folders[f"{path}/"] = Folder(known=False, hides=True, foreign=True)
            return True
        known = base is not None and stat.S_ISDIR(base.st_mode)
        anew = not known or hides_below(entry.path)
        if base is not None and anew and not above.hides:
            self._seen.gone.append(path)
        self._seen.folders[f"{path}/"] = Folder(known=known, hides=above.hides or anew)
        return True

    def _take(self, path: str, status: os.stat_result, *, known: bool) -> None:
        if stat.S_ISLNK(status.st_mode):
            mode = LINK_MODE
        elif stat.S_ISREG(status.st_mode):
            mode = PROGRAM_MODE if status.st_mode & 0o100 else FILE_MODE
        elif known:
            shown = shown_path(path)
            raise JoinFailed(f"{shown} is no plain file", reason=REFUSED, files=(shown,))
        else:
            return  # a pipe, a socket: nothing that git would take
        self._seen.left.append(Left(path=path, mode=mode, size=status.st_size, known=known))
