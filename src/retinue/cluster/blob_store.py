"""Files in the hub, cut into pieces that fit into its messages."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from retinue.cluster.hub_connection import HubConnection
from retinue.cluster.hub_users import BLOBS
from retinue.cluster.sealing import SEALING_BYTES, NotSealed, seal, unseal
from retinue.core.errors import RetinueError

Made = TypeVar("Made")
PIECE = 512 * 1024
AT_ONCE = 8
HEAD = 8  # bytes in front of the first piece: the number of pieces
PUT_S = 30.0
LONG_WORK = 4 * 1024 * 1024  # bytes that are hashed or sealed in a thread: about 10 ms


class BlobMissing(RetinueError):
    """The hub has no such blob, or one with other content."""

    default_code = "blob_missing"


class BlobGone(BlobMissing):
    """The hub has dropped it."""


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
        sha256 = str(document["sha256"])
        # Security: it becomes the name of a folder on a node.
        if not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise ValueError("not the hash of a blob")
        return cls(name=name, sha256=sha256, size=int(document["size"]))


class BlobStore:
    """Sealed blobs in the hub. A member writes only names that begin with its own id."""

    def __init__(self, connection: HubConnection) -> None:
        self._connection = connection

    async def put(self, name: str, key: bytes, data: bytes) -> BlobRef:
        """Seal and store; `name` is unique for this content and key.

        Raises:
            HubUnreachable: the hub did not take all of it.
        """
        ref = await self.refer(name, data)
        sealed = await _work_on(data, _seal_alike, key, data)
        count = _count_pieces(ref.size)
        turns = asyncio.Semaphore(AT_ONCE)

        async def send(number: int) -> None:
            head = count.to_bytes(HEAD, "little") if number == 0 else b""
            async with turns:
                await self._connection.swap(
                    f"blob.{ref.name}.{number}",
                    head + sealed[number * PIECE : (number + 1) * PIECE],
                    None,
                    timeout_s=PUT_S,
                )

        await asyncio.gather(*(send(number) for number in range(1, count)))
        # The first piece comes last: who finds it finds the others.
        await send(0)
        return ref

    async def refer(self, name: str, data: bytes) -> BlobRef:
        """Return the reference to this content of this member under that name."""
        digest = await _work_on(data, _hash, data)
        whole = f"{self._connection.address.identity}.{name}"
        return BlobRef(name=whole, sha256=digest, size=len(data))

    async def has(self, ref: BlobRef) -> bool:
        """Return whether all pieces of a blob are in the hub, which drops the oldest. Stewards ask.

        Raises:
            HubUnreachable: no answer.
        """
        found = await self._connection.count_subjects(BLOBS, f"blob.{ref.name}.>")
        return found == _count_pieces(ref.size)

    async def get(self, ref: BlobRef, key: bytes, largest: int) -> bytes:
        """Return the content.

        Raises:
            BlobGone: it is not there any more.
            BlobMissing: it was changed, or is larger than `largest`.
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
        sealed = b"".join([first[HEAD:], *rest])
        try:
            data = await _work_on(sealed, unseal, key, sealed)
        except NotSealed:
            raise BlobMissing("a file in the hub was changed") from None
        if len(data) != ref.size or await _work_on(data, _hash, data) != ref.sha256:
            raise BlobMissing("a file in the hub is not the one that was announced")
        return data

    async def _read(self, ref: BlobRef, number: int) -> bytes:
        stored = await self._connection.read(BLOBS, f"blob.{ref.name}.{number}")
        if stored is None or stored.data is None:
            raise BlobGone(
                "a file is no longer in the hub, which drops the oldest when it is full "
                "('retinue hub start --disk SIZE')"
            )
        return stored.data


def _count_pieces(size: int) -> int:
    return -(-(size + SEALING_BYTES) // PIECE)


def _seal_alike(key: bytes, data: bytes) -> bytes:
    """Seal the same content under the same key to the same bytes."""
    return seal(key, data, hashlib.blake2b(data, digest_size=24, key=key).digest())


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def _work_on(data: bytes, work: Callable[..., Made], *given: object) -> Made:
    """Do what takes longer the more data there is; a lease must be renewed meanwhile."""
    return work(*given) if len(data) < LONG_WORK else await asyncio.to_thread(work, *given)
