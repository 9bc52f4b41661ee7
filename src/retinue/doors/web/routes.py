"""The addresses of the page: what it shows, what it asks for, what it can do."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from retinue.domain.advice import ADVICE
from retinue.domain.errors import (
    BadInput,
    LimitExceeded,
    NotFound,
    Refused,
    RetinueError,
    StewardUnavailable,
)
from retinue.domain.ids import is_id
from retinue.doors.web.access import Access
from retinue.doors.web.files import Files
from retinue.doors.web.guard import (
    LARGEST_BODY,
    Told,
    int_or,
    refuse,
    refuse_body,
    refuse_method,
)
from retinue.doors.web.link import Link
from retinue.doors.web.streams import Streams
from retinue.version import VERSION

STATUS: dict[type[RetinueError], int] = {
    BadInput: 400,
    NotFound: 404,
    Refused: 409,
    LimitExceeded: 429,
    StewardUnavailable: 503,
}
TASK, SUBAGENT = "/tasks/{task}", "/tasks/{task}/subagents/{subagent}"
# address -> (verb, texts that may be asked with, numbers likewise)
READS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "/api/tasks": ("look.tasks", (), ("limit",)),
    f"/api{TASK}": ("task.show", (), ()),
    f"/api{TASK}/overview": ("look.task", (), ()),
    f"/api{TASK}/lanes": ("look.lanes", ("which",), ("first", "limit")),
    f"/api{TASK}/page": ("look.events", (), ("after", "limit")),
    f"/api{TASK}/search": ("look.search", ("subagent", "text"), ("before", "limit")),
    f"/api{TASK}/events/{{seq}}": ("look.event", (), ()),
    f"/api{SUBAGENT}": ("look.subagent", (), ()),
    f"/api{SUBAGENT}/output": ("look.output", ("stream",), ("attempt", "bytes")),
    f"/api{SUBAGENT}/conversation": ("look.conversation", (), ()),
    f"/api{SUBAGENT}/files": ("look.files", (), ()),
    f"/api{SUBAGENT}/file": ("look.file", ("path",), ()),
}
# address -> (verb, what may be said with it)
ACTS: dict[str, tuple[str, tuple[str, ...]]] = {
    f"/api{TASK}/cancel": ("task.cancel", ("reason",)),
    f"/api{TASK}/close": ("task.close", ()),
    f"/api{TASK}/gates/{{gate}}/approve": ("gate.approve", ("answer",)),
    f"/api{TASK}/gates/{{gate}}/reject": ("gate.reject", ("reason",)),
    f"/api{SUBAGENT}/cancel": ("subagent.cancel", ("reason",)),
    f"/api{SUBAGENT}/continue": ("subagent.continue", ("message",)),
    f"/api{SUBAGENT}/send": ("subagent.send", ("message",)),
    f"/api{SUBAGENT}/integrate": ("subagent.integrate", ()),
    f"/api{SUBAGENT}/close": ("subagent.close", ()),
}

Endpoint = Callable[[Request], Awaitable[Response]]


class Place(Route):
    """A route that refuses other methods in the words of all refusals."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        allowed = self.methods or set()
        way: ASGIApp = super().handle if scope["method"] in allowed else refuse_method(allowed)
        await way(scope, receive, send)


