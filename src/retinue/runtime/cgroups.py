"""Limits for a whole child by cgroup v2, where this user may make cgroups.

Each isolated child gets its own cgroup, in one folder for all children of a root:

    BASE/retinue-ID/            made at the first launch
    BASE/retinue-ID/ATTEMPT/    one child: memory.max, pids.max, cpu.max

BASE is the steward's own cgroup if that can be divided, else its parent. The child's init stays
outside, so that it can record that the child ran out of memory. Without cgroups, limits apply to
each process alone. A folder is removed when its child has ended. The root has a list of folders,
by which the next steward removes those of a killed one.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from retinue.core.task_config import Limits

NOTE = "cgroups"  # file in the root: one folder on each line
PREFIX = "retinue-"
NEEDED = ("memory", "pids")
WANTED = (*NEEDED, "cpu")
PERIOD_US = 100_000
MB = 1024 * 1024
HOW_TO_DELEGATE = (
    "'systemd-run --user --scope retinue …' starts the steward where an ordinary user may make some"
)


class Unavailable(Exception):
    """No cgroup can be made; the message says why."""


class ChildCgroups:
    """The cgroups of one root's children."""

    def __init__(self, root: Path | None = None, proc: str = "/proc") -> None:
        self._root = root
        self._proc = proc
        self._folder = ""  # of all children; empty until it is made
        self.missing: str | None = None  # why no cgroup can be made; "": can be; None: not known
        self._made = 0

    def sweep(self) -> None:
        """Remove cgroups of earlier stewards that hold no process any more."""
        if self._root is None:
            return
        noted = self._noted()
        left = [folder for folder in noted if folder != self._folder and not _remove_all(folder)]
        if self._folder:
            left.append(self._folder)
        if left != noted:
            self._note(left)

    def make(self, limits: Limits) -> str:
        """Make a cgroup with these limits and return its folder; empty if none can be made."""
        if self.missing is None:
            self._find()
        if self.missing:
            return ""
        self._made += 1
        folder = f"{self._folder}/{os.getpid()}-{self._made}"
        try:
            os.mkdir(folder)
            _limit(folder, limits)
        except OSError as fault:
            # Remembered, so that later launches do not fail in the same way.
            self.missing = f"{folder}: {fault.strerror}"
            self.remove(folder)
            return ""
        return folder

    def remove(self, folder: str) -> None:
        """Remove the folder of a child that has ended."""
        if folder:
            with suppress(OSError):  # a dying process is still in it: `sweep` removes it later
                os.rmdir(folder)

    def close(self) -> None:
        """Remove all folders but those of running children."""
        if self._folder and _remove_all(self._folder):
            self._folder, self.missing = "", None
        self.sweep()

    def _find(self) -> None:
        """Decide once where children's cgroups are made, or why none can be."""
        try:
            self._folder = self._establish()
            self.missing = ""
        except Unavailable as why:
            self.missing = str(why)
        except OSError as fault:
            self.missing = f"{fault.filename}: {fault.strerror}"

    def _establish(self) -> str:
        if self._root is None:
            raise Unavailable("there is no root to list them in")
        mounted, own = _own_cgroup(self._proc)
        # The name holds the root's identity, so that two roots never share a folder.
        status = os.stat(self._root)
        name = f"{PREFIX}{status.st_dev:x}-{status.st_ino:x}"
        # cgroup v2: a cgroup that holds processes, as the steward's does, cannot enable
        # controllers for its children, unless it is the topmost. Then its parent is tried.
        reasons = []
        for base in (own,) if own == mounted else (own, os.path.dirname(own)):
            folder = f"{base}/{name}"
            # Listed first: if this process is killed now, the next steward still finds it.
            self._note([*self._noted(), folder])
            try:
                _enable(base, folder)
                return folder
            except OSError as fault:
                reasons.append(f"{base}: {fault.strerror}")
                _remove_all(folder)
            self._note([each for each in self._noted() if each != folder])
        raise Unavailable("; ".join(reasons) + f"; {HOW_TO_DELEGATE}")

    def _noted(self) -> list[str]:
        if self._root is None:
            return []
        try:
            lines = Path(self._root, NOTE).read_text().splitlines()
        except (OSError, ValueError):
            return []
        return [line for line in dict.fromkeys(lines) if _is_ours(line)]

    def _note(self, folders: list[str]) -> None:
        if self._root is None:
            return
        path = Path(self._root, NOTE)
        unique = dict.fromkeys(folders)
        with suppress(OSError):
            if unique:
                path.write_text("".join(f"{folder}\n" for folder in unique))
            else:
                path.unlink(missing_ok=True)


