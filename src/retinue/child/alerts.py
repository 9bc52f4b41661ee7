"""Signals to the first process of an attempt."""

from __future__ import annotations

import os
import signal

HELD_BACK = (signal.SIGTERM, signal.SIGINT)


class Alerts:
    """Made before anybody is cloned; a clone that has opened them is woken by each signal.

    Held back until then, not ignored: what comes for a child before it listens
    must not be lost, and the first process of a namespace never hears of what it
    does not expect.
    """

    def __init__(self) -> None:
        self.stop_asked = False
        signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
        for number in (*HELD_BACK, signal.SIGCHLD):
            signal.signal(number, self._note)

    def open(self) -> int:
        """A descriptor to be polled; a request to stop is remembered besides."""
        source, sink = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(sink, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
        return source

    def _note(self, number: int, frame: object) -> None:
        self.stop_asked = self.stop_asked or number != signal.SIGCHLD
