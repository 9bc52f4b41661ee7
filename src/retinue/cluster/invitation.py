"""Invitations: one line with which a machine can join a hub once, within some days.

The line holds credentials that only allow to read and delete one entry in the hub. That entry,
encrypted with a key from the line, holds the permanent credentials. It is deleted by a
compare-and-swap, so that an invitation is redeemed once, and the hub deletes it when it expires.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from retinue.cluster.hub_connection import (
    HubAddress,
    HubConnection,
    MemberRefused,
    SwapRefused,
)
from retinue.cluster.hub_users import INVITES
from retinue.cluster.sealing import NotSealed, unseal
from retinue.core.errors import BadInput, NotFound, Refused
from retinue.files import read_plain, write_atomic
from retinue.settings import HUB_CREDENTIALS

LARGEST_BYTES = 256 * 1024  # of an invitation, unpacked
USUAL_DAYS, MOST_DAYS = 30, 3650  # for which an invitation is valid
SCHEME = "retinue://"
NODE, STEWARD = "node", "steward"
CREDENTIALS = HUB_CREDENTIALS  # in a root, and in the folder of a node


@dataclass(frozen=True, kw_only=True)
class Membership:
    """The hub's address and the secrets that a steward or a node keeps."""

    kind: str  # node or steward
    address: HubAddress
    secret: bytes  # of a steward: from which it derives keys; of a node: its private key
    name: str = ""
    labels: tuple[str, ...] = ()


def write_membership(path: Path, membership: Membership) -> None:
    document = {
        "version": 1,
        "kind": membership.kind,
        "address": asdict(membership.address),
        "secret": base64.b64encode(membership.secret).decode(),
        "name": membership.name,
        "labels": list(membership.labels),
    }
    write_atomic(path, json.dumps(document, indent=1).encode() + b"\n", 0o600)


def read_membership(path: Path) -> Membership:
    """Raises:
    NotFound: there is no such file.
    BadInput: it has another format.
    """
    try:
        document = json.loads(read_plain(path))
        return Membership(
            kind=document["kind"],
            address=HubAddress(**document["address"]),
            secret=base64.b64decode(document["secret"]),
            name=document["name"],
            labels=tuple(document["labels"]),
        )
    except FileNotFoundError:
        raise NotFound(
            f"{path} does not exist: there is no membership of a hub here",
            code="not_connected",
            hint="'retinue cluster connect' connects a root, 'retinue node join' a node",
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{path} cannot be read: {error}",
            code="invalid_membership",
            hint="remove it and use a new invitation ('retinue hub invite')",
        ) from None


def require_days(days: float) -> None:
    """Raises:
    BadInput: an invitation cannot be valid for so many days.
    """
    if not 0 < days <= MOST_DAYS:
        raise BadInput(
            f"an invitation cannot be valid for {days:g} days",
            code="invalid_days",
            hint=f"more than 0, at most {MOST_DAYS}",
        )


def format_invitation(url: str, document: Mapping[str, Any]) -> str:
    packed = zlib.compress(json.dumps(document, separators=(",", ":")).encode(), 9)
    return f"{SCHEME}{url}/#{base64.urlsafe_b64encode(packed).rstrip(b'=').decode()}"


def parse_invitation(line: str, kind: str) -> tuple[HubAddress, dict[str, Any]]:
    """Return the address with the key of the invitation, and the rest of it.

    Raises:
        BadInput: it is no invitation, or one for something else.
    """
    try:
        url, _, token = line.strip().removeprefix(SCHEME).partition("/#")
        padded = token + "=" * (-len(token) % 4)
        # Bounded: a short line may unpack to very much.
        unpacked = zlib.decompressobj().decompress(base64.urlsafe_b64decode(padded), LARGEST_BYTES)
        document = json.loads(unpacked)
        address = HubAddress(
            url=url,
            certificate=document["certificate"],
            token=document["token"],
            seed=document["seed"],
            identity=document["id"],
            lease_s=document["lease"],
        )
        for_what = str(document["kind"])
    except (ValueError, KeyError, TypeError, RecursionError, zlib.error):
        raise BadInput(
            "the invitation is invalid or incomplete",
            code="invalid_invitation",
            hint="pass the whole line that 'retinue hub invite' printed, in quotes",
        ) from None
    if for_what != kind:
        other = "'retinue cluster connect'" if for_what == STEWARD else "'retinue node join'"
        raise BadInput(
            f"the invitation is for a {for_what}",
            code="wrong_invitation",
            hint=f"use it with {other}; 'retinue hub invite' is for nodes, with --steward for "
            "stewards",
        )
    return address, document


async def redeem(line: str, kind: str) -> tuple[HubAddress, tuple[str, ...]]:
    """Exchange an invitation for lasting credentials; return them and the labels it grants.

    Raises:
        BadInput: it is no invitation of this kind.
        HubUnreachable: the hub cannot be reached.
        Refused: it was used before, was revoked, or has expired.
    """
    address, document = parse_invitation(line, kind)
    connection = HubConnection(address, lambda _: None)
    try:
        await connection.open(patient=False)
    except MemberRefused as error:
        raise Refused(
            "the hub does not accept the invitation: it has expired, or the hub was made anew",
            code="invitation_expired",
            hint="ask for a new one: 'retinue hub invite'",
        ) from error
    subject = f"invite.{address.identity}"
    used = Refused(
        "the invitation was used before, or was revoked",
        code="invitation_used",
        hint="ask for a new one: 'retinue hub invite'",
    )
    try:
        stored = await connection.read(INVITES, subject)
        if stored is None or not stored.data:
            raise used
        granted = json.loads(unseal(base64.b64decode(document["key"]), stored.data))
        await connection.swap(subject, b"", stored.revision, ttl_s=60)
    except SwapRefused:
        raise used from None
    except NotSealed:
        raise BadInput("the invitation was changed", code="invalid_invitation") from None
    finally:
        await connection.close()
    lasting = HubAddress(
        url=address.url,
        certificate=address.certificate,
        token=granted["token"],
        seed=granted["seed"],
        identity=granted["id"],
        lease_s=address.lease_s,
    )
    return lasting, tuple(granted["labels"])


def make_identity() -> str:
    """Return a new id: lower-case letters and digits, as the hub's subjects need it."""
    return base64.b32encode(os.urandom(5)).decode().lower()
