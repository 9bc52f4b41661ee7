"""Sockets in a folder of ours."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from pathlib import Path


def show_in(folder: Path, name: str, shown: str) -> None:
    """A folder within has the socket, too, in the place of one that nobody listens at any more.

    Whoever is shown that folder, and not the socket itself, finds the next one there.
    """
    place = folder / shown
    place.mkdir(mode=0o700, exist_ok=True)
    new = place / f"{name}.new"
    new.unlink(missing_ok=True)
    os.link(folder / name, new)
    new.replace(place / name)


def listen_in(folder: Path, name: str) -> socket.socket:
    """A socket that only its owner may use, however long the folder's path is.

    The kernel takes a hundred characters at most, so the folder is named by a descriptor.
    """
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=place)
        before = os.umask(0o177)
        try:
            listener.bind(f"/proc/self/fd/{place}/{name}")
        finally:
            os.umask(before)
        listener.listen(256)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(place)
    listener.setblocking(False)
    return listener


def inode_of(path: Path) -> tuple[int, int] | None:
    """What lies there, whatever its name; nothing where nothing does."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def remove_own(path: Path, made: tuple[int, int] | None) -> None:
    """What we made there is gone; in a root that was made anew it is another steward's, and stays.

    To be called before the socket is closed: an inode in use is given to nobody else.
    """
    if made is not None and inode_of(path) == made:
        path.unlink(missing_ok=True)


def peer(connection: socket.socket) -> tuple[int, int]:
    """The process at the other end, and its user."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, uid, _ = struct.unpack("3i", credentials)
    return int(pid), int(uid)
