"""Runtime of a root that is connected to a hub: attempts run here or on nodes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from retinue.cluster import node_keys
from retinue.cluster.invitation import CREDENTIALS, read_membership
from retinue.cluster.remote_runtime import RemoteRuntime
from retinue.cluster.steward_link import StewardLink
from retinue.core.placement import NodeFacts, Placement
from retinue.core.result import Ending
from retinue.ports import Child, LaunchOrder, ProcessIdentity, Runtime

FIRST_LOOK_S = 3.0  # for the hub to answer after the steward has started
_OWNER = re.compile(r"\.\./([A-Za-z0-9][A-Za-z0-9._-]*)/workspace")


class ClusterRuntime:
    """Sends each order to this machine or to a node. Implements `Runtime` and `Nodes`.

    Checks of output run on this machine: what a node returns is a claim.
    """

    def __init__(self, local: Runtime, link: StewardLink) -> None:
        self._local = local
        self.link = link
        self._remote = RemoteRuntime(link)

    def find_unavailable_reason(self) -> str | None:
        return self._local.find_unavailable_reason()

    async def isolation_missing(self, behind: Sequence[str] = ()) -> str | None:
        return await self._local.isolation_missing(behind)

    async def launch(self, order: LaunchOrder) -> Child:
        if order.node:
            return await self._remote.launch(order)
        return await self._local.launch(order)

    def adopt(self, identity: ProcessIdentity, runtime_folder: Path) -> Child | None:
        if identity.place:
            workspace = _find_workspace(runtime_folder.parent)
            return self._remote.adopt(identity, runtime_folder, workspace)
        return self._local.adopt(identity, runtime_folder)

    def read_ending(self, runtime_folder: Path, attempt: int) -> Ending:
        return self._local.read_ending(runtime_folder, attempt)

    # The port `Nodes`.

    async def list_now(self) -> list[NodeFacts]:
        await self.link.wait_ready(FIRST_LOOK_S)
        return self.link.list_nodes()

    def find_outage(self) -> str:
        connection = self.link.connection
        if connection.is_connected:
            return ""
        does = "does not accept this root" if connection.refused.is_set() else "does not answer"
        return f"the hub at {connection.address.url} {does}"

    def list_heard(self) -> dict[str, float]:
        """Return the seconds since each node was last heard."""
        return self.link.list_heard()

    async def reserve(
        self,
        needs: Placement,
        *,
        isolated: bool,
        memory_mb: int = 0,
        avoid: Sequence[str] = (),
        waiting: Callable[[str], None] = lambda _: None,
    ) -> str:
        return await self.link.reserve(
            needs, isolated=isolated, memory_mb=memory_mb, avoid=avoid, waiting=waiting
        )

    def release(self, node: str) -> None:
        self.link.release(node)

    async def drain(self, node: str, within_s: float | None) -> bool:
        return await self.link.drain(node, within_s)

    async def close(self) -> None:
        await self.link.close()


def _find_workspace(agent: Path) -> Path:
    """Return the workspace of an attempt; that of a successor belongs to the first of its line."""
    try:
        owner = _OWNER.fullmatch(os.readlink(agent / "workspace"))
    except OSError:
        return agent / "workspace"
    return agent.parent / (owner.group(1) if owner else agent.name) / "workspace"


def connect_root(
    root: Path,
    local: Runtime,
    complain: Callable[[str], None],
    failpoint: Callable[[str], None],
) -> ClusterRuntime:
    """Return the runtime of a connected root, which connects in the background.

    Raises:
        BadInput: the credentials cannot be read.
    """
    membership = read_membership(root / CREDENTIALS)
    link = StewardLink(membership, complain, failpoint, root / node_keys.FILE)
    return ClusterRuntime(local, link)
