"""Refused system calls of a child, answered and counted by its init."""

from __future__ import annotations

import errno
import fcntl
import os
import struct

from retinue.child.seccomp import MACHINES
from retinue.child.syscall_numbers import ALLOWED, REFUSED

NOTIF_RECV, NOTIF_SEND = 0xC0502100, 0xC0182101
NOTIFICATION = bytearray(80)  # struct seccomp_notif
# After so many the descriptor is closed. Further calls fail with ENOSYS and cost the init nothing.
MOST_ANSWERED = 1000
MOST_NAMED = 10


class RefusedCalls:
    """The descriptor that announces refused calls, and how often each was refused."""

    def __init__(self, listener: int) -> None:
        self._listener = listener
        self._counts: dict[int, int] = {}
        self._answered = 0

    def fileno(self) -> int:
        return self._listener

    def answer(self) -> bool:
        """Refuse the waiting call with EPERM; return False once no more are to be answered."""
        try:
            request = bytearray(NOTIFICATION)
            fcntl.ioctl(self._listener, NOTIF_RECV, request)
            identity, number = struct.unpack_from("=Q8xi", request)
            self._counts[number] = self._counts.get(number, 0) + 1
            self._answered += 1
            answer = struct.pack("=QqiI", identity, 0, -errno.EPERM, 0)
            fcntl.ioctl(self._listener, NOTIF_SEND, answer)
        except OSError:  # the caller was killed meanwhile
            pass
        return self._answered < MOST_ANSWERED

    def close(self) -> None:
        if self._listener >= 0:
            os.close(self._listener)
            self._listener = -1

    def by_name(self) -> dict[str, int]:
        """Return how often each call was refused, the most frequent first."""
        # Most children have none, and reading the tables would copy their memory pages.
        if not self._counts:
            return {}
        column = MACHINES[os.uname().machine][0]
        names = {row[column]: name for name, row in (ALLOWED | REFUSED).items()}
        counts = sorted(self._counts.items(), key=lambda each: -each[1])[:MOST_NAMED]
        return {names.get(number, f"call {number}"): count for number, count in counts}
