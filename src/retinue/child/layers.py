"""A workspace that holds only what was changed in it: the rest is seen through it (overlayfs).

What lies below cannot be written by anybody inside: it is not mounted there at all, but for the
kernel's own handle of it. A change makes a copy in the workspace, a removal a mark there.
"""

from __future__ import annotations

import errno
import os

from retinue.child import kernel
from retinue.child.record import Record

FENCE = kernel.ATTR_NOSUID | kernel.ATTR_NODEV
OWN = "own"  # the folder that the workspace and the kernel's own folder lie in


class Held(Record):
    """Trees that are mounted nowhere yet."""

    own: int
    inside: tuple[str, str]  # the workspace and the kernel's folder, as they are found in it
    below: tuple[int, ...]


def hold(workspace: str, below: tuple[str, ...], work: str) -> Held:
    """What the workspace is made of, taken hold of before anything else is mounted.

    Raises:
        OSError: names what is missing.
    """
    own = os.path.commonpath([workspace, work])
    inside = (os.path.relpath(workspace, own), os.path.relpath(work, own))
    lower = tuple(map(kernel.clone_tree, below))
    return Held(own=kernel.clone_tree(own), inside=inside, below=lower)


def mount(held: Held, target: str, room: str, owners: int | None) -> None:
    """The target shows the workspace over what lies below it.

    Args:
        room: a place of this child's alone, where nothing is yet, nor afterwards.
        owners: a user namespace in which what is ours is the child's; none where we are the same.

    Raises:
        OSError: the kernel does not do that here.
    """
    if owners is not None and owners < 0:
        raise OSError(errno.EPERM, "owners cannot be mapped", target)
    names = [OWN, *map(str, range(len(held.below)))]
    os.mkdir(room)
    for name, tree in zip(names, (held.own, *held.below), strict=True):
        os.mkdir(f"{room}/{name}")
        kernel.change_tree(tree, FENCE if name == OWN else FENCE | kernel.ATTR_RDONLY)
        if name != OWN and owners is not None:
            kernel.change_tree(tree, kernel.ATTR_IDMAP, owners=owners)
        kernel.attach_tree(tree, f"{room}/{name}")
    os.makedirs(target, exist_ok=True)
    os.chdir(room)  # short names, none of which the kernel could take for two
    workspace, work = (os.fsencode(f"{OWN}/{name}") for name in held.inside)
    data = b"userxattr,lowerdir=%b,upperdir=%b,workdir=%b"
    data %= (":".join(names[1:]).encode(), workspace, work)
    fence = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount(b"overlay", os.fsencode(target), b"overlay", fence, data)
    for name in names:
        kernel.call("umount2", f"{room}/{name}".encode(), kernel.MNT_DETACH)
        os.rmdir(f"{room}/{name}")
    os.chdir("/")
    os.rmdir(room)
