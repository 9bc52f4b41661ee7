"""Signals to the init of an attempt, read from a signalfd."""

from __future__ import annotations

import os
import signal
import sys

from retinue.child import syscalls

HELD_BACK = (signal.SIGTERM, signal.SIGINT)
HEARD = (*HELD_BACK, signal.SIGCHLD)
INFO_BYTES = 128  # struct signalfd_siginfo, which begins with the signal's number in 4 bytes

_MASK = sum(1 << (number - 1) for number in HEARD).to_bytes(8, sys.byteorder) + bytes(120)


class PendingSignals:
    """Blocked signals of an init; made in the fork server, before the first clone.

    Signals are blocked, not ignored: one that arrives before the init reads them must not be
    lost, and the kernel drops signals to an init that neither blocks nor handles them. They are
    read from a descriptor, because a Python handler would write to dozens of memory pages, each
    of which is then copied for the clone.
    """

    def __init__(self) -> None:
        self.stop_asked = False
        self._source = -1
        signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
        # A team unblocks signals before it sets its own handlers: until then they do nothing.
        for number in HELD_BACK:
            signal.signal(number, lambda *_: None)

    def open(self) -> int:
        """Return the descriptor to poll; call `read_pending` when it is readable."""
        if self._source < 0:
            flags = os.O_CLOEXEC | os.O_NONBLOCK
            self._source = syscalls.call("signalfd", -1, _MASK, flags)
        return self._source

    def read_pending(self) -> None:
        """Read the pending signals, and remember a request to stop."""
        infos = os.read(self._source, 16 * INFO_BYTES)
        for at in range(0, len(infos), INFO_BYTES):
            number = int.from_bytes(infos[at : at + 4], sys.byteorder)
            self.stop_asked = self.stop_asked or number != signal.SIGCHLD
