"""Messages between stewards and nodes: a JSON head, and bytes after it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from retinue.core.placement import PROTOCOL, NodeFacts
from retinue.core.task_config import Boundary, Limits

OFFERED, ACCEPTED, ENDED, REVOKED = "offered", "accepted", "ended", "revoked"
INLINE = 200_000  # bytes of files that travel inside a message; more becomes a blob
LONGEST_TEXT = 500  # of a name, a label or a reason in the record of a node
INBOX_NAME = re.compile(r"[0-9]+(\.now)?\.txt")  # of a message to a team; the latter is urgent
_KEY = re.compile(r"[a-z0-9]{1,32}\.[a-z0-9]{1,32}\.[a-z0-9]{1,32}")


class InvalidMessage(ValueError):
    """The message is not one of this protocol."""


def encode(head: Mapping[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps(head, separators=(",", ":")).encode()
    return len(text).to_bytes(4, "little") + text + body


def decode(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Raises:
    InvalidMessage: it is damaged.
    """
    size = int.from_bytes(data[:4], "little")
    try:
        head = json.loads(data[4 : 4 + size])
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(str(error)) from error
    if not isinstance(head, dict):
        raise InvalidMessage("not an object")
    return head, data[4 + size :]


@dataclass(frozen=True, kw_only=True)
class AttemptKey:
    """Name of one attempt in the hub: the node that may run it, its steward, and a number."""

    node: str
    steward: str
    nonce: str

    def __str__(self) -> str:
        return f"{self.node}.{self.steward}.{self.nonce}"

    @property
    def subject(self) -> str:
        return f"$KV.attempts.{self}"

    @classmethod
    def parse(cls, text: str) -> AttemptKey:
        """Raises:
        InvalidMessage: it is none.
        """
        if not _KEY.fullmatch(text):
            raise InvalidMessage("not the key of an attempt")
        node, steward, nonce = text.split(".")
        return cls(node=node, steward=steward, nonce=nonce)


@dataclass(frozen=True, kw_only=True)
class NodeRecord:
    """Description of a node, which it sends with each renewal of its lease."""

    name: str
    epoch: str  # another one whenever the lease was lost
    state: str  # up or draining
    slots: int
    busy: int
    labels: tuple[str, ...]
    isolation: str  # why children cannot be isolated there; empty: they can
    layers: bool  # workspaces can be overlays there
    version: str
    box: str  # public key for orders, in hex
    speaks: tuple[int, int] = (PROTOCOL, PROTOCOL)
    memory_mb: int = 0
    bases: tuple[str, ...] = ()  # commits whose files it has
    # Most attempts of a steward, by its id; "" is for those that are not named. Empty: no quotas.
    quotas: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def parse(cls, data: bytes) -> NodeRecord:
        """Read a record; fields that only a later version knows are passed over.

        Raises:
            InvalidMessage: it is none.
        """
        try:
            found = json.loads(data)
            known = {name: found[name] for name in cls.__dataclass_fields__ if name in found}
            for name in ("labels", "speaks", "bases"):
                known[name] = tuple(known.get(name, ()))
            record = cls(**known)
            texts = (record.name, record.epoch, record.state, record.isolation, record.version)
            good = all(map(_is_plain, (*texts, *record.labels, *record.bases)))
            quotas = record.quotas.values() if isinstance(record.quotas, dict) else (None,)
            numbers = (record.slots, record.busy, record.memory_mb, *record.speaks, *quotas)
            if not good or len(record.speaks) != 2 or record.slots < 1:
                raise ValueError("a field has the wrong form")
            if not all(isinstance(number, int) and number >= 0 for number in numbers):
                raise ValueError("a number is none")
            bytes.fromhex(record.box)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InvalidMessage(f"not the record of a node: {error}") from error
        return record

    def get_quota(self, steward: str) -> int:
        return find_quota(self.quotas, steward)

    def to_facts(self, identity: str, state: str, busy: int) -> NodeFacts:
        return NodeFacts(
            id=identity,
            name=self.name,
            state=state,
            slots=self.slots,
            busy=busy,
            labels=self.labels,
            isolation=self.isolation,
            speaks=(self.speaks[0], self.speaks[1]),
            version=self.version,
            memory_mb=self.memory_mb,
        )


def _is_plain(text: object) -> bool:
    """Return whether it is a short text that a terminal shows as it is."""
    return isinstance(text, str) and text.isprintable() and len(text) <= LONGEST_TEXT


def find_quota(quotas: Mapping[str, int], steward: str) -> int:
    """Return the most attempts that a steward may have on a node; 0: no limit."""
    return quotas.get(steward, quotas.get("", 0))


def boundary_to_json(boundary: Boundary) -> dict[str, Any]:
    return asdict(boundary)


def boundary_from_json(document: Mapping[str, Any]) -> Boundary:
    """Raises:
    InvalidMessage: it is none.
    """
    try:
        known = {name: document[name] for name in Boundary.__dataclass_fields__ if name in document}
        limits = known.get("limits", {})
        fields = Limits.__dataclass_fields__
        known["limits"] = Limits(**{name: limits[name] for name in fields if name in limits})
        known["launch_prefix"] = tuple(known.get("launch_prefix", ()))
        return Boundary(**known)
    except (TypeError, AttributeError) as error:
        raise InvalidMessage(str(error)) from error
