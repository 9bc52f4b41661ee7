"""What a parent takes out of the workspace of a subagent of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from retinue.domain.errors import NotFound
from retinue.domain.subagent import Subagent
from retinue.domain.team import SNAPSHOTS, TEMPORARY, WINNER
from retinue.wire.protocol import MOST_FILES
from retinue.workspaces.layers import holder_of, names
from retinue.workspaces.reader import Unreadable, read_child_file

MOST_BYTES = 16 * 1024 * 1024  # of one file


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

    def files(self, subagent: Subagent, inside: str = "") -> list[str]:
        """The plain files below, or in a folder of it, by their names, and no more than can be
        copied one by one; or a file, by its name. Nothing where there is neither.

        What git or its team keeps for itself is left out; links are not followed.
        """
        workspace = self._workspace_of(subagent)
        return names(workspace, MOST_FILES + 1, _kept(workspace, subagent), inside)


def _kept(workspace: Path, subagent: Subagent) -> list[str]:
    """What a team has in its workspace for its own use: with a winner, also where members worked,
    because its work lies outside of them.
    """
    contract = subagent.contract
    members = [name for name, _ in contract.named_members(subagent.id)]
    if len(members) < 2:
        return []
    decided = (workspace / contract.homes / SNAPSHOTS / WINNER).is_symlink()
    own = map(contract.home_of, members if decided else ())
    return [*own, *(f"{contract.homes}/{name}".lstrip("/") for name in (SNAPSHOTS, TEMPORARY))]
