"""Hostile messages and invitations are refused with the one error that their readers expect."""

from __future__ import annotations

import base64
import tracemalloc
import zlib

import pytest

from retinue.cluster.blob_store import BlobRef
from retinue.cluster.invitation import parse_invitation
from retinue.cluster.messages import InvalidMessage, NodeRecord, decode
from retinue.core.errors import BadInput

DEEP = b"[" * 100_000


def wrap(text: bytes) -> bytes:
    return len(text).to_bytes(4, "little") + text


@pytest.mark.parametrize("head", [b"", b"{", b"[]", b"1", b"\xff", DEEP, b'{"a":' * 100_000])
def test_a_head_that_is_no_object_is_refused(head: bytes) -> None:
    with pytest.raises(InvalidMessage):
        decode(wrap(head))


@pytest.mark.parametrize("record", [b"", b"1", b"[]", b"{}", b"null", DEEP, b'{"name": 1}'])
def test_a_record_that_is_none_is_refused(record: bytes) -> None:
    with pytest.raises(InvalidMessage):
        NodeRecord.parse(record)


@pytest.mark.parametrize("document", [DEEP, bytes(64 * 1024 * 1024)], ids=["deep", "bomb"])
def test_an_invitation_that_unpacks_to_nonsense_is_refused(document: bytes) -> None:
    token = base64.urlsafe_b64encode(zlib.compress(document)).decode()
    tracemalloc.start()
    try:
        with pytest.raises(BadInput) as refused:
            parse_invitation(f"retinue://nats://hub:1/#{token}", "node")
        assert tracemalloc.get_traced_memory()[1] < 8 * 1024 * 1024
    finally:
        tracemalloc.stop()
    assert refused.value.code == "invalid_invitation"


@pytest.mark.parametrize("sha256", ["../../tasks/x", "", "A" * 64, "0" * 63, "0" * 64 + "\n"])
def test_a_reference_to_a_blob_names_no_other_folder(sha256: str) -> None:
    with pytest.raises(ValueError, match="not the hash"):
        BlobRef.from_json({"name": "a.b", "sha256": sha256, "size": 1})
