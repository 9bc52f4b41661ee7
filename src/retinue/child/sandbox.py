"""The boundary of an isolated child: what it sees, what it may do, who it is.

The kernel enforces all of it. Whatever cannot be put in force is an error
before a line of the task has run; nothing is left out silently.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import struct
from contextlib import suppress

from retinue.child import kernel, landlock, layers, seccomp
from retinue.child.owners import OURS, UNMAPPED, Owners
from retinue.child.record import Record

OF_ISOLATED = kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS  # namespaces that nobody else has
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt")
STAGES = ("/dev/pts", "/sys")  # one of them is there, and nobody works in it or lends it
DEVICES = ("null", "zero", "full", "random", "urandom")
LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
PRIVATE_SIZE = b"mode=1777,size=1g,nr_inodes=1m"  # an empty file takes about 1 KB
SMALL_SIZE = b"mode=755,size=16m,nr_inodes=16k"
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


class Sandbox(Record):
    """What one child is given. Paths are the host's; inside, everything has the same name."""

    readable: tuple[str, ...]  # beside the system base, bound read-only
    writable: tuple[str, ...]  # bound read-write
    lent: tuple[str, ...] = ()  # the parent's, bound read-only, as if the child owned them
    hidden: tuple[str, ...] = ()  # empty, wherever they lie within what is lent
    network: str = "off"  # or models, on
    uid: int | None = None  # who the command is, where we may choose
    layered: str = ""  # the one of the writable that is seen over others
    below: tuple[str, ...] = ()  # those, the uppermost first
    work: str = ""  # the kernel's own, beside it

    @property
    def namespaces(self) -> int:
        return OF_ISOLATED if self.network == "on" else OF_ISOLATED | kernel.CLONE_NEWNET


def lay_ground() -> str:
    """What is the same for every child is in place, below this folder: the system to read, devices,
    private folders; and nothing that is executed from here on can gain a capability.

    Called by the first process of fresh namespaces, once.

    Raises:
        OSError: something could not be put in place.
    """
    kernel.require_own_namespaces()
    # What the machine takes away while it is not needed yet goes here, too.
    kernel.mount(None, b"/", None, kernel.MS_REC | kernel.MS_SLAVE, b"")
    folders, links = _system()
    trees = {path: kernel.clone_tree(path) for path in folders}
    devices = {name: kernel.clone_tree(f"/dev/{name}") for name in DEVICES}
    root = next(filter(os.path.isdir, STAGES), STAGES[-1])
    _mount_tmpfs(root)
    _private_folders(root)
    _devices(root, devices)
    for path, tree in trees.items():
        _bind(tree, root + path, writable=False, owners=None)
    for inside, target in links.items():
        os.symlink(target, root + inside)
    # What is mounted on the machine from here on would come without fences.
    kernel.mount(None, os.fsencode(root), None, kernel.MS_REC | kernel.MS_PRIVATE, b"")
    kernel.call("sethostname", b"retinue", 7)
    kernel.drop_capabilities()
    return root


def build(sandbox: Sandbox, root: str) -> None:
    """`/` is a tree of this child's own: the system and its contexts to read, its work to write.

    Args:
        root: where the ground was laid for it.

    Raises:
        OSError: something could not be put in place.
    """
    kernel.require_own_namespaces()
    kernel.mount(None, b"/", None, kernel.MS_REC | kernel.MS_PRIVATE, b"")
    shown = (*sandbox.readable, *sandbox.writable, *sandbox.lent)
    if "/" in shown:  # it would cover all that is built here
        raise OSError(errno.EINVAL, "the whole machine cannot be shown", "/")
    trees = {
        path: kernel.clone_tree(path, plain=path in sandbox.lent)  # which others may write in
        for path in shown
        if path != sandbox.layered
    }
    layered = sandbox.layered and layers.hold(sandbox.layered, sandbox.below, sandbox.work)
    covered = list[str]()
    owners = Owners(sandbox.uid, root + "/proc")
    for path in sorted({*shown, *sandbox.hidden}, key=len):
        if path in trees:
            whose = owners if path in sandbox.lent else None
            _bind(trees[path], root + path, writable=path in sandbox.writable, owners=whose)
        elif layered and path == sandbox.layered:
            ours = None if sandbox.uid is None else owners.of(*OURS)
            layers.mount(layered, root + path, root + "/.layers", ours)
        elif os.path.isdir(root + path):
            _mount_tmpfs(root + path)
            covered.append(path)
    owners.close()
    kernel.enter_root(os.fsencode(root))
    for path in ("/", *covered):  # now that all that belongs in them is in its place
        _seal(path)
    if sandbox.network == "models":
        _raise_loopback()


