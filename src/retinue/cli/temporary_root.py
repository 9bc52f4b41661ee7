"""Temporary roots, for commands that need a steward but no root of their own."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.cli import render
from retinue.cli.options import read_config
from retinue.cli.steward_session import CliSession, connect
from retinue.client.blocking_client import connect_if_running, get_peer_pid
from retinue.core.errors import RetinueError, StewardUnavailable

if TYPE_CHECKING:
    from retinue.client.blocking_client import Client

STOP_SECONDS = 60.0


def ask_anywhere(session: CliSession, verb: str) -> tuple[Any, bool]:
    """Call the verb; return its answer and whether this folder has a root.

    Without a root, a temporary one is used, with the configuration that a first task here
    would get. The configuration of an untrusted root is not read.

    Raises:
        BadInput: the folder is not a root and cannot become one.
    """
    from retinue.steward.trust_review import review_config
    from retinue.trust import find_config_file, require_approved

    own = session.find_folder()
    if has_root(own):
        return session.call(verb), True
    given = {}
    if (config := find_config_file(own, os.environ)) is not None:
        require_approved(review_config(own)[0].variables, own, os.environ)
        given = read_config(str(config))
    with open_temporary_root() as (client, _):
        return client.call(verb, **given), False


def note_unread_config(session: CliSession) -> None:
    """Note that the configuration here is left out, if the folder has one and is not trusted."""
    from retinue.trust import CONFIG, is_trusted, make_untrusted_error

    own = session.find_folder()
    if (own / CONFIG).is_file() and not is_trusted(own, os.environ):
        render.note(f"{own / CONFIG} is not read: {make_untrusted_error(own).hint}")


def has_root(folder: Path) -> bool:
    """Return whether the folder is an initialized and trusted root.

    Raises:
        BadInput: the folder is not a root and cannot become one.
    """
    from retinue.settings import require_usable, was_used
    from retinue.trust import is_trusted

    if not os.path.lexists(folder):
        return False
    require_usable(folder)
    return was_used(folder) and is_trusted(folder, os.environ)


@contextmanager
def open_temporary_root() -> Iterator[tuple[Client, Path]]:
    """Open a connection to the steward of a new root; remove both afterwards."""
    from tempfile import TemporaryDirectory

    from retinue.trust import VARIABLE

    with TemporaryDirectory(prefix="retinue-") as folder:
        root = Path(folder) / ".retinue"
        # Trusted by the environment, so that the list of trusted roots keeps no entry for it.
        os.environ[VARIABLE] = folder
        client = connect(root)
        try:
            yield client, root
        finally:
            client.close()
            held = connect_if_running(root)
            if held is not None:
                with held:
                    stop(held, lambda: _stop(root))


def _stop(root: Path) -> Any:
    # On a new connection: the old one may still carry an unread response.
    with closing(connect(root)) as client:
        return client.call("steward.stop", cancel=True)


def stop(held: socket.socket, ask: Callable[[], Any]) -> Any:
    """Stop the steward, wait until its process has ended, and return its answer.

    Raises:
        StewardUnavailable: the process still runs after `STOP_SECONDS`.
    """
    pid = get_peer_pid(held)
    # A pidfd, because the number could be reused by another process while we wait.
    process = os.pidfd_open(pid)
    try:
        try:
            document = ask()
        except RetinueError as error:
            if error.code != "protocol_version":
                raise
            # A steward of another version does not understand the request, but does SIGTERM.
            signal.pidfd_send_signal(process, signal.SIGTERM)
            document = {"stopped": True, "pid": pid}
        # The steward waits for its clients, and this connection is one of them.
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
