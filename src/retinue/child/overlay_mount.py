"""Overlay mount of a workspace: it holds only changes, and shows lower folders for the rest.

A child cannot write to the lower folders: they are not mounted in the sandbox, only the kernel
refers to them. A changed file is copied to the workspace; a removed file leaves a mark there.
"""

from __future__ import annotations

import errno
import os

from retinue.child import syscalls
from retinue.child.named_fields import Record

FENCE = syscalls.ATTR_NOSUID | syscalls.ATTR_NODEV
OWN = "own"  # mount point of the folder that holds the workspace and the work folder


class Held(Record):
    """Trees that are mounted nowhere yet."""

    own: int
    inside: tuple[str, str]  # relative paths of the workspace and the work folder in it
    below: tuple[int, ...]


def hold(workspace: str, below: tuple[str, ...], work: str) -> Held:
    """Open the parts of the overlay, before anything else is mounted.

    Raises:
        OSError: a path is missing; the error names it.
    """
    # overlayfs requires the workspace and the work folder in one mount.
    own = os.path.commonpath([workspace, work])
    inside = (os.path.relpath(workspace, own), os.path.relpath(work, own))
    lower = tuple(map(syscalls.clone_tree, below))
    return Held(own=syscalls.clone_tree(own), inside=inside, below=lower)


def mount(held: Held, target: str, room: str, owners: int | None) -> None:
    """Mount the overlay at `target`.

    Args:
        room: an unused path of this child, used and removed again here.
        owners: a user namespace that maps our files to the child; None if both are one user.

    Raises:
        OSError: the kernel refuses the mount.
    """
    if owners is not None and owners < 0:
        raise OSError(errno.EPERM, "owners cannot be mapped", target)
    names = [OWN, *map(str, range(len(held.below)))]
    os.mkdir(room)
    for name, tree in zip(names, (held.own, *held.below), strict=True):
        os.mkdir(f"{room}/{name}")
        syscalls.change_tree(tree, FENCE if name == OWN else FENCE | syscalls.ATTR_RDONLY)
        if name != OWN and owners is not None:
            syscalls.change_tree(tree, syscalls.ATTR_IDMAP, owners=owners)
        syscalls.attach_tree(tree, f"{room}/{name}")
    os.makedirs(target, exist_ok=True)
    # Short relative names: the kernel's options are limited in length, and `:` separates paths.
    os.chdir(room)
    workspace, work = (os.fsencode(f"{OWN}/{name}") for name in held.inside)
    data = b"userxattr,lowerdir=%b,upperdir=%b,workdir=%b"
    data %= (":".join(names[1:]).encode(), workspace, work)
    fence = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount(b"overlay", os.fsencode(target), b"overlay", fence, data)
    # The overlay keeps its own references; the parts must not be reachable by the child.
    for name in names:
        syscalls.call("umount2", f"{room}/{name}".encode(), syscalls.MNT_DETACH)
        os.rmdir(f"{room}/{name}")
    os.chdir("/")
    os.rmdir(room)
