"""Recorded answers of providers, keyed by request, for inspection and replay."""

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
class RecordedAnswer:
    status: int
    content_type: str
    chunks: tuple[bytes, ...]


class Recordings:
    """Paths of recordings. Repeated identical requests of an attempt are numbered."""

    def __init__(self, tasks: Path) -> None:
        self._tasks = tasks
        self._counts: Counter[tuple[str, ...]] = Counter()

    def find_path(self, grant: Grant, wire: str, path: str, body: bytes) -> Path:
        """Return the file for the answer to this request; each call counts one repetition."""
        key = hashlib.sha256(b"\0".join([wire.encode(), path.encode(), body])).hexdigest()
        counted = (*grant.owner, str(grant.attempt), key)
        self._counts[counted] += 1
        folder = grant.traffic.folder
        where = self._tasks.parent.parent / folder if folder else self._get_task_folder(grant)
        return where / f"{key[:32]}-{self._counts[counted]}.json"

    def forget(self, grant: Grant) -> None:
        """Drop the counters of a finished attempt."""
        for counted in [each for each in self._counts if each[:2] == grant.owner]:
            del self._counts[counted]

    def _get_task_folder(self, grant: Grant) -> Path:
        return self._tasks / grant.subagent.task / FOLDER


def save_answer(path: Path, request: bytes, answer: RecordedAnswer) -> None:
    """Save an answer, unless the file exists.

    Raises:
        StorageFailed: the file cannot be written.
    """
    if path.exists():
        return
    make_folder(path.parent)
    document = {
        "request": request.decode("utf-8", "replace"),
        "status": answer.status,
        "content_type": answer.content_type,
        "chunks": [base64.b64encode(chunk).decode() for chunk in answer.chunks],
    }
    write_atomic(path, json.dumps(document).encode())


def load_answer(path: Path) -> RecordedAnswer | None:
    """Return the recorded answer; None if it is missing or unreadable."""
    try:
        document = json.loads(path.read_bytes())
        return RecordedAnswer(
            status=int(document["status"]),
            content_type=str(document["content_type"]),
            chunks=tuple(base64.b64decode(chunk) for chunk in document["chunks"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def describe_missing(path: Path) -> str:
    """Return an error text with the path that was searched."""
    absence = "" if path.parent.is_dir() else ", which does not exist"
    return (
        f"no answer to this request was recorded: looked for {path.name} in {path.parent}{absence}"
    )
