"""One call of a tool and its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from retinue.delegating import answers

TELLS = "tells"


async def _silent(seconds: float, message: str) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Request:
    """One call of a tool, and what is known of who makes it."""

    tool: str
    arguments: Mapping[str, Any]
    caller: Mapping[str, str] = field(default_factory=dict)
    report: Callable[[float, str], Awaitable[None]] = _silent
    was_cut: Callable[[], bool] = lambda: False  # the client ended the call only for its length


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a tool gives: for programs, and for reading."""

    document: dict[str, Any]
    texts: tuple[str, ...]
    begun: tuple[str, ...] = ()  # told as begun, even if it has ended since
    told: tuple[str, ...] = ()  # whose ends it tells: if it is lost, they are told again

    def warned(self, warning: str) -> Answer:
        """The same, which says this, too."""
        said = [*self.document.get("warnings", ()), warning]
        texts = (*self.texts, f"warning: {answers.line(warning)}")
        return replace(self, document=self.document | {"warnings": said}, texts=texts)


def told_by(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Of whose ends the parent had not been told before the steward answered this."""
    return tuple(document.get(TELLS, ()))


def shown(document: Mapping[str, Any]) -> dict[str, Any]:
    """What the parent is given of an answer."""
    return {key: value for key, value in document.items() if key != TELLS}
