"""A root for questions about the machine, where there is none: lent, and gone afterwards."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from retinue.domain.errors import RetinueError, StewardUnavailable
from retinue.doors.cli.session import Session, connect
from retinue.steward.client import dial, process_of

STOP_SECONDS = 60.0


def ask_anywhere(session: Session, verb: str) -> tuple[Any, bool]:
    """The verb's answer, and whether this folder has a root of its own; none is made."""
    if os.path.lexists(session.folder()):
        return session.call(verb), True
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="retinue-") as folder:
        root = Path(folder) / ".retinue"
        client = connect(root)
        try:
            document = client.call(verb)
        finally:
            held = dial(root)
            if held is not None:
                with held:
                    stop(held, lambda: client.call("steward.stop"))
            client.close()
    return document, False


def stop(held: socket.socket, ask: Callable[[], Any]) -> Any:
    """The steward at the other end is gone, not only going; what it said when it was asked."""
    pid = process_of(held)
    process = os.pidfd_open(pid)
    try:
        try:
            document = ask()
        except RetinueError as error:
            if error.code != "protocol_version":
                raise
            signal.pidfd_send_signal(process, signal.SIGTERM)
            document = {"stopped": True, "pid": pid}
        held.close()
        poll = select.poll()
        poll.register(process, select.POLLIN)
        if not poll.poll(STOP_SECONDS * 1000):
            raise StewardUnavailable(
                f"the steward, process {pid}, was told to stop and still runs",
                code="steward_busy",
                hint="repeat the command, or see steward.log in the root",
            )
    finally:
        os.close(process)
    return document
