"""Routes of the web page: pages, reads, actions and streams."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from retinue.core.errors import (
    ADVICE,
    BadInput,
    LimitExceeded,
    NotFound,
    Refused,
    RetinueError,
    StewardUnavailable,
)
from retinue.core.ids import is_id
from retinue.version import VERSION
from retinue.web.event_streams import EventStreams
from retinue.web.page_steward_connection import StewardConnection
from retinue.web.security_middleware import (
    LARGEST_BODY,
    Access,
    AsciiJsonResponse,
    parse_int,
    refuse,
    refuse_body,
    refuse_method,
)
from retinue.web.static_files import StaticFiles

STATUS: dict[type[RetinueError], int] = {
    BadInput: 400,
    NotFound: 404,
    Refused: 409,
    LimitExceeded: 429,
    StewardUnavailable: 503,
}
TASK, SUBAGENT = "/tasks/{task}", "/tasks/{task}/subagents/{subagent}"
# path below /api -> (verb, text parameters of the query, numeric parameters)
READS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "/tasks": ("look.tasks", ("text",), ("limit",)),
    "/gates": ("look.gates", (), ()),
    "/nodes": ("look.nodes", (), ()),
    "/costs": ("look.costs", ("period",), ()),
    "/requests": ("look.requests", (), ("after", "limit")),
    TASK: ("task.show", (), ()),
    f"{TASK}/overview": ("look.task", (), ()),
    f"{TASK}/lanes": ("look.lanes", ("which",), ("first", "limit")),
    f"{TASK}/plans": ("look.plans", (), ()),
    f"{TASK}/costs": ("look.costs", ("period",), ()),
    f"{TASK}/requests": ("look.requests", (), ("after", "limit")),
    f"{TASK}/page": ("look.events", (), ("after", "limit")),
    f"{TASK}/search": ("look.search", ("subagent", "text"), ("before", "limit")),
    f"{TASK}/events/{{seq}}": ("look.event", (), ()),
    SUBAGENT: ("look.subagent", (), ()),
    f"{SUBAGENT}/output": ("look.output", ("stream",), ("attempt", "bytes")),
    f"{SUBAGENT}/conversation": ("look.conversation", (), ()),
    f"{SUBAGENT}/files": ("look.files", (), ()),
    f"{SUBAGENT}/file": ("look.file", ("path",), ()),
}
# path below /api -> (verb, parameters of the body)
ACTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "/tasks": ("task.create", ("title",)),
    "/runs": ("run.begin", ("prompt", "agents")),
    "/plans": ("run.start", ("plan_text", "vars", "secrets", "apply")),
    f"{TASK}/subagents": ("subagent.spawn", ("tasks", "queue")),
    f"{TASK}/retry": ("run.retry", ()),
    f"{TASK}/apply": ("run.apply", ()),
    f"{TASK}/delete": ("task.delete", ("force",)),
    f"{TASK}/cancel": ("task.cancel", ("reason",)),
    f"{TASK}/close": ("task.close", ()),
    f"{TASK}/gates/{{gate}}/approve": ("gate.approve", ("answer",)),
    f"{TASK}/gates/{{gate}}/reject": ("gate.reject", ("reason",)),
    f"{SUBAGENT}/cancel": ("subagent.cancel", ("reason",)),
    f"{SUBAGENT}/continue": ("subagent.continue", ("message",)),
    f"{SUBAGENT}/send": ("subagent.send", ("message",)),
    f"{SUBAGENT}/integrate": ("subagent.integrate", ()),
    f"{SUBAGENT}/close": ("subagent.close", ()),
}

Endpoint = Callable[[Request], Awaitable[Response]]


class PageRoute(Route):
    """Route that refuses other methods with a JSON error."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        allowed = self.methods or set()
        way: ASGIApp = super().handle if scope["method"] in allowed else refuse_method(allowed)
        await way(scope, receive, send)


def place_root(number: int) -> str:
    """Return the prefix of the addresses of a root; the first root has none."""
    return f"/roots/{number}" if number else ""


class SiteRoutes:
    """Routes of the whole server: static files and sessions."""

    def __init__(self, access: Access, files: StaticFiles) -> None:
        self._access = access
        self._files = files

    def list_routes(self) -> list[Route]:
        return [
            PageRoute("/static/{name:path}", self._serve_static, methods=["GET"]),
            PageRoute("/enter/{key}", self._enter, methods=["GET"]),
            PageRoute("/api/enter", self._sign_in, methods=["POST"]),
        ]

    async def _serve_static(self, request: Request) -> Response:
        return self._files.answer(request.path_params["name"], request.headers)

    async def _enter(self, request: Request) -> Response:
        # A HEAD request, as a link preview sends it, must not use up the link.
        if request.method != "GET":
            return Response(status_code=405, headers={"allow": "GET"})
        session = self._access.enter(request.path_params["key"])
        if session is None:
            return HTMLResponse(self._files.render_locked(used=True), status_code=401)
        # No redirect: browsers send a SameSite=Strict cookie only from a page of this site.
        response = HTMLResponse(
            self._files.render_welcome(self._access.get_csrf_token(session) or "")
        )
        self._access.set_cookie(response, session)
        return response

    async def _sign_in(self, request: Request) -> Response:
        given = await _read_body(request)
        if isinstance(given, Response):
            return given
        session = self._access.sign_in(str(given.get("token", "")))
        if session is None:
            hint = "the token is in the file given to 'retinue ui --token-file'"
            return refuse(401, "wrong_token", "wrong token", hint)
        response = AsciiJsonResponse(
            {"success": True, "csrf": self._access.get_csrf_token(session)}
        )
        self._access.set_cookie(response, session)
        return response


