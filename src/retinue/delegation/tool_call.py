"""Values for one tool call and its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from retinue.delegation import answer_text

# Key in the steward's answers: the subagents whose results it delivers. Not shown to parents.
TELLS = "tells"


async def _ignore_progress(seconds: float, message: str) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Request:
    """One tool call, with what the client says about the caller."""

    tool: str
    arguments: Mapping[str, Any]
    caller: Mapping[str, str] = field(default_factory=dict)
    report: Callable[[float, str], Awaitable[None]] = _ignore_progress
    was_cut: Callable[[], bool] = lambda: False  # whether the client's call timeout ended it


@dataclass(frozen=True, kw_only=True)
class ToolAnswer:
    """Answer of a tool: a document for programs and texts for the model."""

    document: dict[str, Any]
    texts: tuple[str, ...]
    begun: tuple[str, ...] = ()  # subagents reported as started, even if they ended since
    begun_in: str = ""  # the task that these are in, if it is known
    told: tuple[str, ...] = ()  # subagents whose results it delivers; again if it is lost

    def add_warning(self, warning: str) -> ToolAnswer:
        """Return a copy with one more warning."""
        said = [*self.document.get("warnings", ()), warning]
        texts = (*self.texts, f"warning: {answer_text.quote_on_one_line(warning)}")
        return replace(self, document=self.document | {"warnings": said}, texts=texts)


def list_delivered(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the subagents whose results this answer of the steward delivers first."""
    return tuple(document.get(TELLS, ()))


def to_parent_view(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the steward's answer without its internal keys."""
    return {key: value for key, value in document.items() if key != TELLS}
