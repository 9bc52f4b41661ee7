"""Signals to the first process of an attempt."""

from __future__ import annotations

import os
import signal
import sys

from retinue.child import kernel

HELD_BACK = (signal.SIGTERM, signal.SIGINT)
HEARD = (*HELD_BACK, signal.SIGCHLD)
STORY_BYTES = 128  # what the kernel tells of each signal; its number is the first four of them

_MASK = sum(1 << (number - 1) for number in HEARD).to_bytes(8, sys.byteorder) + bytes(120)


class Alerts:
    """Made before anybody is cloned; a clone that has opened them is woken by each signal.

    Held back, not ignored: what comes for a child before it listens must not be
    lost, and the first process of a namespace never hears of what it does not
    expect. They are read from a descriptor, not handled: every page that a clone
    writes to is copied for it, and answering them in Python writes to dozens.
    """

    def __init__(self) -> None:
        self.stop_asked = False
        self._source = -1
        signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
        for number in HELD_BACK:  # where a team lets them through before it expects them
            signal.signal(number, lambda *_: None)

    def open(self) -> int:
        """A descriptor to be polled; what it is ready with is to be heard."""
        if self._source < 0:
            flags = os.O_CLOEXEC | os.O_NONBLOCK
            self._source = kernel.call("signalfd", -1, _MASK, flags)
        return self._source

    def hear(self) -> None:
        """What had come is known: a request to stop is remembered."""
        stories = os.read(self._source, 16 * STORY_BYTES)
        for at in range(0, len(stories), STORY_BYTES):
            number = int.from_bytes(stories[at : at + 4], sys.byteorder)
            self.stop_asked = self.stop_asked or number != signal.SIGCHLD
