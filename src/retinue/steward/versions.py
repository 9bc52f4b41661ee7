"""What a steward refuses because it is not of the version that asks: it outlives an upgrade."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retinue.domain.errors import BadInput, RetinueError
from retinue.sockets import peer
from retinue.wire import protocol

PACKAGE = Path(__file__).parent.parent
BEFORE = f"the steward began before retinue was last changed here: {protocol.ANOTHER}"


def refusal(error: Mapping[str, Any], connection: socket.socket) -> RetinueError:
    """What the steward said; where an older one would say it, the hint is how to have another."""
    said = protocol.error_from_json(error)
    if said.code == "unknown_verb" or said.message.startswith("unknown parameter "):
        return _hinting(said, protocol.OTHER_VERSION)
    if (isinstance(said, BadInput) or said.code == "internal") and _is_older(connection):
        return _hinting(said, f"{said.hint}; {BEFORE}")
    return said


def _hinting(said: RetinueError, hint: str) -> RetinueError:
    return type(said)(said.message, code=said.code, hint=hint)


def _is_older(connection: socket.socket) -> bool:
    """Whether a file of this package came to where it is after the one at the other end began."""
    try:
        pid, _ = peer(connection)
        with open(f"/proc/{pid}/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        began = booted + ticks / os.sysconf("SC_CLK_TCK")
        return any(path.stat().st_ctime > began for path in PACKAGE.rglob("*.py"))
    except OSError:  # it is gone, or not ours to see, as from within a subagent
        return False