class RootRoutes:
    """Routes of one root: pages, reads, actions and streams."""

    def __init__(
        self,
        links: Sequence[StewardConnection],
        number: int,
        access: Access,
        files: StaticFiles,
    ) -> None:
        """`number`: the place of this root among `links`, all of the server."""
        self._links = links
        self._link = links[number]
        self._prefix = place_root(number)
        self._access = access
        self._files = files
        self._streams = EventStreams(self._link)

    def list_routes(self) -> list[Route]:
        pages = ("/", "/costs", TASK, f"{TASK}/costs", SUBAGENT)
        reads = {
            "/session": self._serve_session,
            "/changes": self._serve_changes,
            f"{TASK}/events": self._serve_events,
            f"{SUBAGENT}/live": self._serve_live,
            **{path: self._read(*how) for path, how in READS.items()},
        }
        acts = {path: self._handle_action(*how) for path, how in ACTS.items()}
        api = f"/api{self._prefix}"
        return [
            *(PageRoute(self._prefix + path, self._serve_page, methods=["GET"]) for path in pages),
            *(PageRoute(api + path, read, methods=["GET"]) for path, read in reads.items()),
            *(PageRoute(api + path, act, methods=["POST"]) for path, act in acts.items()),
        ]

    async def _serve_page(self, request: Request) -> Response:
        if not all(map(is_id, request.path_params.values())):
            return HTMLResponse(self._files.missing, status_code=404)
        return HTMLResponse(self._files.shell)

    async def _serve_session(self, request: Request) -> Response:
        return AsciiJsonResponse(
            {
                "csrf": self._access.get_csrf_token(request.scope["retinue.session"]),
                "root": str(self._link.root),
                "roots": [
                    {"root": str(link.root), "prefix": place_root(number)}
                    for number, link in enumerate(self._links)
                ],
                "version": VERSION,
                "acts": sorted(verb for verb, _ in ACTS.values()),
                "advice": ADVICE,
            }
        )

    async def _serve_events(self, request: Request) -> Response:
        # A browser that reconnects sends the id of the last event it received.
        asked = [request.headers.get("last-event-id", ""), request.query_params.get("since", "")]
        after = max(parse_int(text, 0) for text in asked)
        task = request.path_params["task"]
        return await _to_response(
            self._streams.stream_task(task, after=after, start=_can_start_steward(request))
        )

    async def _serve_changes(self, request: Request) -> Response:
        return await _to_response(self._streams.stream_root(start=_can_start_steward(request)))

    async def _serve_live(self, request: Request) -> Response:
        names = (request.path_params["task"], request.path_params["subagent"])
        return await _to_response(
            self._streams.stream_subagent(*names, start=_can_start_steward(request))
        )

    def _read(self, verb: str, texts: tuple[str, ...], numbers: tuple[str, ...]) -> Endpoint:
        async def handle_read(request: Request) -> Response:
            params: dict[str, Any] = dict(request.path_params)
            query = request.query_params
            params |= {name: query[name] for name in texts if name in query}
            params |= {name: _parse_number(query[name]) for name in numbers if name in query}
            if "seq" in params:
                params["seq"] = _parse_number(params["seq"])
            if verb == "look.search":
                params["kinds"] = query.getlist("kind")
            return await _to_response(self._answer(verb, params, _can_start_steward(request)))

        return handle_read

    def _handle_action(self, verb: str, words: tuple[str, ...]) -> Endpoint:
        async def handle_action(request: Request) -> Response:
            given = await _read_body(request)
            if isinstance(given, Response):
                return given
            unknown = [name for name in given if name not in words]
            if unknown:
                hint = f"known: {', '.join(words)}" if words else "send {}"
                said = f"{unknown[0][:40]!a} is not expected"
                return refuse(400, "invalid_request", said, hint)
            return await _to_response(
                self._answer(verb, {**given, **request.path_params, "by": "user"})
            )

        return handle_action

    async def _answer(self, verb: str, params: Mapping[str, Any], start: bool = True) -> Response:
        return AsciiJsonResponse(await self._link.call(verb, start=start, **params))


async def _to_response(answer: Awaitable[Response]) -> Response:
    """Return the answer, or the steward's error as a response."""
    try:
        return await answer
    except RetinueError as error:
        status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)
        if error.code == "internal":
            return refuse(500, error.code, "the steward failed", "see steward.log in the root")
        return refuse(status, error.code, error.message, error.hint)


async def _read_body(request: Request) -> dict[str, Any] | Response:
    """Return the JSON object of the body, or the response that refuses it."""
    data = bytearray()
    try:
        async for chunk in request.stream():
            data += chunk
            # Checked while reading: the declared length may be missing or wrong.
            if len(data) > LARGEST_BODY:
                return refuse_body()
    except ClientDisconnect:
        return refuse(400, "invalid_request", "the request was not finished", "send it again")
    try:
        document = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        return refuse(400, "invalid_request", "a JSON object is expected", "send {} at least")
    return document


def _parse_number(text: str) -> int | str:
    """Return the number, or the text itself, which the steward then refuses."""
    number = parse_int(text, -1)
    return text if number < 0 else number


def _can_start_steward(request: Request) -> bool:
    """Return whether the request may start a steward; automatic polling may not."""
    return "quiet" not in request.query_params
