"""Files in the hub, cut into pieces that fit into its messages."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from retinue.cluster.hub_connection import HubConnection
from retinue.cluster.hub_users import BLOBS
from retinue.cluster.sealing import NotSealed, seal, unseal
from retinue.core.errors import RetinueError

PIECE = 512 * 1024
AT_ONCE = 8
HEAD = 8  # bytes in front of the first piece: the number of pieces
PUT_S = 30.0


class BlobMissing(RetinueError):
    """The hub has no such blob, or one with other content."""

    default_code = "blob_missing"


@dataclass(frozen=True, kw_only=True)
class BlobRef:
    """Name of a file in the hub, with its size and hash."""

    name: str  # OWNER.NAME
    sha256: str
    size: int

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> BlobRef:
        """Raises:
        KeyError, TypeError, ValueError: it is none.
        """
        name = str(document["name"])
        if not all(part.isalnum() for part in name.split(".")) or name.count(".") != 1:
            raise ValueError("not the name of a blob")
        return cls(name=name, sha256=str(document["sha256"]), size=int(document["size"]))


class BlobStore:
    """Sealed blobs in the hub. A member writes only names that begin with its own id."""

    def __init__(self, connection: HubConnection) -> None:
        self._connection = connection

    async def put(self, name: str, key: bytes, data: bytes) -> BlobRef:
        """Seal and store; `name` is unique for this content and key.

        Raises:
            HubUnreachable: the hub did not take all of it.
        """
        whole = f"{self._connection.address.identity}.{name}"
        # The same content under the same key is sealed to the same bytes.
        digest = hashlib.sha256(data).hexdigest()
        sealed = seal(key, data, hashlib.blake2b(data, digest_size=24, key=key).digest())
        pieces = [sealed[at : at + PIECE] for at in range(0, len(sealed), PIECE)]
        pieces[0] = len(pieces).to_bytes(HEAD, "little") + pieces[0]
        turns = asyncio.Semaphore(AT_ONCE)

        async def send(number: int) -> None:
            async with turns:
                await self._connection.swap(
                    f"blob.{whole}.{number}", pieces[number], None, timeout_s=PUT_S
                )

        await asyncio.gather(*(send(number) for number in range(1, len(pieces))))
        # The first piece comes last: who finds it finds the others.
        await send(0)
        return BlobRef(name=whole, sha256=digest, size=len(data))

    def refer(self, name: str, data: bytes) -> BlobRef:
        """Return the reference to content that this member has stored under that name."""
        whole = f"{self._connection.address.identity}.{name}"
        return BlobRef(name=whole, sha256=hashlib.sha256(data).hexdigest(), size=len(data))

    async def has(self, name: str) -> bool:
        """Return whether this member stored a blob of this name.

        Raises:
            HubUnreachable: no answer.
        """
        subject = f"blob.{self._connection.address.identity}.{name}.0"
        return await self._connection.read(BLOBS, subject) is not None

    async def get(self, ref: BlobRef, key: bytes, largest: int) -> bytes:
        """Return the content.

        Raises:
            BlobMissing: it is not there, was changed, or is larger than `largest`.
            HubUnreachable: no answer.
        """
        if ref.size > largest:
            raise BlobMissing(f"a file of {ref.size} bytes is too large")
        first = await self._read(ref, 0)
        count = int.from_bytes(first[:HEAD], "little")
        if not 1 <= count <= ref.size // PIECE + 2:
            raise BlobMissing("a file in the hub was changed")
        turns = asyncio.Semaphore(AT_ONCE)

        async def take(number: int) -> bytes:
            async with turns:
                return await self._read(ref, number)

        rest = await asyncio.gather(*(take(number) for number in range(1, count)))
        try:
            data = unseal(key, b"".join([first[HEAD:], *rest]))
        except NotSealed:
            raise BlobMissing("a file in the hub was changed") from None
        if len(data) != ref.size or hashlib.sha256(data).hexdigest() != ref.sha256:
            raise BlobMissing("a file in the hub is not the one that was announced")
        return data

    async def _read(self, ref: BlobRef, number: int) -> bytes:
        stored = await self._connection.read(BLOBS, f"blob.{ref.name}.{number}")
        if stored is None or stored.data is None:
            raise BlobMissing("a file is no longer in the hub")
        return stored.data