def confine(sandbox: Sandbox) -> None:
    """This very process is the command's from now on: nobody, with nothing more to gain.

    Raises:
        OSError: a fence could not be put up; the command must not run.
    """
    if sandbox.uid is not None:
        os.setgroups([])
        os.setresgid(sandbox.uid, sandbox.uid, sandbox.uid)
        os.setresuid(sandbox.uid, sandbox.uid, sandbox.uid)
    kernel.call("prctl", kernel.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if landlock.version():
        writable = [*sandbox.writable, "/tmp", "/dev"]
        landlock.restrict(["/"], writable, network=sandbox.network != "off")
    seccomp.restrict(network=sandbox.network)


def _system() -> tuple[list[str], dict[str, str]]:
    """The system base: folders to bind, and the links between them as they are."""
    modes = {}
    for path in SYSTEM:
        with suppress(FileNotFoundError):
            modes[path] = os.lstat(path).st_mode
    folders = [path for path, mode in modes.items() if stat.S_ISDIR(mode)]
    return folders, {path: os.readlink(path) for path, mode in modes.items() if stat.S_ISLNK(mode)}


def _mount_tmpfs(path: str, data: bytes = SMALL_SIZE) -> None:
    fence = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount(b"tmpfs", os.fsencode(path), b"tmpfs", fence, data)


def _seal(path: str) -> None:
    """Nothing can be written here any more: through this mount, whatever else is mounted of it."""
    fence = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_RDONLY
    kernel.mount(None, os.fsencode(path), None, kernel.MS_REMOUNT | kernel.MS_BIND | fence, b"")


def _private_folders(root: str) -> None:
    for name in ("/proc", "/dev", "/tmp", "/run", "/home", "/var"):
        os.mkdir(root + name, 0o755)
    os.symlink("../tmp", root + "/var/tmp")  # within: the way of an absolute one leads out
    _mount_tmpfs(root + "/tmp", data=PRIVATE_SIZE)
    fence = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount(b"proc", os.fsencode(root + "/proc"), b"proc", fence, b"hidepid=2")


def _bind(tree: int, target: str, *, writable: bool, owners: Owners | None) -> None:
    top = os.fstat(tree)
    if stat.S_ISDIR(top.st_mode):
        os.makedirs(target, exist_ok=True)
    elif not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
    attributes = kernel.ATTR_NOSUID | kernel.ATTR_NODEV
    kernel.change_tree(tree, attributes if writable else attributes | kernel.ATTR_RDONLY)
    if owners is not None and (whose := owners.of(top.st_uid, top.st_gid)) != UNMAPPED:
        _map_owners(tree, whose)
    kernel.attach_tree(tree, target)


def _map_owners(tree: int, owners: int) -> None:
    """As much of it as can be is the child's. Elsewhere it reads what anybody may."""
    for whole in (True, False):  # a file system within that maps no owners need not be the top
        with suppress(OSError):
            kernel.change_tree(tree, kernel.ATTR_IDMAP, owners=owners, whole=whole)
            return


def _devices(root: str, devices: dict[str, int]) -> None:
    folder = root + "/dev"
    fence = kernel.MS_NOSUID | kernel.MS_NOEXEC
    kernel.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", fence, SMALL_SIZE)
    for name, tree in devices.items():
        target = f"{folder}/{name}"
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
        kernel.attach_tree(tree, target)
    for name, to in LINKS.items():
        os.symlink(to, f"{folder}/{name}")
    for name, kind, data in (
        ("shm", b"tmpfs", PRIVATE_SIZE),
        ("pts", b"devpts", b"newinstance,ptmxmode=0666,mode=620"),
    ):
        os.mkdir(f"{folder}/{name}")
        kernel.mount(kind, os.fsencode(f"{folder}/{name}"), kind, fence, data)
    os.symlink("pts/ptmx", f"{folder}/ptmx")


def _raise_loopback() -> None:
    """The child has a 127.0.0.1 of its own, with nobody else on it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sH14s", b"lo", 0, b"")
        (flags,) = struct.unpack_from("H", fcntl.ioctl(control, SIOCGIFFLAGS, request), 16)
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", flags | IFF_UP, b""))
