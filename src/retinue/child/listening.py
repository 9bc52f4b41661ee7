"""The address at which a command finds its gateway: on its own loopback, served by the steward.

The socket is opened in here, where nobody else can connect to it, and handed
out. A copy stays at a known number, so that the next steward can ask the kernel
for it.
"""

from __future__ import annotations

import fcntl
import os
import socket

from retinue.child.control import Control
from retinue.child.order import Order

LISTEN = b"l"  # the steward's word: hand it over
HANDED = b"="  # ours, with the socket
KEPT_AT = 200
PLACEHOLDER = b"{gateway}"
BACKLOG = 128


def listen(order: Order, control: Control) -> bool:
    """The steward has the socket, and the environment its address; False once it is gone.

    Raises:
        OSError: there is no loopback, or no way to hand a socket over.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(BACKLOG)
        address = b"http://127.0.0.1:%d" % listener.getsockname()[1]
        if control.receive(len(LISTEN)) != LISTEN:
            return False
        with socket.socket(fileno=os.dup(control.sink)) as way:
            socket.send_fds(way, [HANDED], [listener.fileno()])
        fcntl.fcntl(listener.fileno(), fcntl.F_DUPFD_CLOEXEC, KEPT_AT)
    for name, value in order.environment.items():
        order.environment[name] = value.replace(PLACEHOLDER, address)
    return True
