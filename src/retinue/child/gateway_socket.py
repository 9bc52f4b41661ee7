"""Listening socket of a child's gateway, on the child's loopback, served by the steward.

The init opens the socket in the child's network namespace and hands it to the steward. The next
steward asks for it at a Unix socket in the runtime folder, which an isolated command cannot see.
The init holds the socket as long as the command lives: on the machine's own loopback, no other
user can take the port while no steward runs.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from contextlib import suppress

from retinue.child.control_protocol import Control, Order

LISTEN = b"l"  # request of the steward
HANDED = b"="  # answer of the init, with the socket
DOOR = "gateway.door"
PROOF = "exit.json.new"  # the attempt's record, which exists as long as the attempt runs
SHOWN_SECONDS = 0.2  # for a caller to show the record; short, because it blocks the init
PLACEHOLDER = b"{gateway}"
BACKLOG = 128


class Listener:
    """The gateway socket and its Unix socket; made before the boundary hides the runtime folder."""

    def __init__(self, folder: int) -> None:
        """Raises:
        OSError: the Unix socket could not be made.
        """
        self.door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.door.setblocking(False)
        with suppress(FileNotFoundError):
            os.unlink(DOOR, dir_fd=folder)
        # By a relative name: a socket's path may have only about 100 bytes.
        os.fchdir(folder)
        # The socket is created for its owner alone, without a moment of wider access.
        before = os.umask(0o177)
        try:
            self.door.bind(DOOR)
        finally:
            os.umask(before)
        self.door.listen(4)
        self._folder = folder
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)

    def open(self, order: Order, control: Control) -> bool:
        """Hand the socket to the steward and put its address into the environment.

        Returns False if the steward is gone.

        Raises:
            OSError: there is no loopback.
        """
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(BACKLOG)
        address = b"http://127.0.0.1:%d" % self._socket.getsockname()[1]
        if control.receive(len(LISTEN)) != LISTEN:
            return False
        if stat.S_ISSOCK(os.fstat(control.sink).st_mode):
            with socket.socket(fileno=os.dup(control.sink)) as connection:
                self._send_socket(connection)
        else:
            # A launcher's pipe carries no descriptors: the steward asks at the Unix socket.
            control.tell(HANDED.decode())
        for name, value in order.environment.items():
            order.environment[name] = value.replace(PLACEHOLDER, address)
        return True

    def answer(self) -> None:
        """Hand the socket to a caller that can write in the runtime folder, as a steward can.

        A child of another root may reach the Unix socket if this folder is one of its context
        paths. It sees the folder read-only, so it cannot show a writable descriptor of the record.
        """
        with suppress(OSError):
            connection, _ = self.door.accept()
            with connection:
                connection.settimeout(SHOWN_SECONDS)
                if self._can_write(connection):
                    self._send_socket(connection)

    def _can_write(self, connection: socket.socket) -> bool:
        _, shown, _, _ = socket.recv_fds(connection, 1, 1)
        try:
            record = os.stat(PROOF, dir_fd=self._folder, follow_symlinks=False)
            return any(
                os.path.samestat(os.fstat(each), record)
                and fcntl.fcntl(each, fcntl.F_GETFL) & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR)
                for each in shown
            )
        finally:
            for each in shown:
                os.close(each)

    def _send_socket(self, connection: socket.socket) -> None:
        socket.send_fds(connection, [HANDED], [self._socket.fileno()])
