"""The process that children are cloned from: all is imported, nothing is running.

It reads requests from one socket, each with the control socket of a child to
be, and holds nothing else. When the steward goes, it goes; the children stay.
"""

from __future__ import annotations

import gc
import os
import signal
import socket

from retinue.child.birth import bear
from retinue.child.control import Control

CHANNEL = 3
READY = b"r"


def serve(channel: socket.socket) -> None:
    """Every request has become a child, until nobody can ask any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is not for us
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    gc.collect()
    gc.freeze()  # a collection in a child would otherwise copy everything that was imported
    channel.send(READY)
    while True:
        request, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
        if not request:
            return
        for descriptor in descriptors:
            bear(Control(source=descriptor, sink=descriptor))
            os.close(descriptor)


def main() -> None:
    with socket.socket(fileno=CHANNEL) as channel:
        os.set_inheritable(CHANNEL, False)
        serve(channel)
