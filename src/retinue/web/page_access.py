"""Sessions and CSRF tokens of the web page, and checks of host and origin."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping

from retinue.core.bounded_dict import BoundedDict
from retinue.core.errors import BadInput
from retinue.listen_address import LOOPBACK, format_url_host, is_address, is_loopback

SHORTEST_TOKEN = 16
MOST_SESSIONS = 32


class Access:
    """Sessions and secrets of one server."""

    def __init__(self, host: str, port: int, token: str) -> None:
        self.port = port
        # Browsers share cookies between the ports of a host, hence the port in the name.
        self.cookie = f"retinue_{port}"
        self.has_token = bool(token)
        self._token = token
        self._key = secrets.token_urlsafe(24)
        # session -> its CSRF token
        self._sessions = BoundedDict[str, str](MOST_SESSIONS)
        self._anywhere = not is_loopback(host)
        self._names = {*LOOPBACK, format_url_host(host).lower()}
        if self._anywhere:
            self._names.add(socket.gethostname().lower())

    @property
    def entrance(self) -> str:
        """Return the path that opens a session; it works once."""
        return f"/enter/{self._key}"

    def enter(self, key: str) -> str | None:
        """Open a session for the one-time key of the link; None if it is wrong or used."""
        if not self._key or not _compare_secrets(key, self._key):
            return None
        self._key = ""
        return self._open()

    def sign_in(self, token: str) -> str | None:
        """Open a session for the token; None if it is wrong."""
        if not self.has_token or not _compare_secrets(token, self._token):
            return None
        return self._open()

    def get_csrf_token(self, session: str) -> str | None:
        """Return the session's CSRF token; None if there is no such session.

        Browsers send a cookie to every port of a host, so another server on this machine may
        learn it. The token is in the page's storage, which belongs to one port. A request
        needs both.
        """
        return self._sessions.get(session)

    def is_word_of(self, session: str, given: str) -> bool:
        known = self._sessions.get(session)
        return known is not None and _compare_secrets(given, known)

    def is_host(self, host: str) -> bool:
        """Return whether the Host header names this server; protects against DNS rebinding."""
        name, _, port = host.lower().rpartition(":")
        if port != str(self.port):
            return False
        return name in self._names or (self._anywhere and is_address(name))

    def is_origin(self, origin: str, host: str) -> bool:
        return self.is_host(host) and origin.lower() == f"http://{host.lower()}"

    def _open(self) -> str:
        session = secrets.token_urlsafe(32)
        self._sessions[session] = secrets.token_urlsafe(24)
        return session


def _compare_secrets(given: str, known: str) -> bool:
    """Compare in constant time; `given` may contain lone surrogates."""
    return secrets.compare_digest(given.encode("utf-8", "surrogatepass"), known.encode())


def require_token(host: str, token: str) -> None:
    """Raises:
    BadInput: the token is too short, or missing for an address that others can reach.
    """
    if token and len(token) < SHORTEST_TOKEN:
        raise BadInput(
            f"the token has fewer than {SHORTEST_TOKEN} characters",
            code="weak_token",
            hint="create one with: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )
    if not token and not is_loopback(host):
        raise BadInput(
            f"{host} can be reached by others, and there is no token",
            code="token_needed",
            hint="use 127.0.0.1, or give a file with a token: --token-file FILE",
        )


def parse_cookies(header: str) -> Mapping[str, str]:
    pairs = (each.strip().partition("=") for each in header.split(";"))
    return {name: value for name, _, value in pairs}
