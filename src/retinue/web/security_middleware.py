"""Security checks for every request, and security headers for every response."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retinue.core.data_structures import BoundedDict
from retinue.core.errors import BadInput
from retinue.listen_address import LOOPBACK, format_url_host, is_address, is_loopback

# Sessions and CSRF tokens of the web page, and checks of host and origin.

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

    def set_cookie(self, response: Response, session: str) -> None:
        """Give the session to the browser, until that is closed."""
        response.set_cookie(self.cookie, session, httponly=True, samesite="strict")

    def has_csrf_token(self, session: str, given: str) -> bool:
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


LONGEST_TARGET = 8 * 1024
LONGEST_HEADERS = 16 * 1024
MOST_HEADERS = 100
LARGEST_BODY = 256 * 1024
METHODS = ("GET", "HEAD", "POST")
# Paths without a session; they show nothing of a task
OPEN_PATHS = ("/static/", "/enter/")
SIGN_IN = "/api/enter"
CSRF_HEADER = "x-csrf-token"
# For streams: a browser's EventSource cannot send headers
CSRF_PARAMETER = "csrf"
STREAMS = ("/changes", "/events", "/live")
SHORTER = "ask for less at a time"
ADDRESSES = (
    "GET /api/tasks lists the tasks; /api/tasks/TASK, its /events and its /subagents/ID are below "
    "it, and actions are sent by POST, as to /api/tasks/TASK/subagents/ID/cancel"
)
FROM_HERE = "act on the page that 'retinue ui' serves"

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class SecurityMiddleware:
    """ASGI middleware that lets only requests of this server's own page reach the routes."""

    def __init__(self, app: ASGIApp, access: Access, locked: str) -> None:
        self._app = app
        self._access = access
        # The page for a browser without a session
        self._locked = locked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = self._find_refusal(scope) or self._app
        await answer(scope, receive, send_guarded)

    def _find_refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > LONGEST_TARGET:
            return refuse(414, "target_too_long", "the address is too long", SHORTER)
        if len(scope["headers"]) > MOST_HEADERS or size > LONGEST_HEADERS:
            return refuse(431, "headers_too_large", "too many headers", SHORTER)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._access.is_host(hosts[0]):
            hint = "use the address that 'retinue ui' printed, with its port"
            return refuse(403, "foreign_host", "this server has another name", hint)
        if scope["method"] not in METHODS:
            return refuse_method(METHODS)
        return self._refuse_stranger(scope, headers) or self._refuse_cross_origin(scope, headers)

    def _refuse_stranger(self, scope: Scope, headers: Headers) -> Response | None:
        path = scope["path"]
        session = parse_cookies(headers.get("cookie", "")).get(self._access.cookie, "")
        scope["retinue.session"] = session
        if self._access.get_csrf_token(session) or path.startswith(OPEN_PATHS) or path == SIGN_IN:
            return None
        if path.startswith("/api/"):
            hint = "open the link that 'retinue ui' printed"
            return refuse(401, "no_session", "this browser has no session here", hint)
        return HTMLResponse(self._locked, status_code=401)

    def _refuse_cross_origin(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the refusal of a request from another page, or of one without a CSRF token."""
        path = scope["path"]
        posted = scope["method"] == "POST"
        origin = headers.get("origin")
        host = headers["host"]
        from_here = headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
        if origin is not None and not self._access.is_origin(origin, host):
            return refuse(403, "foreign_origin", "the request comes from another page", FROM_HERE)
        if path.startswith("/api/") and not from_here:
            return refuse(403, "foreign_origin", "the request comes from another page", FROM_HERE)
        protected = path.startswith("/api/") and path != SIGN_IN
        if protected and not self._has_csrf_token(scope, headers):
            hint = "open the link that 'retinue ui' prints: the page that it opens has the token"
            return refuse(403, "no_word", "missing or wrong CSRF token", hint)
        if not posted:
            return None
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            hint = "send JSON, and 'Content-Type: application/json'"
            return refuse(415, "content_type", "only application/json is accepted", hint)
        if origin is None:
            said = "the request has no Origin header"
            return refuse(403, "foreign_origin", said, "send this server's address as Origin")
        if parse_int(headers.get("content-length", "0"), LARGEST_BODY + 1) > LARGEST_BODY:
            return refuse_body()
        return None

    def _has_csrf_token(self, scope: Scope, headers: Headers) -> bool:
        given = headers.get(CSRF_HEADER, "")
        if not given and scope["method"] == "GET" and scope["path"].endswith(STREAMS):
            given = QueryParams(scope["query_string"]).get(CSRF_PARAMETER, "")
        return self._access.has_csrf_token(scope["retinue.session"], given)


class AsciiJsonResponse(JSONResponse):
    """JSON response in ASCII, which can also carry lone surrogates."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def refuse_method(allowed: Iterable[str]) -> Response:
    named = ", ".join(sorted(allowed))
    said = f"this address answers only {named}"
    return refuse(405, "method", said, ADDRESSES, {"allow": named})


def refuse_body() -> Response:
    said = f"at most {LARGEST_BODY} bytes are accepted"
    return refuse(413, "body_too_large", said, "send less at a time")


def refuse(
    status: int, code: str, message: str, hint: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an error response in the same form as `--json` errors of the command line."""
    problem = {"code": code, "message": message, "hint": hint}
    return AsciiJsonResponse({"success": False, "error": problem}, status, headers=headers)


def parse_int(text: str, otherwise: int) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else otherwise
