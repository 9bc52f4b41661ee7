"""Messages to a running team: files that the steward lays where the team can only read."""

from __future__ import annotations

from pathlib import Path

MOST_BYTES = 1024 * 1024


class Inbox:
    """Each member hears each message once, at its next turn."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._heard: set[str] = set()

    def new(self) -> list[str]:
        """What has come since the last time, in the order it was sent."""
        try:
            names = sorted(path.name for path in self._folder.iterdir())
        except FileNotFoundError:
            return []
        fresh = [n for n in names if n not in self._heard and not n.startswith(".")]
        self._heard |= set(fresh)
        return [self._read(name) for name in fresh]

    def _read(self, name: str) -> str:
        with open(self._folder / name, "rb") as file:
            return file.read(MOST_BYTES).decode("utf-8", "replace")
