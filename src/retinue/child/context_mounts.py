"""Mounts of context paths, each at its place with covers over hidden paths, or copies of them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence

from retinue.child import syscalls

# Copies of context paths, for machines where a child cannot mount.
#
# Programs that search a folder do not follow links, so small paths are copied. A large path becomes
# a link; the prompt and the contract name its target.

# Limits for all paths of one child together.
MOST_FILES = 10_000
MOST_BYTES = 64 * 1024 * 1024
PART = 1 << 20
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class CopyTooLarge(Exception):
    """The paths exceed the limits of what is copied."""


class Allowance:
    """Number of files and bytes that may still be copied."""

    def __init__(self) -> None:
        self._files, self._bytes = MOST_FILES, MOST_BYTES

    def take(self, size: int) -> None:
        """Raises:
        CopyTooLarge: the limits are exceeded.
        """
        self._files -= 1
        self._bytes -= size
        if self._files < 0 or self._bytes < 0:
            raise CopyTooLarge


def copy_or_link(views: Sequence[tuple[str, str]], hidden: Collection[str]) -> None:
    """Put a copy of each path in its place, or a link to it.

    Raises:
        OSError: neither could be made.
    """
    allowance = Allowance()
    for place, path in sorted(views):
        above = os.path.dirname(place)
        # The place lies within a path that is a link already, and shows it.
        if os.path.realpath(above) != above:
            continue
        remove(place)
        os.makedirs(above, exist_ok=True)
        try:
            _copy(path, place, hidden, allowance)
        except (OSError, CopyTooLarge, RecursionError):
            remove(place)
            os.symlink(path, place)


def remove(place: str) -> None:
    """Remove a file, a link or a whole folder; no link is followed."""
    try:
        mode = os.lstat(place).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        os.unlink(place)
        return
    os.chmod(place, 0o700)
    for name in os.listdir(place):
        remove(f"{place}/{name}")
    os.rmdir(place)


def _copy(path: str, place: str, hidden: Collection[str], allowance: Allowance) -> None:
    """Raises:
    OSError: something cannot be read or written.
    CopyTooLarge: the limits are exceeded.
    """
    status = os.lstat(path)
    allowance.take(status.st_size if stat.S_ISREG(status.st_mode) else 0)
    if stat.S_ISDIR(status.st_mode):
        os.mkdir(place, 0o755)
        for name in os.listdir(path):
            if f"{path}/{name}" not in hidden:
                _copy(f"{path}/{name}", f"{place}/{name}", hidden, allowance)
    elif stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(path), place)
    elif stat.S_ISREG(status.st_mode):
        _copy_file(path, place, 0o444 | status.st_mode & 0o111)


def _copy_file(path: str, place: str, mode: int) -> None:
    source = os.open(path, FILE)
    try:
        target = os.open(place, NEW, mode)
        try:
            while part := os.read(source, PART):
                while part:
                    part = part[os.write(target, part) :]
        finally:
            os.close(target)
    finally:
        os.close(source)


AT_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
PASSED = AT_PLACE | os.O_DIRECTORY
MOST_ENTRIES = 1000  # of a folder that is mounted entry by entry
SMALL_SIZE = b"mode=755,size=16m,nr_inodes=16k"
# Errors of the kernel where a child may not mount.
NO_MOUNTS = (errno.EPERM, errno.EACCES, errno.ENOSYS)


def show(
    views: Sequence[tuple[str, str]],
    identities: Mapping[str, tuple[int, int]],
    hidden: Sequence[str],
) -> None:
    """Mount each path read-only at its place, in the child's own mount namespace.

    Where the child may not mount, paths are copied. No boundary depends on that: a child without
    a sandbox can read the originals.

    Raises:
        OSError: a path does not exist any more.
    """
    if not views:
        return
    try:
        syscalls.require_own_namespaces()
        # Slave: the machine's mounts still arrive here, but none of ours get out.
        syscalls.mount(None, b"/", None, syscalls.MS_REC | syscalls.MS_SLAVE, b"")
        _mount(dict(views), identities, hidden)
    except OSError as fault:
        if fault.errno not in NO_MOUNTS:
            raise
        copy_or_link(views, hidden)


def _mount(
    views: dict[str, str], identities: Mapping[str, tuple[int, int]], hidden: Sequence[str]
) -> None:
    folders: list[str] = []
    links: dict[str, str] = {}
    for place, path in list(views.items()):
        if not place.startswith(f"{path}/"):
            continue
        # The place lies within the path itself. A folder that contains itself is a loop, at which
        # searches fail. So it is mounted entry by entry, unless there are too many.
        entries = _entries(place, path, hidden, found := dict[str, str]())
        if len(entries) <= MOST_ENTRIES:
            del views[place]
            views |= entries
            links |= found
            folders.append(place)
    # All trees are opened before the first is mounted, so that none shows another's mounts.
    trees = {
        place: syscalls.clone_tree(path, plain=True, identity=identities.get(path))
        for place, path in views.items()
    }
    restrictions = syscalls.ATTR_NOSUID | syscalls.ATTR_NODEV | syscalls.ATTR_RDONLY
    # By length: a folder is mounted before what lies in it.
    for place in sorted({*folders, *links, *trees, *hidden_in_views(views, hidden)}, key=len):
        if place in trees:
            syscalls.change_tree(trees[place], restrictions)
            attach(trees[place], "", place)
        elif place in links:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            os.symlink(links[place], place)
        else:
            cover("", place)
    # Read-only last, because places had to be made in these folders.
    for place in folders:
        sealed = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_RDONLY
        flags = syscalls.MS_REMOUNT | syscalls.MS_BIND | sealed
        syscalls.mount(None, os.fsencode(place), None, flags, b"")


def _entries(
    place: str, path: str, hidden: Sequence[str], links: dict[str, str], within: str = ""
) -> dict[str, str]:
    """Return the entries of a folder by their places; folders on the way to `within` are split.

    Links are added to `links`; pipes, sockets and devices are left out.
    """
    found: dict[str, str] = {}
    within = within or place
    for name in os.listdir(path):
        entry = f"{path}/{name}"
        there = f"{place}/{name}"
        mode = os.lstat(entry).st_mode
        if entry in hidden:
            continue
        if within.startswith(f"{entry}/"):
            found |= _entries(there, entry, hidden, links, within)
        elif stat.S_ISLNK(mode):
            links[there] = os.readlink(entry)
        elif stat.S_ISDIR(mode) or stat.S_ISREG(mode):
            found[there] = entry
    return found


def hidden_in_views(views: Mapping[str, str], hidden: Iterable[str]) -> set[str]:
    """Return the places at which hidden paths would appear in the views."""
    return {
        place + path.removeprefix(top)
        for path in hidden
        for place, top in views.items()
        if path == top or path.startswith(f"{top}/")
    }


def make_place(tree: int, target: str) -> None:
    """Make the mount point of a tree, in a folder that only this process can write."""
    if stat.S_ISDIR(os.fstat(tree).st_mode):
        os.makedirs(target, exist_ok=True)
    elif not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))


def attach(tree: int, root: str, place: str) -> None:
    """Mount a tree at a place below `root`, and make the place if it does not exist.

    Other processes may write in folders that are mounted there already. A link among them could
    lead the mount, or the new folder, to any place of the machine, so no link is followed.

    Raises:
        OSError: ELOOP if a link is on the way.
    """
    target = _open_place(root, place, folder=stat.S_ISDIR(os.fstat(tree).st_mode))
    try:
        syscalls.attach_tree(tree, target)
    finally:
        os.close(target)


def cover(root: str, place: str) -> bool:
    """Hide what is at a place, if anything; return whether it is covered by an empty folder.

    A file is covered by a device that cannot be opened.
    """
    try:
        target = _open_place(root, place)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        if stat.S_ISDIR(os.fstat(target).st_mode):
            mount_tmpfs(f"{root}/proc/self/fd/{target}")
            return True
        tree = syscalls.clone_tree("/dev/null")
        restrictions = syscalls.ATTR_NOSUID | syscalls.ATTR_NODEV | syscalls.ATTR_RDONLY
        syscalls.change_tree(tree, restrictions)
        syscalls.attach_tree(tree, target)
        return False
    finally:
        os.close(target)


MOST_LINKS = 40  # the kernel's own limit
MAGIC = ("/proc/", "/dev/")  # a link there may lead elsewhere for each process


def find_masked(root: str, folder: str, place: str) -> str:
    """Return where a place in a folder leads, as a process whose root is `root` follows links.

    The folder came from elsewhere with all its links. A mask that does not follow them would hide
    nothing: a program that reads `.github/hooks` also reads it where `.github` is a link.

    Raises:
        OSError: ELOOP if there are too many links; EXDEV if they lead to something outside of the
            folder, which the mask could not hide.
    """
    waiting = place.split("/")[::-1]
    here = ""
    links = 0
    while waiting:
        name = waiting.pop()
        if name in ("", "."):
            continue
        if name == "..":
            here = os.path.dirname(here)
            continue
        there = f"{here}/{name}"
        try:
            target = os.readlink(root + there)
        except OSError:  # no link; or nothing is there, and so nothing below it
            here = there
            continue
        links += 1
        if links > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), place)
        here = "" if target.startswith("/") else here
        waiting += target.split("/")[::-1]
        if _normalize(here, target).startswith(MAGIC):
            raise OSError(errno.EXDEV, "a link leads out of the workspace", place)
    if not here.startswith(f"{folder}/") and os.path.lexists(root + here):
        raise OSError(errno.EXDEV, "a link leads out of the workspace", place)
    return here


def _normalize(here: str, target: str) -> str:
    return os.path.normpath(os.path.join(here or "/", target)) + "/"


def _open_place(root: str, place: str, *, folder: bool | None = None) -> int:
    """Open a place below `root` without following links.

    Args:
        folder: make a missing place, as a folder or as a file; None: it must exist.

    Raises:
        OSError: the place does not exist, or a link is on the way.
    """
    *above, name = [part for part in place.split("/") if part]
    here = os.open(root or "/", PASSED)
    try:
        for part in above:
            outer = here
            here = _enter(here, part, make=folder is not None)
            os.close(outer)
        if folder:
            return _enter(here, name, make=True)
        try:
            found = os.open(name, AT_PLACE, dir_fd=here)
        except FileNotFoundError:
            if folder is None:
                raise
            new = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(name, new, 0o644, dir_fd=here))
            found = os.open(name, AT_PLACE, dir_fd=here)
    except OSError as fault:
        number = fault.errno or errno.EIO
        raise OSError(number, os.strerror(number), place) from None
    finally:
        os.close(here)
    # O_PATH opens a link itself instead of failing.
    if stat.S_ISLNK(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), place)
    return found


def _enter(folder: int, name: str, *, make: bool) -> int:
    try:
        return os.open(name, PASSED, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    os.mkdir(name, 0o755, dir_fd=folder)
    return os.open(name, PASSED, dir_fd=folder)


def mount_tmpfs(path: str, data: bytes = SMALL_SIZE) -> None:
    restrictions = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount(b"tmpfs", os.fsencode(path), b"tmpfs", restrictions, data)
