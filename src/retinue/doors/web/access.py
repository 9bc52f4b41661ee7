"""Who may look, and from where: one link for one browser, and no other page may speak for it."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping

from retinue.domain.errors import BadInput
from retinue.domain.newest import Newest
from retinue.doors.addresses import LOOPBACK, bracketed, is_address, is_loopback

SHORTEST_TOKEN = 16
MOST_SESSIONS = 32


class Access:
    """The sessions of one server, which know nothing of those of another."""

    def __init__(self, host: str, port: int, token: str) -> None:
        self.port = port
        self.cookie = f"retinue_{port}"  # browsers share cookies between ports of a host
        self.has_token = bool(token)
        self._token = token
        self._key = secrets.token_urlsafe(24)
        self._sessions = Newest[str, str](MOST_SESSIONS)  # each with the word its own page says
        self._anywhere = not is_loopback(host)
        self._names = {*LOOPBACK, bracketed(host).lower()}
        if self._anywhere:
            self._names.add(socket.gethostname().lower())

    @property
    def entrance(self) -> str:
        """The path that opens a session, once."""
        return f"/enter/{self._key}"

    def enter(self, key: str) -> str | None:
        """A new session for whoever has the link; the link is used up."""
        if not self._key or not _same(key, self._key):
            return None
        self._key = ""
        return self._open()

    def sign_in(self, token: str) -> str | None:
        """A new session for whoever knows the token."""
        if not self.has_token or not _same(token, self._token):
            return None
        return self._open()

    def word_of(self, session: str) -> str | None:
        """What the session's page must say to change anything; None for no session of ours."""
        return self._sessions.get(session)

    def is_host(self, host: str) -> bool:
        """Whether a request names this server: a foreign name led here is refused."""
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


def _same(given: str, known: str) -> bool:
    """Told in the same time whatever was given, which may be no text that can be sent."""
    return secrets.compare_digest(given.encode("utf-8", "surrogatepass"), known.encode())


def require_token(host: str, token: str) -> None:
    """Raises:
    BadInput: others could reach this host, and nothing but chance would keep them out.
    """
    if token and len(token) < SHORTEST_TOKEN:
        raise BadInput(
            f"the token has fewer than {SHORTEST_TOKEN} characters",
            code="weak_token",
            hint="make one with: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )
    if not token and not is_loopback(host):
        raise BadInput(
            f"{host} can be reached by others, and there is no token",
            code="token_needed",
            hint="stay on 127.0.0.1, or name a file with a secret: --token-file FILE",
        )


def cookies(header: str) -> Mapping[str, str]:
    pairs = (each.strip().partition("=") for each in header.split(";"))
    return {name: value for name, _, value in pairs}
