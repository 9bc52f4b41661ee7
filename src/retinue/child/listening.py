"""The address at which a command finds its gateway: on its own loopback, served by the steward.

The socket is opened in here, where nobody else can connect to it, and handed
out. It is handed out again to whoever asks at a door in the runtime folder,
which the command cannot see: the next steward, when this one is gone.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress

from retinue.child.control import Control
from retinue.child.order import Order

LISTEN = b"l"  # the steward's word: hand it over
HANDED = b"="  # ours, with the socket
DOOR = "gateway.door"
PLACEHOLDER = b"{gateway}"
BACKLOG = 128


class Listener:
    """Made before the boundary is built, while the runtime folder can still be seen."""

    def __init__(self, folder: int) -> None:
        """Raises:
        OSError: the door could not be made.
        """
        self.door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.door.setblocking(False)
        with suppress(FileNotFoundError):
            os.unlink(DOOR, dir_fd=folder)
        os.fchdir(folder)  # however long its path is
        before = os.umask(0o177)
        try:
            self.door.bind(DOOR)
        finally:
            os.umask(before)
        self.door.listen(4)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)

    def open(self, order: Order, control: Control) -> bool:
        """The steward has the socket, and the environment its address; False once it is gone.

        Raises:
            OSError: there is no loopback.
        """
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(BACKLOG)
        address = b"http://127.0.0.1:%d" % self._socket.getsockname()[1]
        if control.receive(len(LISTEN)) != LISTEN:
            return False
        if stat.S_ISSOCK(os.fstat(control.sink).st_mode):
            with socket.socket(fileno=os.dup(control.sink)) as way:
                self._hand(way)
        else:  # a launcher's pipe carries no sockets: the steward must come to the door
            control.tell(HANDED.decode())
        for name, value in order.environment.items():
            order.environment[name] = value.replace(PLACEHOLDER, address)
        return True

    def answer(self) -> None:
        """Whoever stands at the door has the socket."""
        with suppress(OSError):
            way, _ = self.door.accept()
            with way:
                self._hand(way)

    def _hand(self, way: socket.socket) -> None:
        socket.send_fds(way, [HANDED], [self._socket.fileno()])
