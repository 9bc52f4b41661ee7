"""Users of a hub and their permissions, as signed tokens (JWT) that the server verifies.

The hub's operator key signs one account for the team. The account key signs a token for each
steward and node, so that the server's configuration does not change when one joins.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from typing import Any

import nkeys

ATTEMPTS, NODES, BLOBS, INVITES = "KV_attempts", "KV_nodes", "retinue_blobs", "retinue_invites"
DAY_S = 86_400
_COUNTS = ("subs", "data", "payload", "imports", "exports", "conn", "leaf", "streams", "consumer")
_SIZES = ("mem_storage", "disk_storage", "max_ack_pending")
_UNLIMITED = dict.fromkeys((*_COUNTS, *_SIZES), -1) | {"wildcards": True}
_NO_STREAMS = _UNLIMITED | {"mem_storage": 0, "disk_storage": 0}


class SigningKey:
    """A key pair of an operator, an account or a user."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self._pair = nkeys.from_seed(bytearray(seed.encode()))

    @property
    def public(self) -> str:
        return bytes(self._pair.public_key).decode()

    def sign(self, data: bytes) -> bytes:
        return bytes(self._pair.sign(data))


def make_operator() -> SigningKey:
    return _make(nkeys.PREFIX_BYTE_OPERATOR)


def make_account() -> SigningKey:
    return _make(nkeys.PREFIX_BYTE_ACCOUNT)


def make_user() -> SigningKey:
    return _make(nkeys.PREFIX_BYTE_USER)


def _make(prefix: int) -> SigningKey:
    return SigningKey(bytes(nkeys.encode_seed(os.urandom(32), prefix)).decode())


def issue_operator(operator: SigningKey, system_account: str) -> str:
    nats = {"type": "operator", "version": 2, "system_account": system_account}
    return _issue({"sub": operator.public, "name": "retinue hub", "nats": nats}, operator)


def issue_account(
    account: SigningKey,
    operator: SigningKey,
    name: str,
    *,
    streams: bool,
    revoked: dict[str, int] | None = None,
) -> str:
    """Return the token of an account; `revoked` maps users to the time up to which none counts."""
    nats: dict[str, Any] = {
        "limits": _UNLIMITED if streams else _NO_STREAMS,
        "default_permissions": {"pub": {}, "sub": {}},
        "type": "account",
        "version": 2,
    }
    if revoked:
        nats["revocations"] = revoked
    return _issue({"sub": account.public, "name": name, "nats": nats}, operator)


def issue_steward(user: SigningKey, account: SigningKey, identity: str) -> str:
    """A steward may use all subjects of its team."""
    return _issue_user(user, account, identity, [">"], [">"])


def issue_node(user: SigningKey, account: SigningKey, identity: str) -> str:
    """A node may write its own lease and attempts, and read its own orders."""
    return _issue_user(
        user,
        account,
        identity,
        [
            f"$KV.nodes.{identity}",
            f"$KV.attempts.{identity}.>",
            f"$JS.API.DIRECT.GET.{NODES}.$KV.nodes.{identity}",
            f"$JS.API.DIRECT.GET.{ATTEMPTS}.$KV.attempts.{identity}.>",
            f"$JS.API.DIRECT.GET.{BLOBS}.blob.>",
            f"blob.{identity}.>",
            f"live.{identity}.>",
            f"tunnel.{identity}.>",
        ],
        [f"node.{identity}.>", f"_INBOX_{identity}.>"],
    )


def issue_invitation(user: SigningKey, account: SigningKey, identity: str, days: float) -> str:
    """An invitation may only be redeemed, and only for some days."""
    return _issue_user(
        user,
        account,
        f"invitation-{identity}",
        [f"invite.{identity}", f"$JS.API.DIRECT.GET.{INVITES}.invite.{identity}"],
        [f"_INBOX_{identity}.>"],
        until=int(time.time() + days * DAY_S),
    )


def _issue_user(
    user: SigningKey,
    account: SigningKey,
    name: str,
    publish: list[str],
    subscribe: list[str],
    until: int = 0,
) -> str:
    nats = {
        "pub": {"allow": publish},
        "sub": {"allow": subscribe},
        # Requests may be answered without a permission for each asker's inbox.
        "resp": {"max": 1, "ttl": 600 * 10**9},
        "subs": -1,
        "data": -1,
        "payload": -1,
        "type": "user",
        "version": 2,
    }
    claims: dict[str, Any] = {"sub": user.public, "name": name, "nats": nats}
    return _issue(claims | ({"exp": until} if until else {}), account)


def _issue(claims: dict[str, Any], signer: SigningKey) -> str:
    """Return a signed token in the format that the NATS server reads."""
    claims = {"iat": int(time.time()), "iss": signer.public, **claims}
    digest = hashlib.sha256(json.dumps(claims, sort_keys=True).encode()).digest()
    claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
    head = _encode(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
    signed = f"{head}.{_encode(json.dumps(claims).encode())}"
    return f"{signed}.{_encode(signer.sign(signed.encode()))}"


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
