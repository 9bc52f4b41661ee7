"""Security checks for every request, and security headers for every response."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retinue.web.page_access import Access, parse_cookies

LONGEST_TARGET = 8 * 1024
LONGEST_HEADERS = 16 * 1024
MOST_HEADERS = 100
LARGEST_BODY = 256 * 1024
METHODS = ("GET", "HEAD", "POST")
# Paths without a session; they show nothing of a task
OPEN_PATHS = ("/static/", "/enter/")
SIGN_IN = "/api/enter"
WORD = "x-csrf-token"
# For streams: a browser's EventSource cannot send headers
WORD_IN_QUERY = "csrf"
STREAMS = ("/api/changes", "/events", "/live")
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
        return self._refuse_stranger(scope, headers) or self._is_cross_origin(scope, headers)

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

    def _is_cross_origin(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the refusal of a request from another page or without a CSRF token."""
        path = scope["path"]
        posted = scope["method"] == "POST"
        origin = headers.get("origin")
        host = headers["host"]
        from_here = headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
        if origin is not None and not self._access.is_origin(origin, host):
            return refuse(403, "foreign_origin", "the request comes from another page", FROM_HERE)
        if path.startswith("/api/") and not from_here:
            return refuse(403, "foreign_origin", "the request comes from another page", FROM_HERE)
        if path.startswith("/api/") and path != SIGN_IN and not self._has_word(scope, headers):
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

    def _has_word(self, scope: Scope, headers: Headers) -> bool:
        given = headers.get(WORD, "")
        if not given and scope["method"] == "GET" and scope["path"].endswith(STREAMS):
            given = QueryParams(scope["query_string"]).get(WORD_IN_QUERY, "")
        return self._access.is_word_of(scope["retinue.session"], given)


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
