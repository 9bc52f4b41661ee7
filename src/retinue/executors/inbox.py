"""Messages to a running team: files that the steward lays where the team can only read."""

from __future__ import annotations

from pathlib import Path

MOST_BYTES = 1024 * 1024


class Inbox:
    """Each member hears each message once, at its next turn."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._heard: set[str] = set()

    def skip(self, known: str) -> None:
        """What was heard in an earlier attempt, and is in its conversation, is not new."""
        self._heard |= {name for name in self._names() if self._read(name) in known}

    def new(self) -> list[str]:
        """What has come since the last time, in the order it was sent."""
        fresh = [name for name in self._names() if name not in self._heard]
        self._heard |= set(fresh)
        return [self._read(name) for name in fresh]

    @property
    def newest(self) -> int:
        """The number of the newest message that was heard; 0 where there was none."""
        return max((int(name.partition(".")[0]) for name in self._heard), default=0)

    def _names(self) -> list[str]:
        try:
            found = sorted(path.name for path in self._folder.iterdir())
        except FileNotFoundError:
            return []
        return [name for name in found if not name.startswith(".")]

    def _read(self, name: str) -> str:
        with open(self._folder / name, "rb") as file:
            return file.read(MOST_BYTES).decode("utf-8", "replace")
