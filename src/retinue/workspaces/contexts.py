"""Context paths and files: checked when they are given, laid out before the subagent runs.

A path is resolved once, when it is given, and recorded with the device and inode of its target.
Later it is only compared and opened, component by component and without following links.
What a given folder holds is checked within bounds.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from retinue.core.contract import FILES, PATHS, Context, PathIdentity, list_context_places
from retinue.core.errors import BadInput, LaunchFailed
from retinue.files import (
    ROOT_MARKS,
    is_root_folder,
    make_folder,
    open_without_links,
    storage_failures,
)
from retinue.workspaces.child_files import TreeWalk
from retinue.workspaces.owned_files import keep_plain, own_folder

SYSTEM = ("/usr/", "/opt/", "/etc/")  # visible to every child anyway
MOST_ENTRIES = 200_000  # takes about a second
MOST_ROOTS, MOST_PIPES = 128, 128  # each one costs a mount


@dataclass(frozen=True, kw_only=True)
class Search:
    hidden: tuple[str, ...] = ()
    complete: bool = True  # whether everything was searched


def find_root_above(place: Path) -> Path | None:
    """Return the outermost root that contains a place; None without one."""
    return next((each for each in reversed(place.parents) if is_root_folder(each)), None)


def find_hidden(tops: Sequence[str]) -> Search:
    """Return what must be hidden in these folders.

    The search is breadth first, so that entries near the top are found in any tree. Links are not
    followed: a mount shows them as links, and their targets are not mounted.
    """
    starts = [top.strip("/") for top in tops if not f"{top}/".startswith(SYSTEM)]
    roots: list[str] = []
    pipes: list[str] = []
    walk = TreeWalk(Path("/"), starts, most=MOST_ENTRIES, breadth_first=True)
    for folder in walk:
        if any(entry.name in ROOT_MARKS for entry in folder.entries):
            # The whole root is hidden, so nothing inside it needs a search.
            roots.append("/" + folder.path.removesuffix("/"))
            folder.enter.clear()
        else:
            pipes += [f"/{folder.path}{each.name}" for each in folder.entries if _is_pipe(each)]
        if len(roots) > MOST_ROOTS:
            break
    complete = walk.complete and len(roots) <= MOST_ROOTS and len(pipes) <= MOST_PIPES
    return Search(hidden=(*roots[:MOST_ROOTS], *pipes[:MOST_PIPES]), complete=complete)


def _is_pipe(entry: os.DirEntry[str]) -> bool:
    # These kinds are known from the listing, without another system call.
    if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False):
        return False
    if entry.is_symlink():
        return False
    with suppress(OSError):
        return stat.S_ISFIFO(entry.stat(follow_symlinks=False).st_mode)
    return False


# Resolution of an untrusted path, link by link.
#
# Each link is read once, and its target is checked before anything behind it is accessed. The
# resolved path is recorded and later opened without following any link.

MOST_LINKS = 40  # the kernel's own limit


class LeadsOutside(Exception):
    """The path leads to a place that may not be accessed."""


def resolve_links(path: str, may_look: Callable[[str], bool], fence: str) -> str:
    """Return where an absolute path leads.

    Args:
        may_look: whether a place may be accessed. Where it may not, the caller does not even
            learn whether anything exists there.
        fence: a folder in which others write; a link inside it may not lead out of it.

    Raises:
        LeadsOutside: it leads to a place that may not be accessed, or out of the fence.
        OSError: nothing is there, or the links form a loop.
    """
    waiting = path.split("/")[::-1]
    here = "/"
    links = 0
    fenced = False
    while waiting:
        name = waiting.pop()
        if name in ("", "."):
            continue
        if name == "..":
            here = os.path.dirname(here)
            continue
        place = f"{here.rstrip('/')}/{name}"
        # Check before lstat: even an error would tell whether the place exists.
        if not may_look(place) or (
            fenced and not (is_below(place, fence) or is_below(fence, place))
        ):
            raise LeadsOutside(place)
        if not stat.S_ISLNK(os.lstat(place).st_mode):
            here = place
            continue
        links += 1
        if links > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink(place)
        # One link inside the fence is enough: from then on the path is under a child's control.
        fenced = fenced or is_below(place, fence)
        here = "/" if target.startswith("/") else here
        waiting += target.split("/")[::-1]
    return here


def is_below(place: str, folder: str) -> bool:
    """Return whether a place is the folder itself or lies in it."""
    return place == folder or place.startswith(f"{folder.rstrip('/')}/")


MAX_FILE_BYTES = 64 * 1024 * 1024
OUTPUTS = ("workspace", "artifacts", "full_logs")  # of a subagent; others may read them
ACCESS_LIST = "system.posix_acl_access"


@dataclass(frozen=True, kw_only=True)
class Lendable:
    """A file or folder that a parent may give, with everything below it."""

    path: str  # as recorded; never resolved again
    owner: tuple[int, int] | None = None  # user and group whose files the parent may read


@dataclass(frozen=True, kw_only=True)
class ContextScope:
    """Limits on where a parent may give contexts from."""

    base: Path
    allowed: Sequence[Lendable]
    root: Path  # the `.retinue` folder; allowing a folder around it does not allow it
    delegated: bool = False  # the parent is a subagent, which must learn nothing about other places
    other_user: bool = False  # the parent runs as a user with fewer rights than the steward
    hidden: tuple[str, ...] = ()  # hidden from the parent, and so from those it delegates to

    def can_give(self, place: Path) -> bool:
        """Return whether the parent may give this; of a root, only output of subagents."""
        inner = self._find_root(place)
        allowed = self.allowed
        if inner is not None:
            if inner == self.root:
                allowed = [each for each in allowed if is_below(each.path, str(inner))]
            if not _is_output(place.relative_to(inner)):
                return False
        return any(is_below(str(place), each.path) for each in allowed)

    def can_look(self, place: str) -> bool:
        """Return whether the parent may learn what is there."""
        if not self.delegated:
            return True
        return any(
            is_below(place, each.path) or is_below(each.path, place) for each in self.allowed
        )

    def find_top(self, place: Path) -> Lendable:
        """Return the innermost lendable path that contains a place."""
        found = [each for each in self.allowed if is_below(str(place), each.path)]
        top = max(found, key=lambda each: len(each.path))
        if top.owner is not None or not place.is_relative_to(self.root):
            return top
        # Where a whole task may be given, the owner of a subagent's output decides.
        path = self.root / Path(*_match_output(place.relative_to(self.root)))
        status = path.lstat()
        return Lendable(path=str(path), owner=(status.st_uid, status.st_gid))

    def _find_root(self, place: Path) -> Path | None:
        if place.is_relative_to(self.root):
            return self.root
        return place if is_root_folder(place) else find_root_above(place)


def _is_output(path: Path) -> bool:
    return bool(_match_output(path))


def _match_output(path: Path) -> tuple[str, ...]:
    """Return the leading parts of a path in a root that name an output folder; () without one."""
    match path.parts:
        case ("tasks", _, "agents", _, kind, *_):
            return path.parts[:5] if kind in OUTPUTS else ()
        case ("tasks", _, "shared", *_):
            return path.parts[:3]
    return ()


def resolve_base(base: Path, root: Path) -> Path:
    """Return the folder of a person's call, with links resolved.

    Raises:
        BadInput: a link in a workspace leads out of the root.
    """
    try:
        return Path(resolve_links(str(base), lambda _: True, str(root)))
    except (LeadsOutside, OSError):
        raise BadInput(
            f"the folder {str(base)!a} cannot be used",
            code="context_outside",
            hint="call from a folder of the project; links in a workspace are not followed",
        ) from None


def check_contexts(
    paths: Sequence[str], files: Sequence[str], giving: ContextScope, standing: Sequence[str] = ()
) -> Context:
    """Return contexts that exist, are plain, and lie where the parent may give them from.

    Args:
        standing: paths of the configuration, which errors name as such.

    Raises:
        BadInput: names the first one that does not.
    """
    places = [_check_context(path, giving, "context path") for path in paths]
    places += [_check_context(path, giving, "path of subagent_context_paths") for path in standing]
    given = [_check_context(path, giving, "context file") for path in files]
    for place, status in given:
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
            raise BadInput(
                f"context file {str(place)!a} is not a file of at most {MAX_FILE_BYTES} bytes",
                code="invalid_context",
                hint="give folders and large files as context paths",
            )
    names = [place.name for place, _ in given]
    if len(set(names)) != len(names):
        raise BadInput("two context files have the same name", code="invalid_context")
    lent = tuple(str(place) for place, _ in places)
    search = find_hidden(lent)
    # Always hide this root: the search recognizes roots by files that it may not have yet.
    known = (*giving.hidden, str(giving.root))
    inside = [each for each in known if any(is_below(each, top) for top in lent)]
    return Context(
        base=str(giving.base),
        paths=lent,
        files=tuple(str(place) for place, _ in given),
        identities=tuple(_make_identity(place, status, giving) for place, status in places),
        hidden=tuple(dict.fromkeys((*inside, *search.hidden))),
        searched=search.complete,
    )


def list_private(context: Context) -> list[str]:
    """Return the lent paths that no user but their owner can read."""
    found = []
    for path in context.paths:
        with suppress(OSError):  # it was removed since
            status = os.lstat(path)
            needed = 5 if stat.S_ISDIR(status.st_mode) else 4
            if status.st_mode & needed != needed:
                found.append(path)
    return found


def search_again(context: Context, folders: Sequence[str]) -> Context:
    """Return the context with what must be hidden in these folders by now, too."""
    search = find_hidden(folders)
    hidden = tuple(dict.fromkeys((*context.hidden, *search.hidden)))
    return replace(context, hidden=hidden, searched=context.searched and search.complete)


def _check_context(given: str, giving: ContextScope, what: str) -> tuple[Path, os.stat_result]:
    shown = ascii(given[:120])
    if not given or "\0" in given:
        raise BadInput(f"{what} {shown} is not a path", code="invalid_context")
    try:
        path = resolve_links(os.path.join(giving.base, given), giving.can_look, str(giving.root))
        place = Path(path)
        if giving.delegated and not giving.can_give(place):
            raise LeadsOutside(path)  # before any look: a subagent must not learn whether it exists
        status = _read_status(path)
    except LeadsOutside:
        raise _make_outside_error(shown, giving, what) from None
    except OSError as error:
        raise BadInput(
            f"{what} {shown} cannot be used: {error.strerror or error}",
            code="missing_context",
            hint=f"paths are relative to {giving.base}; '~' and wildcards are not expanded",
        ) from None
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise BadInput(f"{what} {shown} is neither a file nor a folder", code="invalid_context")
    if not giving.can_give(place):
        raise _make_outside_error(shown, giving, what)
    if path == "/":  # mounted in an isolated child, it would cover all that the child is given
        raise BadInput(
            f"{what} {shown} is the whole machine",
            code="invalid_context",
            hint="call from a folder of the project, or name the folders that the subagent needs",
        )
    if giving.other_user and not _is_readable(place, giving.find_top(place)):
        raise BadInput(
            f"{what} {shown} cannot be read by the subagent that gives it",
            code="context_unreadable",
            hint="give only paths that you can read yourself",
        )
    return place, status


def _make_outside_error(shown: str, giving: ContextScope, what: str) -> BadInput:
    allowed = ", ".join(each.path for each in giving.allowed)
    return BadInput(
        f"{what} {shown} lies outside of what this parent may give",
        code="context_outside",
        hint=f"allowed: {allowed}; more by subagent_context_roots; "
        f"of {giving.root} only shared/ of tasks, and {', '.join(OUTPUTS)} of subagents",
    )


def _read_status(path: str) -> os.stat_result:
    place = open_without_links(path)
    try:
        return os.fstat(place)
    finally:
        os.close(place)


def _make_identity(place: Path, status: os.stat_result, giving: ContextScope) -> PathIdentity:
    """Return the identity of a place and the owner whose files it lends.

    A path that was itself lent keeps its owner.
    """
    uid, gid = (giving.delegated and giving.find_top(place).owner) or (status.st_uid, status.st_gid)
    return PathIdentity(device=status.st_dev, inode=status.st_ino, uid=uid, gid=gid)


def _is_readable(place: Path, top: Lendable) -> bool:
    """Return whether a child that has the rights of the owner of `top` can read this."""
    assert top.owner is not None, "what a subagent may give has an owner"
    # Every folder on the way needs search permission, the place itself read permission.
    above = [each for each in place.parents if is_below(str(each), top.path)]
    for each in (*reversed(above), place):
        status = each.lstat()
        needed = 4 if each == place else 1
        if stat.S_ISDIR(status.st_mode):
            needed |= 1
        if status.st_uid == top.owner[0]:
            granted = status.st_mode >> 6
        elif ACCESS_LIST in os.listxattr(each, follow_symlinks=False):
            return False  # an access control list may deny what the mode grants
        else:
            granted = status.st_mode >> (3 if status.st_gid == top.owner[1] else 0)
        if granted & needed != needed:
            return False
    return True


# -- recorded paths, compared with the file system


def describe_replacement(path: str, identity: PathIdentity | None, root: Path) -> str:
    """Return how a recorded path differs from what was given; empty if it does not.

    Where children write, it must be the very same folder or file. Elsewhere only its owner can
    replace it, and editors do so with every file they save.
    """
    try:
        status = _read_status(path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return "was replaced by a link"
        return f"cannot be used any more: {error.strerror}"
    if identity is None or not is_written_by_children(path, root):
        return ""
    same = (status.st_dev, status.st_ino) == (identity.device, identity.inode)
    return "" if same else "was replaced since it was given"


def is_written_by_children(path: str, root: Path) -> bool:
    return is_below(path, str(root)) or find_root_above(Path(path)) is not None


def list_recorded(context: Context) -> list[tuple[str, PathIdentity | None]]:
    """Return each path with its identity; contracts of earlier versions have none."""
    return [
        (path, identity)
        for path, identity in zip_longest(context.paths, context.identities)
        if path is not None
    ]


def require_unchanged(context: Context, root: Path) -> Mapping[str, tuple[int, int]]:
    """Return the device and inode that paths must still have when they are mounted.

    Raises:
        LaunchFailed: a path was replaced since it was given.
    """
    required: dict[str, tuple[int, int]] = {}
    for path, identity in list_recorded(context):
        if why := describe_replacement(path, identity, root):
            raise LaunchFailed(f"context path {path} {why}")
        if identity is not None and is_written_by_children(path, root):
            required[path] = (identity.device, identity.inode)
    return required


# -- the folder RETINUE_CONTEXT of a child


def lay_out(context: Context, folder: Path) -> None:
    """Create the mount points of context paths, and copies of context files.

    Without contexts the folder stays empty. Links that an earlier attempt left are replaced, not
    followed: a child without a sandbox can create them.
    """
    if not context.paths and not context.files:
        make_folder(folder, mode=0o755)  # the child may run as another user
        return
    places = list_context_places(context)
    with storage_failures(folder):
        _own(folder)
        for name in (FILES, PATHS):
            if name not in (place for _, place in places):
                _own(folder / name)
        for path, place in places:
            # A place inside another one appears within that mount and needs no mount point here.
            if not any(is_below(place, other) for _, other in places if other != place):
                _make_place(folder / place, folder, path)
        for path in context.files:
            copy = folder / FILES / Path(path).name
            if not _is_file(copy):
                _copy(path, copy)


def _own(folder: Path) -> None:
    own_folder(folder)
    os.chmod(folder, 0o755)


def _make_place(place: Path, folder: Path, path: str) -> None:
    for above in reversed(place.relative_to(folder).parents[:-1]):
        _own(folder / above)
    if os.path.isdir(path):
        _own(place)
    elif not _is_file(place):
        place.touch(mode=0o444)


def _is_file(place: Path) -> bool:
    """Remove or move aside anything but a plain file; return whether a file is there."""
    keep_plain(place)
    return os.path.lexists(place)


def _copy(path: str, copy: Path) -> None:
    """Copy a context file, read-only, without following links.

    Raises:
        OSError: it is no longer a plain file, since others may write there.
    """
    try:
        source = open_without_links(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "was replaced by a link", path) from None
        raise
    with open(source, "rb") as given:
        if not stat.S_ISREG(os.fstat(source).st_mode):
            raise OSError(errno.EINVAL, "is no longer a file", path)
        with open(copy, "xb") as target:
            shutil.copyfileobj(given, target)
            os.fchmod(target.fileno(), 0o444)
