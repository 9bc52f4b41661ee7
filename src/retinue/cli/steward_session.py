"""Common options of a command line and its connection to the steward.

Every command imports this module, so it imports little.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from retinue.cli import render
from retinue.core.errors import BadInput, NotFound, RetinueError, StorageFailed

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.client.blocking_client import Client

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


class CliSession:
    """One command line: its root, its output format and its connections."""

    def __init__(self) -> None:
        self.root: str | None = None
        self.json = False

    def find_folder(self) -> Path:
        """Return the root of this command; it may not exist yet.

        Raises:
            BadInput: the root cannot be determined.
        """
        from pathlib import Path

        from retinue.settings import find_root

        named = self.root or os.environ.get("RETINUE_ROOT", "")
        return find_root(named, Path("/" if named.startswith("/") else get_cwd()), os.environ)

    @contextmanager
    def open_client(self, verb: str = "") -> Iterator[Client]:
        """Open a connection to the root's steward, starting one if necessary.

        Raises:
            NotFound: there is no root, and this verb creates none.
        """
        from retinue.client.blocking_client import MAKES_ROOT, require_root

        root = self.find_folder()
        require_root(root, verb)
        if verb in MAKES_ROOT and not root.exists():
            _warn_of_wide_root(root)
        client = connect(root)
        try:
            yield client
        except RetinueError:
            # A refused command must not leave a new, empty root behind.
            client.leave_unused()
            raise
        finally:
            client.close()

    def call(self, verb: str, **params: Any) -> Any:
        with self.open_client(verb) as client:
            return client.call(verb, **params)

    def call_list(self, verb: str, **params: Any) -> Any:
        """Call a verb that lists something of the root; without a root the list is empty."""
        try:
            return self.call(verb, **params)
        except NotFound as error:
            if error.code != "unknown_root":
                raise
            if not self.json:
                render.note(f"{error.message} ({error.hint})")
            return []

    def answer(self, document: Any, view: Callable[[Any], str]) -> None:
        """Print the document as JSON or, with `view`, as text."""
        if self.json:
            render.print_json(document)
        else:
            render.print_line(view(document))


def _warn_of_wide_root(root: Path) -> None:
    """Warn before a root is created that projects below would use without being asked."""
    from retinue.cli.overview import find_wide_folder

    if wide := find_wide_folder(root):
        render.warn(
            {
                "warnings": [
                    f"the new root {root} is in {wide}, so every folder below without its own "
                    "root uses it; to avoid that, work in a project's folder, or set --root"
                ]
            }
        )


def connect(root: Path, tell: Callable[[str], None] = render.note) -> Client:
    """Connect to the root's steward, starting one if necessary.

    Raises:
        RetinueError: the connection failed.
    """
    from retinue.client.blocking_client import Client

    try:
        return Client(root, tell, reconnects=True)
    except OSError as error:
        why = f"{root}: {error.strerror or error}"
        if error.errno in _FULL:
            raise StorageFailed(why) from None
        hint = "use --root with a folder that you can write to"
        raise BadInput(why, code="bad_root", hint=hint) from None


def get_cwd() -> str:
    """Raises:
    BadInput: the current folder was removed, or is not accessible.
    """
    try:
        return os.getcwd()
    except OSError as error:
        raise BadInput(
            f"the current folder cannot be used: {error.strerror}",
            code="bad_cwd",
            hint="change to a folder that exists",
        ) from None
