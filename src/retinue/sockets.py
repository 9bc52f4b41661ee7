"""Unix sockets: listening in a folder, and identifying the peer."""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LISTEN_STATE = "0A"  # in the kernel's tables of sockets
SO_PEERPIDFD = 77  # Linux 6.5; not in the socket module yet


def listen_in(folder: Path, name: str) -> socket.socket:
    """Return a listening socket that only its owner may use.

    The kernel limits a socket's path to about 100 bytes, so the folder is named by a descriptor.
    """
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=place)
        # Created for its owner alone, without a moment of wider access.
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


@contextmanager
def make_address(path: str | Path) -> Iterator[str]:
    """Yield an address by which a socket can be connected to, however long its path is.

    The kernel limits a socket's path to about 100 bytes, so the folder is named by a descriptor.
    """
    folder, name = os.path.split(path)
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{place}/{name}"
    finally:
        os.close(place)


def read_inode(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of what is at a path; None if nothing is."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def remove_own(path: Path, made: tuple[int, int] | None) -> None:
    """Remove the socket that this process made, but not one that another steward made since.

    Call it before the socket is closed: an inode in use is not reused.
    """
    if made is not None and read_inode(path) == made:
        path.unlink(missing_ok=True)


def read_peer(connection: socket.socket) -> tuple[int, int]:
    """Return the pid and the user id of the process at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, uid, _ = struct.unpack("3i", credentials)
    return int(pid), int(uid)


def open_peer_pidfd(connection: socket.socket, option: int = SO_PEERPIDFD) -> int:
    """Return a pidfd of the process that called connect(2); its pid may be reused by now.

    Raises:
        OSError: ENOPROTOOPT if the kernel lacks the option; otherwise the process has ended, or
            no descriptor is free.
    """
    (pidfd,) = struct.unpack("i", connection.getsockopt(socket.SOL_SOCKET, option, 4))
    os.set_inheritable(pidfd, False)
    return int(pidfd)


def is_from_deeper_namespace(connection: socket.socket) -> bool:
    """Return whether the connecting process is in a PID namespace below ours, as children are.

    True also if that is unknown: the process has ended, or has no pid in our namespace.
    """
    try:
        pidfd = open_peer_pidfd(connection)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            return True
        return _count_namespaces(f"/proc/{read_peer(connection)[0]}/status") != _count_namespaces(
            "/proc/self/status"
        )
    try:
        # fdinfo describes the process of the pidfd, even if its pid was reused.
        return _count_namespaces(f"/proc/self/fdinfo/{pidfd}") != _count_namespaces(
            "/proc/self/status"
        )
    finally:
        os.close(pidfd)


def _count_namespaces(path: str) -> int:
    """Return the number of PID namespaces of a process, from a status file of /proc."""
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return 0
    numbers = next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])
    return len(numbers) if all(int(number) > 0 for number in numbers) else 0


def find_listening_users(port: int) -> set[int]:
    """Return the users whose processes accept connections to this TCP port of 127.0.0.1."""
    found = set()
    for table, hosts in (("tcp", ("127.0.0.1", "0.0.0.0")), ("tcp6", ("::",))):
        with suppress(OSError), open(f"/proc/net/{table}", encoding="ascii") as lines:
            places = {f"{_to_table_form(host)}:{port:04X}" for host in hosts}
            for line in lines:
                _, place, _, state, _, _, _, user, *_ = line.split()
                if state == LISTEN_STATE and place in places:
                    found.add(int(user))
    return found


def _to_table_form(host: str) -> str:
    """Return an address as the kernel's tables show it: words in the byte order of the machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    raw = socket.inet_pton(family, host)
    words = (raw[start : start + 4] for start in range(0, len(raw), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
