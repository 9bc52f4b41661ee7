"""Messages to a running team: numbered files that the steward writes to a read-only folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from retinue.inotify import CHANGED, Inotify

MOST_BYTES = 1024 * 1024
URGENT = ".now.txt"  # end of the name of an urgent message


@dataclass(frozen=True, kw_only=True)
class Message:
    text: str
    urgent: bool = False  # it interrupts what the member does


class Inbox:
    """Inbox of one member; each message is returned once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._heard: set[str] = set()

    def skip(self, known: str) -> None:
        """Skip messages whose text is in `known`, the conversation of an earlier attempt."""
        self._heard |= {name for name in self._list_names() if self._read(name) in known}

    def take_texts(self) -> list[str]:
        """Return the texts of the messages since the last call, oldest first."""
        return [message.text for message in self.take_messages()]

    def take_messages(self) -> list[Message]:
        """Return the messages since the last call, oldest first."""
        fresh = [name for name in self._list_names() if name not in self._heard]
        self._heard |= set(fresh)
        return [Message(text=self._read(name), urgent=name.endswith(URGENT)) for name in fresh]

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[asyncio.Event]:
        """Yield an event that is set whenever the folder changes."""
        changed = asyncio.Event()
        changed.set()  # messages may be there already
        try:
            inotify = Inotify()
        except OSError:
            # Without a free watch, messages are read between two turns only.
            yield changed
            return
        loop = asyncio.get_running_loop()

        def read() -> None:
            if any(True for _ in inotify.read_events()):
                changed.set()

        try:
            with suppress(OSError):
                inotify.watch(str(self._folder), CHANGED)
            loop.add_reader(inotify.fd, read)
            yield changed
        finally:
            loop.remove_reader(inotify.fd)
            inotify.close()

    @property
    def newest(self) -> int:
        """Number of the newest message returned so far; 0 for none."""
        return max((int(name.partition(".")[0]) for name in self._heard), default=0)

    def _list_names(self) -> list[str]:
        try:
            found = sorted(path.name for path in self._folder.iterdir())
        except FileNotFoundError:
            return []
        # A name with a dot is a message that the steward is still writing.
        return [name for name in found if not name.startswith(".")]

    def _read(self, name: str) -> str:
        with open(self._folder / name, "rb") as file:
            return file.read(MOST_BYTES).decode("utf-8", "replace")
