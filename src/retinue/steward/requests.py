"""Calls to spawn, as they were sent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from retinue.app import App
from retinue.domain.contract import Caller
from retinue.domain.errors import BadInput
from retinue.domain.subagent import Subagent
from retinue.service import Request
from retinue.steward.params import Params, folder_of
from retinue.steward.telling import Parent
from retinue.wire.brief import parse_briefs, request_sha256

MAX_NAME = 200


def request_of(
    app: App, params: Params, *, by: str, background: bool, child: Subagent | None = None
) -> Request:
    """What every call says: the work, where from, and the key by which it can be repeated.

    Args:
        child: who delegates; whatever it says, it does so from its own workspace.
    """
    briefs, key = parse_briefs(params.raw("tasks")), params.text("key", "")
    if child is None:
        base = folder_of(params.text("cwd", str(app.settings.project)))
    else:
        params.raw("cwd")
        base = app.workspaces.workspace_of(child)
    return Request(
        briefs=briefs,
        base=base,
        by=by,
        parent=child,
        key=key,
        sha256=request_sha256(briefs) if key else "",
        background=background,
    )


def request_of_parent(app: App, parent: Parent, params: Params, *, background: bool) -> Request:
    """The same of a parent: with the same ids it gets the same subagents, not new ones."""
    request = request_of(app, params, by=parent.by, background=background, child=parent.child)
    caller = params.raw("caller")
    if parent.child is None:
        return replace(request, again=True, caller=_caller(caller))
    return replace(request, again=True, member=parent.member, queue=params.flag("queue"))


def _caller(given: Any) -> Caller | None:
    """Who asks, as the program said it: words of strangers, kept short."""
    if given is None:
        return None
    if not isinstance(given, dict) or not all(isinstance(each, str) for each in given.values()):
        raise BadInput("caller must be an object of texts", code="invalid_request")
    names = ("client", "session", "call", "trace")
    known = {name: given.get(name, "")[:MAX_NAME] for name in names}
    return Caller(**known) if any(known.values()) else None
