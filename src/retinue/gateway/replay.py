"""Recorded answers, found again by the request: for looking closer, and for tests."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from retinue.files import make_folder, write_atomic
from retinue.gateway.grants import Grant

FOLDER = "traffic"


@dataclass(frozen=True, kw_only=True)
class Answer:
    status: int
    content_type: str
    chunks: tuple[bytes, ...]


class Recordings:
    """Of one request that a subagent repeats, each answer has its number."""

    def __init__(self, tasks: Path) -> None:
        self._tasks = tasks
        self._seen: Counter[tuple[str, ...]] = Counter()

    def place(self, grant: Grant, wire: str, path: str, body: bytes) -> Path:
        """Where the answer to this request is kept, or is to be."""
        key = hashlib.sha256(b"\0".join([wire.encode(), path.encode(), body])).hexdigest()
        counted = (*grant.owner, str(grant.attempt), key)
        self._seen[counted] += 1
        folder = grant.traffic.folder
        where = self._tasks.parent.parent / folder if folder else self._own(grant)
        return where / f"{key[:32]}-{self._seen[counted]}.json"

    def forget(self, grant: Grant) -> None:
        """The attempt is over: nothing of it is counted any more."""
        for counted in [each for each in self._seen if each[:2] == grant.owner]:
            del self._seen[counted]

    def _own(self, grant: Grant) -> Path:
        return self._tasks / grant.subagent.task / FOLDER


def keep(place: Path, request: bytes, answer: Answer) -> None:
    """The answer can be found again; one that was there already stays.

    Raises:
        StorageFailed: the disk said no.
    """
    if place.exists():
        return
    make_folder(place.parent)
    document = {
        "request": request.decode("utf-8", "replace"),
        "status": answer.status,
        "content_type": answer.content_type,
        "chunks": [base64.b64encode(chunk).decode() for chunk in answer.chunks],
    }
    write_atomic(place, json.dumps(document).encode())


def recall(place: Path) -> Answer | None:
    """What was recorded there, or None."""
    try:
        document = json.loads(place.read_bytes())
        return Answer(
            status=int(document["status"]),
            content_type=str(document["content_type"]),
            chunks=tuple(base64.b64decode(chunk) for chunk in document["chunks"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def missing(place: Path) -> str:
    """Why nothing was recalled, with where it was looked for."""
    there = "" if place.parent.is_dir() else ", which is not there"
    return (
        f"no answer to this request was recorded: looked for {place.name} in {place.parent}{there}"
    )