def _is_ours(folder: str) -> bool:
    """Return whether the folder's name is one that this module gives.

    The list may have been edited: nothing else is ever removed.
    """
    return os.path.isabs(folder) and os.path.basename(folder).startswith(PREFIX)


def _own_cgroup(proc: str) -> tuple[str, str]:
    """Return where cgroup v2 is mounted, and the folder of this process's cgroup.

    Raises:
        Unavailable: cgroup v2 is not in use.
    """
    mounted = ""
    with open(f"{proc}/self/mountinfo") as file:
        for line in file:
            fields, _, rest = line.partition(" - ")
            if rest.startswith("cgroup2 "):
                mounted = fields.split()[4]
                top = fields.split()[3]
    if not mounted:
        raise Unavailable("no cgroup v2 is mounted")
    with open(f"{proc}/self/cgroup") as file:
        paths = [line.rstrip("\n")[3:] for line in file if line.startswith("0::")]
    if not paths:
        raise Unavailable("this process is in no cgroup v2")
    # In a container only a part of the hierarchy may be mounted: paths are relative to its top.
    path = paths[0].removeprefix(top.rstrip("/")) if top != "/" else paths[0]
    controllers = _read(mounted, "cgroup.controllers").split()
    if not set(NEEDED) <= set(controllers):
        raise Unavailable("cgroup v2 lacks the memory and pids controllers (cgroup v1 has them)")
    return mounted, (mounted + path).rstrip("/")


def _enable(base: str, folder: str) -> None:
    """Make the folder and enable controllers for the cgroups in it.

    Raises:
        OSError: this user may not do that there.
    """
    # A controller must be enabled at each level on the way down.
    for place in (base, folder):
        if place == folder:
            with suppress(FileExistsError):
                os.mkdir(folder)
        offered = _read(place, "cgroup.controllers").split()
        passed = _read(place, "cgroup.subtree_control").split()
        for name in WANTED:
            if name in passed:
                continue
            try:
                _write(place, "cgroup.subtree_control", f"+{name}")
            except OSError:
                # The cpu controller is optional, unless the base has passed it on.
                if name in NEEDED or (name in offered and place == folder):
                    raise


def _limit(folder: str, limits: Limits) -> None:
    """Raises:
    OSError: a required limit could not be set.
    """
    _write(folder, "memory.max", str(limits.memory_mb * MB))
    _write(folder, "pids.max", str(limits.processes))
    with suppress(OSError):  # some kernels do not count swap
        _write(folder, "memory.swap.max", "0")
    if limits.cpus:
        _write(folder, "cpu.max", f"{round(limits.cpus * PERIOD_US)} {PERIOD_US}")


def _remove_all(folder: str) -> bool:
    """Remove a cgroup and those in it, unless they hold processes; return whether it is gone."""
    try:
        inside = [each.path for each in os.scandir(folder) if each.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return True
    except OSError:
        return False
    for path in (*inside, folder):
        with suppress(OSError):
            os.rmdir(path)
    return not os.path.isdir(folder)


def _read(folder: str, name: str) -> str:
    with open(f"{folder}/{name}") as file:
        return file.read()


def _write(folder: str, name: str, text: str) -> None:
    """Write a control file in one write, as the kernel requires; never create one."""
    descriptor = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
