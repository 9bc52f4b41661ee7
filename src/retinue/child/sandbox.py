"""Boundary of an isolated child: the files it sees, the calls it may make, its user.

The kernel enforces all of it. If a part cannot be put in force, the launch fails before anything
of the task has run.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import stat
import struct
from contextlib import suppress

from retinue.child import context_mounts, landlock, seccomp, syscalls
from retinue.child.control_protocol import Order, Record
from retinue.child.namespaces import has_own_user_namespace

# Overlay mount of a workspace: it holds only changes, and shows lower folders for the rest.
#
# A child cannot write to the lower folders: they are not mounted in the sandbox, only the kernel
# refers to them. A changed file is copied to the workspace; a removed file leaves a mark there.

RESTRICTED = syscalls.ATTR_NOSUID | syscalls.ATTR_NODEV
OWN = "own"  # mount point of the folder that holds the workspace and the work folder


class OverlayTrees(Record):
    """The parts of an overlay, as trees that are mounted nowhere yet."""

    own: int
    inside: tuple[str, str]  # relative paths of the workspace and the work folder in it
    below: tuple[int, ...]


def open_overlay_trees(workspace: str, below: tuple[str, ...], work: str) -> OverlayTrees:
    """Open the parts of the overlay, before anything else is mounted.

    Raises:
        OSError: a path is missing; the error names it.
    """
    # overlayfs requires the workspace and the work folder in one mount.
    own = os.path.commonpath([workspace, work])
    inside = (os.path.relpath(workspace, own), os.path.relpath(work, own))
    lower = tuple(map(syscalls.clone_tree, below))
    return OverlayTrees(own=syscalls.clone_tree(own), inside=inside, below=lower)


def mount_overlay(trees: OverlayTrees, target: str, scratch: str, owners: int | None) -> None:
    """Mount the overlay at `target`.

    Args:
        room: an unused path of this child, used and removed again here.
        owners: a user namespace that maps our files to the child; None if both are one user.

    Raises:
        OSError: the kernel refuses the mount.
    """
    if owners is not None and owners < 0:
        raise OSError(errno.EPERM, "owners cannot be mapped", target)
    names = [OWN, *map(str, range(len(trees.below)))]
    os.mkdir(scratch)
    for name, tree in zip(names, (trees.own, *trees.below), strict=True):
        os.mkdir(f"{scratch}/{name}")
        syscalls.change_tree(tree, RESTRICTED if name == OWN else RESTRICTED | syscalls.ATTR_RDONLY)
        if name != OWN and owners is not None:
            syscalls.change_tree(tree, syscalls.ATTR_IDMAP, owners=owners)
        syscalls.attach_tree(tree, f"{scratch}/{name}")
    os.makedirs(target, exist_ok=True)
    # Short relative names: the kernel's options are limited in length, and `:` separates paths.
    os.chdir(scratch)
    workspace, work = (os.fsencode(f"{OWN}/{name}") for name in trees.inside)
    data = b"userxattr,lowerdir=%b,upperdir=%b,workdir=%b"
    data %= (":".join(names[1:]).encode(), workspace, work)
    restrictions = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount(b"overlay", os.fsencode(target), b"overlay", restrictions, data)
    # The overlay keeps its own references; the parts must not be reachable by the child.
    for name in names:
        syscalls.call("umount2", f"{scratch}/{name}".encode(), syscalls.MNT_DETACH)
        os.rmdir(f"{scratch}/{name}")
    os.chdir("/")
    os.rmdir(scratch)


OURS = (0, 0)  # owner of the steward's files: only the superuser has children of other users
UNMAPPED = -1


class Owners:
    """User namespaces that map an owner of files to the child's user, one for each owner."""

    def __init__(self, child: int | None, proc: str) -> None:
        """Args:
        child: the child's user id; None if it is the steward's.
        """
        self._child = child
        self._proc = proc
        self._made: dict[tuple[int, int], int] = {}

    def close(self) -> None:
        for namespace in self._made.values():
            if namespace != UNMAPPED:
                os.close(namespace)

    def open_mapping(self, uid: int, gid: int) -> int:
        """Return a namespace that maps this owner to the child's user; -1 if there is none."""
        if self._child is None:
            return UNMAPPED
        if (uid, gid) not in self._made:
            self._made[uid, gid] = self._make(f"{uid} {self._child} 1", f"{gid} {self._child} 1")
        return self._made[uid, gid]

    def _make(self, users: str, groups: str) -> int:
        # A user namespace exists only with a process in it. A helper makes one and waits, until
        # a descriptor keeps the namespace alive.
        source, sink = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            try:
                syscalls.call("unshare", syscalls.CLONE_NEWUSER)
            finally:
                os.write(sink, b".")
                signal.pause()
        try:
            os.read(source, 1)
            for name, mapping in (("uid_map", users), ("gid_map", groups)):
                with open(f"{self._proc}/{pid}/{name}", "w") as file:
                    file.write(mapping)
            return os.open(f"{self._proc}/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return UNMAPPED
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(source)
            os.close(sink)


SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt")
STAGES = ("/dev/pts", "/sys")  # mount point of the new root: exists, and is never a context path
DEVICES = ("null", "zero", "full", "random", "urandom")
LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
PRIVATE_SIZE = b"mode=1777,size=1g,nr_inodes=1m"  # an empty file takes about 1 KB
# Files of /proc about the machine, not the child; container runtimes hide most of them, too.
MASKED = (
    *("cmdline", "config.gz", "interrupts", "kallsyms", "kcore", "keys"),
    *("latency_stats", "sched_debug", "sysrq-trigger", "timer_list"),
)
# Limits of a user namespace for what the kernel also counts for its owner, who needs some, too.
QUOTAS = {"max_inotify_instances": 16, "max_inotify_watches": 16384}
NO_NAMESPACES = {"max_user_namespaces": 0}  # which the other kinds need as well
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def prepare_root() -> str:
    """Mount what all children share and return its folder; drop all capabilities.

    That is the system folders, devices and private folders. Called once, by the init of new
    namespaces.

    Raises:
        OSError: a mount failed.
    """
    syscalls.require_own_namespaces()
    # Slave: while the init is idle, a file system that the machine unmounts goes here, too.
    syscalls.mount(None, b"/", None, syscalls.MS_REC | syscalls.MS_SLAVE, b"")
    folders, links = _list_system_folders()
    trees = {path: syscalls.clone_tree(path) for path in folders}
    devices = {name: syscalls.clone_tree(f"/dev/{name}") for name in DEVICES}
    root = next(filter(os.path.isdir, STAGES), STAGES[-1])
    _mount_tmpfs(root)
    _mount_private_folders(root)
    _mount_devices(root, devices)
    for path, tree in trees.items():
        _bind(tree, root, path)
    for inside, target in links.items():
        os.symlink(target, root + inside)
    # Private from here on: a mount of the machine would arrive without our restrictions.
    syscalls.mount(None, os.fsencode(root), None, syscalls.MS_REC | syscalls.MS_PRIVATE, b"")
    syscalls.call("sethostname", b"retinue", 7)
    if has_own_user_namespace():
        # The superuser still needs user namespaces, to map the owners of lent paths.
        limits = QUOTAS if os.geteuid() == 0 else QUOTAS | NO_NAMESPACES
        _limit_user_namespace(root + "/proc/sys/user", limits)
    syscalls.drop_capabilities()
    return root


def build(order: Order, root: str) -> None:
    """Mount the child's own paths and make `root` the root of the file system.

    Args:
        root: the folder that `prepare_root` returned.

    Raises:
        OSError: a mount failed.
    """
    syscalls.require_own_namespaces()
    syscalls.mount(None, b"/", None, syscalls.MS_REC | syscalls.MS_PRIVATE, b"")
    shown = (*order.readable, *order.writable, *order.lent)
    if "/" in shown:  # it would cover all that is mounted here
        raise OSError(errno.EINVAL, "the whole machine cannot be shown", "/")
    views = dict(order.views)
    # All trees are opened before the first is mounted, so that none shows mounts of this child.
    trees = {
        place: _clone(order, path)
        for place, path in (*((path, path) for path in shown), *views.items())
        if place != order.layered
    }
    layered = order.layered and open_overlay_trees(order.layered, order.below, order.work)
    hidden = {*order.hidden, *context_mounts.hidden_in_views(views, order.hidden)}
    covered = list[str]()
    owners = Owners(order.uid, root + "/proc")
    # By length: a folder is mounted before what lies in it.
    for place in sorted({*trees, *hidden, *filter(None, (order.layered,))}, key=len):
        path = views.get(place, place)
        if place in trees:
            writable = path in order.writable
            whose = _namespace(order, owners, path, trees[place])
            # Other processes may write in lent paths, so no place within one is trusted.
            within = any(place.startswith(f"{top}/") for top in (*order.lent, *views))
            tree = trees[place]
            where = _resolve_var_tmp(place)
            _bind(tree, root, where, writable=writable, owners=whose, trusted=not within)
        elif layered and place == order.layered:
            ours = None if order.uid is None else owners.open_mapping(*OURS)
            mount_overlay(layered, root + place, root + "/.layers", ours)
        elif context_mounts.cover(root, _resolve_var_tmp(place)):
            covered.append(place)
    # After all mounts: only now a link leads where it will lead the child.
    for folder, place in order.masked:
        found = context_mounts.find_masked(root, _resolve_var_tmp(folder), _resolve_var_tmp(place))
        if context_mounts.cover(root, found):
            covered.append(found)
    owners.close()
    if order.uid is not None and has_own_user_namespace():
        _limit_user_namespace(root + "/proc/sys/user", NO_NAMESPACES)
    syscalls.enter_root(os.fsencode(root))
    kept = [order.layered] if order.layered and order.layered not in order.writable else []
    for path in ("/", *covered, *kept):  # last, because mount points had to be made in them
        _remount_read_only(path)
    if order.network == "models":
        _raise_loopback()


def _resolve_var_tmp(place: str) -> str:
    """Return where a place is in the new root, in which /var/tmp is a link to /tmp."""
    return place.removeprefix("/var") if place.startswith("/var/tmp/") else place


def _clone(order: Order, path: str) -> int:
    """Clone the tree at a path; no links on the way to a lent one, which others may write in."""
    lent = path in order.lent
    return syscalls.clone_tree(path, plain=lent, identity=dict(order.identities).get(path))


def _namespace(order: Order, owners: Owners, path: str, tree: int) -> int:
    """Return the user namespace that maps the owner of a lent path to the child; -1: none."""
    if path not in order.lent:
        return UNMAPPED
    top = os.fstat(tree)
    uid, gid = dict(order.owners).get(path, (top.st_uid, top.st_gid))
    return owners.open_mapping(uid, gid)


def confine(order: Order) -> int:
    """Give up all privileges of this process: user, Landlock, seccomp.

    Returns:
        The descriptor that announces refused system calls.

    Raises:
        OSError: a restriction could not be applied; the command must not run.
    """
    # Groups before the user: afterwards they could not be changed.
    if order.uid is not None:
        os.setgroups([])
        os.setresgid(order.uid, order.uid, order.uid)
        os.setresuid(order.uid, order.uid, order.uid)
    syscalls.clear_capabilities()
    syscalls.call("prctl", syscalls.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if landlock.read_abi_version():
        writable = [*order.writable, "/tmp", "/dev"]
        landlock.apply_landlock(["/"], writable, network=order.network != "off")
    # Last, so that the filter does not restrict the steps above.
    return seccomp.apply_filter(network=order.network)


def _list_system_folders() -> tuple[list[str], dict[str, str]]:
    """Return the system folders to mount, and the links among them with their targets."""
    modes = {}
    for path in SYSTEM:
        with suppress(FileNotFoundError):
            modes[path] = os.lstat(path).st_mode
    folders = [path for path, mode in modes.items() if stat.S_ISDIR(mode)]
    return folders, {path: os.readlink(path) for path, mode in modes.items() if stat.S_ISLNK(mode)}


def _mount_tmpfs(path: str, data: bytes = context_mounts.SMALL_SIZE) -> None:
    context_mounts.mount_tmpfs(path, data)


def _remount_read_only(path: str) -> None:
    """Make this mount read-only; other mounts of the same file system are not changed."""
    restrictions = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_RDONLY
    syscalls.mount(
        None, os.fsencode(path), None, syscalls.MS_REMOUNT | syscalls.MS_BIND | restrictions, b""
    )


def _mount_private_folders(root: str) -> None:
    for name in ("/proc", "/dev", "/tmp", "/run", "/home", "/var"):
        os.mkdir(root + name, 0o755)
    # Relative: before `enter_root`, an absolute link would lead out of the new root.
    os.symlink("../tmp", root + "/var/tmp")
    _mount_tmpfs(root + "/tmp", data=PRIVATE_SIZE)
    restrictions = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    syscalls.mount(b"proc", os.fsencode(root + "/proc"), b"proc", restrictions, b"hidepid=2")
    for name in MASKED:
        _mask(f"{root}/proc/{name}")


def _mask(path: str) -> None:
    """Hide a file of /proc; one that only the superuser may use is out of reach already."""
    with suppress(FileNotFoundError):
        if os.stat(path).st_mode & 0o077:
            syscalls.mount(b"/dev/null", os.fsencode(path), None, syscalls.MS_BIND, b"")


def _limit_user_namespace(folder: str, limits: dict[str, int]) -> None:
    """Lower the limits of this user namespace."""
    for name, most in limits.items():
        try:
            setting = os.open(f"{folder}/{name}", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # this kernel does not count them
            continue
        try:
            if int(os.read(setting, 32)) > most:
                os.pwrite(setting, b"%d\n" % most, 0)
        finally:
            os.close(setting)


def _bind(
    tree: int,
    root: str,
    place: str,
    *,
    writable: bool = False,
    owners: int = UNMAPPED,
    trusted: bool = True,
) -> None:
    attributes = syscalls.ATTR_NOSUID | syscalls.ATTR_NODEV
    syscalls.change_tree(tree, attributes if writable else attributes | syscalls.ATTR_RDONLY)
    if owners != UNMAPPED:
        _map_owners(tree, owners)
    if trusted:
        context_mounts.make_place(tree, root + place)
        syscalls.attach_tree(tree, root + place)
    else:
        context_mounts.attach(tree, root, place)


def _map_owners(tree: int, owners: int) -> None:
    """Map the owners of a tree to the child, as far as its file systems support that.

    In the rest, the child can read what all users can.
    """
    for whole in (True, False):  # if a file system in the tree does not, its top may
        with suppress(OSError):
            syscalls.change_tree(tree, syscalls.ATTR_IDMAP, owners=owners, whole=whole)
            return


def _mount_devices(root: str, devices: dict[str, int]) -> None:
    folder = root + "/dev"
    restrictions = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
    syscalls.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", restrictions, context_mounts.SMALL_SIZE)
    for name, tree in devices.items():
        target = f"{folder}/{name}"
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
        syscalls.attach_tree(tree, target)
    for name, to in LINKS.items():
        os.symlink(to, f"{folder}/{name}")
    for name, kind, data in (
        ("shm", b"tmpfs", PRIVATE_SIZE),
        ("pts", b"devpts", b"newinstance,ptmxmode=0666,mode=620"),
    ):
        os.mkdir(f"{folder}/{name}")
        syscalls.mount(kind, os.fsencode(f"{folder}/{name}"), kind, restrictions, data)
    os.symlink("pts/ptmx", f"{folder}/ptmx")


def _raise_loopback() -> None:
    """Bring up the loopback interface of the child's own network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sH14s", b"lo", 0, b"")
        (flags,) = struct.unpack_from("H", fcntl.ioctl(control, SIOCGIFFLAGS, request), 16)
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", flags | IFF_UP, b""))
