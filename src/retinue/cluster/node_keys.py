"""Keys of the nodes that a steward has seen, kept in its root.

They are stored because a hub could otherwise announce another key for a known node after each
restart of the steward.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from retinue.core.errors import StorageFailed
from retinue.files import read_plain, write_atomic

FILE = "nodes.json"


class NodeKeys:
    """The first key that was seen of each node."""

    def __init__(self, path: Path | None) -> None:
        """Args: path: of the file; None: the keys are kept in memory alone."""
        self._path = path
        self._keys: dict[str, str] = {}
        if path is not None:
            with suppress(OSError, ValueError, AttributeError):
                self._keys = {str(k): str(v) for k, v in json.loads(read_plain(path)).items()}

    def pin(self, node: str, key: str) -> bool:
        """Note the key of a new node; return whether it is the one that the node always had."""
        if node not in self._keys:
            self._keys[node] = key
            if self._path is not None:
                # A full disk is no reason to do without the node.
                with suppress(StorageFailed):
                    write_atomic(self._path, json.dumps(self._keys, indent=1).encode() + b"\n")
        return self._keys[node] == key
