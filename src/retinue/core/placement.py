"""Choice of the node that runs an attempt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from retinue.core.errors import AGENT, BadInput, Refused

PROTOCOL = 1  # version of the messages between stewards and nodes
HOST = "host="


@dataclass(frozen=True, kw_only=True)
class Placement:
    """What a node must have to run a subagent."""

    labels: tuple[str, ...] = ()
    host: str = ""  # the name of one node; empty: any

    def describe(self) -> str:
        if self.host:
            named = f"the node {self.host}"
            return f"{named} with {', '.join(self.labels)}" if self.labels else named
        return f"a node with {', '.join(self.labels)}" if self.labels else "a node"


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """A node as a steward sees it now."""

    id: str
    name: str
    state: str  # up, suspected, draining, lost, left
    slots: int
    busy: int
    labels: tuple[str, ...] = ()
    isolation: str = ""  # why children cannot be isolated there; empty: they can
    speaks: tuple[int, int] = (PROTOCOL, PROTOCOL)
    version: str = ""
    memory_mb: int = 0  # for children; 0: no limit
    quota: int = 0  # most children of one steward; 0: no limit
    own: int = 0  # children of the steward that asks

    @property
    def free(self) -> int:
        """Slots that the steward that asks can have now."""
        left = self.slots - self.busy
        return max(0, min(left, self.quota - self.own) if self.quota else left)


def parse_placement(words: Sequence[str]) -> Placement:
    """Parse the values of --on: labels, or host=NAME.

    Raises:
        BadInput: a value is empty, or two hosts are named.
    """
    hosts = [word.removeprefix(HOST) for word in words if word.startswith(HOST)]
    labels = [label for word in words if not word.startswith(HOST) for label in word.split(",")]
    if len(hosts) > 1 or not all((*hosts, *labels)):
        raise BadInput(
            f"not a valid place for a subagent: {' '.join(words)[:80]!a}",
            code="invalid_placement",
            hint="name labels, such as gpu, or one node, such as host=w1",
        )
    return Placement(labels=tuple(dict.fromkeys(labels)), host=hosts[0] if hosts else "")


def make_ambiguous_node_error(name: str, ids: Sequence[str]) -> Refused:
    """Return the refusal of a name that several nodes have."""
    return Refused(
        f"several nodes are called {name}: {', '.join(sorted(ids))}",
        code="ambiguous_node",
        hint="name one by its id; 'retinue nodes --json' shows more about each",
    )


def is_fitting(node: NodeFacts, needs: Placement, *, isolated: bool, memory_mb: int = 0) -> bool:
    """Return whether a node could run such a subagent, busy or not.

    Args:
        memory_mb: the memory that its limits allow it.
    """
    return (
        set(needs.labels) <= set(node.labels)
        and needs.host in ("", node.name, node.id)
        and not (isolated and node.isolation)
        and not 0 < node.memory_mb < memory_mb
        and node.speaks[0] <= PROTOCOL <= node.speaks[1]
    )


def choose_node(
    nodes: Iterable[NodeFacts],
    needs: Placement,
    *,
    isolated: bool,
    memory_mb: int = 0,
    avoid: Sequence[str] = (),
    prefer: str = "",
) -> NodeFacts | None:
    """Return the fitting node with the most free slots; None if none has a slot now.

    Args:
        avoid: ids of nodes that are taken only if no other fits, such as one that was just lost.
        prefer: id of a node that is taken if it fits, such as the one that has the files.
    """
    free = [
        node
        for node in nodes
        if node.state == "up"
        and node.free
        and is_fitting(node, needs, isolated=isolated, memory_mb=memory_mb)
    ]
    # The least loaded first, so that work spreads; ties go by name, so that it is predictable.
    free.sort(
        key=lambda node: (node.id in avoid, node.id != prefer, node.busy / node.slots, node.name)
    )
    return free[0] if free else None


def require_node(
    nodes: Sequence[NodeFacts], needs: Placement, *, isolated: bool, memory_mb: int = 0
) -> None:
    """Check that some node is there that could run such a subagent, busy or not.

    Raises:
        Refused: there is none; the message names what is missing.
    """
    here = [node for node in nodes if node.state in ("up", "suspected")]
    if any(is_fitting(node, needs, isolated=isolated, memory_mb=memory_mb) for node in here):
        return
    gone = [
        node
        for node in nodes
        if node.state in ("lost", "left") and needs.host and needs.host in (node.name, node.id)
    ]
    why = _explain(here, gone, needs, isolated, memory_mb)
    draining = [
        node.name
        for node in nodes
        if node.state == "draining"
        and is_fitting(node, needs, isolated=isolated, memory_mb=memory_mb)
    ]
    if draining:
        why = f"{min(draining)} takes no more work, because it is draining; {why}"
    raise Refused(
        f"no node can run it: {needs.describe()} is needed, and {why}",
        code="no_such_node",
        hint="'retinue nodes' lists the nodes and their labels; 'spawn --queue' waits for one",
        hints={AGENT: "leave on out, or name labels that a node has"},
    )


def _explain(
    nodes: Sequence[NodeFacts],
    gone: Sequence[NodeFacts],
    needs: Placement,
    isolated: bool,
    memory_mb: int,
) -> str:
    """Return what the nodes lack. Args: gone: those that are lost or left, and were asked for."""
    if not nodes and not gone:
        return "no node is connected"
    named = [node for node in nodes if needs.host in ("", node.name, node.id)]
    if not named and gone:
        return f"{gone[0].name} is {gone[0].state}"
    if not named:
        return f"these are connected: {', '.join(sorted(node.name for node in nodes))}"
    if missing := set(needs.labels) - {label for node in named for label in node.labels}:
        which = f"{named[0].name} does not have" if needs.host else "no connected node has"
        return f"{which} {', '.join(sorted(missing))}"
    labelled = [node for node in named if set(needs.labels) <= set(node.labels)]
    if not labelled:
        return "no connected node has all of these labels"
    speaking = [node for node in labelled if node.speaks[0] <= PROTOCOL <= node.speaks[1]]
    if not speaking:
        node = labelled[0]
        older = "the node" if node.speaks[1] < PROTOCOL else "this steward"
        return f"{node.name} runs retinue {node.version}: upgrade {older}"
    if isolated and (why := speaking[0].isolation):
        return f"{speaking[0].name} cannot isolate children: {why}"
    most = max(node.memory_mb for node in speaking)
    if 0 < most < memory_mb:
        return (
            f"its memory limit is {memory_mb} MB, and the most that a node allows is {most} MB "
            "(subagent_limits: memory_mb)"
        )
    return "none of them fits"
