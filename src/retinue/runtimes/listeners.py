"""The gateway's socket of a child that an earlier steward had launched."""

from __future__ import annotations

import ctypes
import os
import socket

from retinue.child.listening import KEPT_AT

SYS_PIDFD_GETFD = 438  # the same on every architecture

_libc = ctypes.CDLL(None, use_errno=True)


def kept_by(pidfd: int) -> socket.socket | None:
    """A copy of the socket that a child's first process keeps; None where it keeps none.

    The kernel gives it to root alone: to everybody else that process is closed.
    """
    descriptor = _libc.syscall(SYS_PIDFD_GETFD, pidfd, KEPT_AT, 0)
    if descriptor < 0:
        return None
    try:
        found = socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        return None
    if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return found
    found.close()
    return None
