"""Where a door listens, and by which names it is called there."""

from __future__ import annotations

import socket
from ipaddress import ip_address

from retinue.domain.errors import BadInput

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
BACKLOG = 512


def listen(host: str, port: int) -> socket.socket:
    """Raises:
    BadInput: nobody can listen there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadInput(
            f"{host}:{port} cannot be used: {why}",
            code="bad_address",
            hint="--port 0 takes a free port",
        ) from None


def is_loopback(host: str) -> bool:
    return host == "localhost" or (is_address(host) and ip_address(host.strip("[]")).is_loopback)


def is_address(name: str) -> bool:
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def bracketed(host: str) -> str:
    """As it stands in a URL."""
    return f"[{host}]" if ":" in host else host
