"""What a parent takes out of the workspace of a subagent of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from retinue.domain.errors import NotFound
from retinue.domain.subagent import Subagent
from retinue.workspaces.layers import holder_of, names
from retinue.workspaces.reader import Unreadable, read_child_file

MOST_BYTES = 16 * 1024 * 1024  # of one file
MOST_FILES = 2000


class Taking:
    def __init__(self, workspace_of: Callable[[Subagent], Path]) -> None:
        self._workspace_of = workspace_of

    def file(self, subagent: Subagent, path: str) -> bytes:
        """The file as it is at this moment.

        Raises:
            NotFound: there is no plain file there, or it is too large.
        """
        try:
            place = holder_of(self._workspace_of(subagent), path)
            return read_child_file(place, path, MOST_BYTES).data
        except Unreadable as refusal:
            raise NotFound(f"{path[:200]!a}: {refusal}", code="unreadable") from None

    def files(self, subagent: Subagent) -> list[str]:
        """The plain files below, by their names, and no more than can be copied one by one.

        What git keeps for itself is left out; links are not followed.
        """
        return names(self._workspace_of(subagent), MOST_FILES)
