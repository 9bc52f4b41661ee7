"""The short way for what is asked all the time: these words need no parser.

A parent polls. Loading a parser for a line that holds a verb and two names would take longer
than everything else together, so such lines go past it; every other line, and every mistake,
goes to the commands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from retinue.domain.ids import is_id
from retinue.doors.cli import views
from retinue.doors.cli.session import Session

# words -> (verb, the names that follow, how people see the answer)
QUICK: dict[tuple[str, str], tuple[str, tuple[str, ...], Callable[[Any], str]]] = {
    ("task", "list"): ("task.list", (), views.tasks),
    ("task", "show"): ("task.show", ("task",), views.task),
    ("subagent", "list"): ("subagent.list", ("task",), views.subagents),
    ("subagent", "show"): ("subagent.show", ("task", "subagent"), views.subagent),
    ("subagent", "result"): ("subagent.result", ("task", "subagent"), views.result),
}


def quick(words: list[str], session: Session) -> int | None:
    """The exit code of a line that went the short way; None for all others."""
    root, as_json, rest = _common(words)
    known = QUICK.get((rest[0], rest[1])) if len(rest) > 1 else None
    if known is None or root == "":
        return None
    verb, names, view = known
    values = rest[2:]
    if len(values) != len(names) or not all(map(is_id, values)):
        return None
    session.root, session.json = root, as_json
    ask = session.call if names else session.listed
    session.answer(ask(verb, **dict(zip(names, values, strict=True))), view)
    return 0


def _common(words: list[str]) -> tuple[str | None, bool, list[str]]:
    """The two options that stand anywhere, and the words without them."""
    root, as_json, rest = None, False, []
    left = iter(words)
    for word in left:
        if word == "--json":
            as_json = True
        elif word == "--root":
            root = next(left, "")
        elif word.startswith("--root="):
            root = word.removeprefix("--root=")
        else:
            rest.append(word)
    return root, as_json, rest
