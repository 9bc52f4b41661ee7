"""What every request passes first, and what every answer carries."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retinue.doors.web.access import Access, cookies

LONGEST_TARGET = 8 * 1024
LONGEST_HEADERS = 16 * 1024
MOST_HEADERS = 100
LARGEST_BODY = 256 * 1024
METHODS = ("GET", "HEAD", "POST")
OPEN_PATHS = ("/static/", "/enter/")  # nothing of a task is behind these
SIGN_IN = "/api/enter"
WORD = "x-csrf-token"
SHORTER = "ask for less at a time"
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


class Guard:
    """Middleware: a request reaches the routes only from this server's own page."""

    def __init__(self, app: ASGIApp, access: Access, locked: str) -> None:
        self._app = app
        self._access = access
        self._locked = locked  # the page for whoever has no session

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

        answer = self._refusal(scope) or self._app
        await answer(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
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
        return self._stranger(scope, headers) or self._speaks_for_another(scope, headers)

    def _stranger(self, scope: Scope, headers: Headers) -> Response | None:
        path = scope["path"]
        session = cookies(headers.get("cookie", "")).get(self._access.cookie, "")
        scope["retinue.session"] = session
        if self._access.word_of(session) or path.startswith(OPEN_PATHS) or path == SIGN_IN:
            return None
        if path.startswith("/api/"):
            hint = "open the link that 'retinue ui' printed"
            return refuse(401, "no_session", "this browser has no session here", hint)
        return HTMLResponse(self._locked, status_code=401)

    def _speaks_for_another(self, scope: Scope, headers: Headers) -> Response | None:
        """What a page of another origin, or of no origin, may not do."""
        path, posted = scope["path"], scope["method"] == "POST"
        origin, host = headers.get("origin"), headers["host"]
        from_here = headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
        if origin is not None and not self._access.is_origin(origin, host):
            return refuse(403, "foreign_origin", "the request comes from another page", FROM_HERE)
        if path.startswith("/api/") and not from_here:
            return refuse(403, "foreign_origin", "the request comes from another page", FROM_HERE)
        if not posted:
            return None
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            hint = "send JSON, and 'Content-Type: application/json'"
            return refuse(415, "content_type", "only application/json is accepted", hint)
        if origin is None:
            said = "the request does not say where it comes from"
            return refuse(403, "foreign_origin", said, "send this server's address as Origin")
        if path != SIGN_IN and headers.get(WORD) != self._access.word_of(scope["retinue.session"]):
            hint = f"send what /api/session calls csrf as {WORD}"
            return refuse(403, "no_word", "the request lacks its session's word", hint)
        if int_or(headers.get("content-length", "0"), LARGEST_BODY + 1) > LARGEST_BODY:
            return refuse_body()
        return None


class Told(JSONResponse):
    """JSON in ASCII: it can be sent whatever is in it, half a character too."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def refuse_method(allowed: Iterable[str]) -> Response:
    named = ", ".join(sorted(allowed))
    said = f"this address answers only {named}"
    return refuse(405, "method", said, "docs/reference/page.md has the addresses", {"allow": named})


def refuse_body() -> Response:
    said = f"at most {LARGEST_BODY} bytes are accepted"
    return refuse(413, "body_too_large", said, "send less at a time")


def refuse(
    status: int, code: str, message: str, hint: str, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer in the shape that the command line has for errors."""
    problem = {"code": code, "message": message, "hint": hint}
    return Told({"success": False, "error": problem}, status, headers=headers)


def int_or(text: str, otherwise: int) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else otherwise