class Routes:
    def __init__(self, link: Link, access: Access, files: Files) -> None:
        self._link = link
        self._access = access
        self._files = files
        self._streams = Streams(link)

    def all(self) -> list[Route]:
        pages = [Place(path, self._page, methods=["GET"]) for path in ("/", TASK, SUBAGENT)]
        reads = [Place(path, self._read(*how), methods=["GET"]) for path, how in READS.items()]
        acts = [Place(path, self._act(*how), methods=["POST"]) for path, how in ACTS.items()]
        return [
            *pages,
            Place("/static/{name:path}", self._static, methods=["GET"]),
            Place("/enter/{key}", self._enter, methods=["GET"]),
            Place("/api/enter", self._sign_in, methods=["POST"]),
            Place("/api/session", self._session, methods=["GET"]),
            Place("/api/changes", self._changes, methods=["GET"]),
            Place(f"/api{TASK}/events", self._events, methods=["GET"]),
            Place(f"/api{SUBAGENT}/live", self._live, methods=["GET"]),
            *reads,
            *acts,
        ]

    async def _page(self, request: Request) -> Response:
        if not all(map(is_id, request.path_params.values())):
            return HTMLResponse(self._files.missing, status_code=404)
        return HTMLResponse(self._files.shell)

    async def _static(self, request: Request) -> Response:
        return self._files.answer(request.path_params["name"], request.headers)

    async def _enter(self, request: Request) -> Response:
        if request.method != "GET":  # looking ahead does not use the link up
            return Response(status_code=405, headers={"allow": "GET"})
        session = self._access.enter(request.path_params["key"])
        if session is None:
            return HTMLResponse(self._files.locked(used=True), status_code=401)
        # Not a redirection: a strict cookie is sent only by a page that is already ours.
        response = HTMLResponse(self._files.welcome)
        self._give(response, session)
        return response

    async def _sign_in(self, request: Request) -> Response:
        given = await _body(request)
        if isinstance(given, Response):
            return given
        session = self._access.sign_in(str(given.get("token", "")))
        if session is None:
            hint = "it is in the file that 'retinue ui --token-file' named"
            return refuse(401, "wrong_token", "that is not the token", hint)
        response = Told({"success": True})
        self._give(response, session)
        return response

    async def _session(self, request: Request) -> Response:
        return Told(
            {
                "csrf": self._access.word_of(request.scope["retinue.session"]),
                "root": str(self._link.root),
                "version": VERSION,
                "acts": sorted(verb for verb, _ in ACTS.values()),
                "advice": ADVICE,
            }
        )

    async def _events(self, request: Request) -> Response:
        asked = [request.headers.get("last-event-id", ""), request.query_params.get("since", "")]
        after = max(int_or(text, 0) for text in asked)
        task = request.path_params["task"]
        return await _told(self._streams.of_task(task, after=after, start=_may_start(request)))

    async def _changes(self, request: Request) -> Response:
        return await _told(self._streams.of_root(start=_may_start(request)))

    async def _live(self, request: Request) -> Response:
        names = (request.path_params["task"], request.path_params["subagent"])
        return await _told(self._streams.of_subagent(*names, start=_may_start(request)))

    def _read(self, verb: str, texts: tuple[str, ...], numbers: tuple[str, ...]) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            params: dict[str, Any] = dict(request.path_params)
            query = request.query_params
            params |= {name: query[name] for name in texts if name in query}
            params |= {name: _number(query[name]) for name in numbers if name in query}
            if "seq" in params:
                params["seq"] = _number(params["seq"])
            if verb == "look.search":
                params["kinds"] = query.getlist("kind")
            return await _told(self._answer(verb, params, _may_start(request)))

        return endpoint

    def _act(self, verb: str, words: tuple[str, ...]) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            given = await _body(request)
            if isinstance(given, Response):
                return given
            unknown = [name for name in given if name not in words]
            if unknown:
                hint = f"known: {', '.join(words)}" if words else "send {}"
                said = f"{unknown[0][:40]!a} is not expected"
                return refuse(400, "invalid_request", said, hint)
            return await _told(self._answer(verb, {**given, **request.path_params, "by": "user"}))

        return endpoint

    async def _answer(self, verb: str, params: Mapping[str, Any], start: bool = True) -> Response:
        return Told(await self._link.call(verb, start=start, **params))

    def _give(self, response: Response, session: str) -> None:
        response.set_cookie(self._access.cookie, session, httponly=True, samesite="strict")


async def _told(answer: Awaitable[Response]) -> Response:
    """The answer, or what the steward refused in the words of the command line."""
    try:
        return await answer
    except RetinueError as error:
        status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)
        if error.code == "internal":
            return refuse(500, error.code, "the steward failed", "its log has more")
        return refuse(status, error.code, error.message, error.hint)


async def _body(request: Request) -> dict[str, Any] | Response:
    """The object that was sent; it ends as soon as it is too large."""
    data = bytearray()
    try:
        async for chunk in request.stream():
            data += chunk
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


def _number(text: str) -> int | str:
    """What it says; where that is no number, the text itself, by which it is refused."""
    number = int_or(text, -1)
    return text if number < 0 else number


def _may_start(request: Request) -> bool:
    """A page that asks by itself does so quietly: it starts no steward that somebody stopped."""
    return "quiet" not in request.query_params
