"""One command line's way to the steward. Loaded by every command, so it loads little."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from retinue.domain.errors import BadInput, NotFound, StorageFailed
from retinue.doors.cli import render

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.steward.client import Client

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


class Session:
    """One command line: what it asked for as a whole, and its way to the steward."""

    def __init__(self) -> None:
        self.root: str | None = None
        self.json = False

    def folder(self) -> Path:
        """The root this command is about; it may not exist yet.

        Raises:
            BadInput: it cannot be told.
        """
        from pathlib import Path

        from retinue.settings import find_root

        named = self.root or os.environ.get("RETINUE_ROOT", "")
        return find_root(named, Path("/" if named.startswith("/") else here()), os.environ)

    @contextmanager
    def client(self, verb: str = "") -> Iterator[Client]:
        """A connection to the root's steward, started where there was none.

        Raises:
            NotFound: there is no root, and this verb makes none.
        """
        from retinue.steward.client import require_root

        root = self.folder()
        require_root(root, verb)
        client = connect(root)
        try:
            yield client
        finally:
            client.close()

    def call(self, verb: str, **params: Any) -> Any:
        with self.client(verb) as client:
            return client.call(verb, **params)

    def listed(self, verb: str, **params: Any) -> Any:
        """What the root as a whole has of something: nothing, where there is no root."""
        try:
            return self.call(verb, **params)
        except NotFound as error:
            if error.code != "unknown_root":
                raise
            if not self.json:
                render.note(f"{error.message} ({error.hint})")
            return []

    def answer(self, document: Any, view: Callable[[Any], str]) -> None:
        """The document is on standard output, for programs or for people."""
        if self.json:
            render.say_json(document)
        else:
            render.say(view(document))


def connect(root: Path) -> Client:
    """Raises:
    RetinueError: why there is no connection.
    """
    from retinue.steward.client import Client

    try:
        return Client(root, render.note)
    except OSError as error:
        why = f"{root}: {error.strerror or error}"
        if error.errno in _FULL:
            raise StorageFailed(why) from None
        raise BadInput(why, code="bad_root", hint="name a folder of your own with --root") from None


def here() -> str:
    """Raises:
    BadInput: the current folder was removed, or may not be seen.
    """
    try:
        return os.getcwd()
    except OSError as error:
        raise BadInput(
            f"the current folder cannot be used: {error.strerror}",
            code="bad_cwd",
            hint="change to one that exists",
        ) from None
