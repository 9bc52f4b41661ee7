"""The carrier of verbs for a program that has the root open itself."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from retinue.app import App
from retinue.domain.errors import BadInput
from retinue.steward.known import KNOWN, STREAMS
from retinue.steward.params import Params
from retinue.steward.remote import given
from retinue.wire import protocol


class InProcess:
    """The root is open in this very process."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def call(self, verb: str, **params: Any) -> Any:
        known = KNOWN.get(verb)
        if known is None:
            hint = protocol.OTHER_VERSION
            raise BadInput(f"unknown verb {verb!a}", code="unknown_verb", hint=hint)
        return await known(self._app, Params(protocol.as_sent(verb, given(params))))

    def stream(self, verb: str, **params: Any) -> AsyncGenerator[Any, None]:
        return STREAMS[verb](self._app, Params(protocol.as_sent(verb, given(params))))
