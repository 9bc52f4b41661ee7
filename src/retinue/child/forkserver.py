"""The process that children are cloned from: all is imported, nothing is running.

It reads requests from one socket, each the namespaces of a child to be and its
control socket, and holds nothing else. When the steward goes, it goes; the children stay.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
from contextlib import suppress

from retinue.child import seccomp
from retinue.child.alerts import Alerts
from retinue.child.birth import bear, bear_alone
from retinue.child.command import Work
from retinue.child.control import Control
from retinue.child.lasting import make_lasting
from retinue.child.rehearsal import rehearse

CHANNEL = 3
READY = b"r"
SIZE = 8  # of a request


def serve(channel: socket.socket, work: Work | None) -> None:
    """Every request has become a child, until nobody can ask any more."""
    alerts = Alerts()
    seccomp.prepare()
    rehearse(first_free=channel.fileno() + 1)
    gc.collect()
    make_lasting()
    gc.freeze()  # a collection in a child would otherwise copy everything that was imported
    channel.send(READY)
    while True:
        request, descriptors, _, _ = socket.recv_fds(channel, SIZE, 1, socket.MSG_CMSG_CLOEXEC)
        if not request:
            return
        namespaces = int.from_bytes(request, sys.byteorder)
        for descriptor in descriptors:
            bear(Control(source=descriptor, sink=descriptor), namespaces, alerts, work)
            os.close(descriptor)


def main(work: Work | None = None) -> None:
    # A steward that goes while this starts is told nothing, or has not read it.
    with socket.socket(fileno=CHANNEL) as channel, suppress(ConnectionError):
        os.set_inheritable(CHANNEL, False)
        serve(channel, work)


def alone(work: Work | None = None) -> None:
    """One child only, behind a launcher that passes standard input and output through."""
    os._exit(bear_alone(Control(source=0, sink=1), work))
