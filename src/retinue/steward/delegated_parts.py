"""The parts that the lead of a run delegated, and an answer that a rule puts together from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retinue.core.contract import ROOT
from retinue.core.errors import NotFound
from retinue.core.result import Result
from retinue.core.staffing import LOCAL
from retinue.core.subagent import Subagent
from retinue.steward.app import App

BY_RULE = "rule"  # value of `answer_by`: no model wrote the answer
LONGEST_LINE = 200
LONGEST_TEXT = 2000  # characters of one part in a composed answer
MOST_PART_FILES = 20

Parts = Sequence[tuple[Subagent, Result | None]]


def describe_parts(app: App, parts: Parts) -> list[dict[str, Any]]:
    """Return for each delegated part its brief, the first line of its work and its files."""
    return [
        {
            "subagent_id": subagent.id,
            "brief": _get_brief(subagent),
            "status": result.status.value if result is not None else subagent.standing.status,
            "first_line": _find_first_line(_read_work(app, subagent, result)),
            "files": _list_files(app, subagent),
            "workspace": result.workspace if result is not None else "",
        }
        for subagent, result in _select_delegated(parts)
    ]


def compose_answer(app: App, parts: Parts) -> str:
    """Return the work of the parts below their briefs, in the order of delegation.

    Used if the lead's model cannot judge them; empty if no part has any.
    """
    found = [
        (_get_brief(subagent), _read_work(app, subagent, result))
        for subagent, result in _select_delegated(parts)
    ]
    return "\n\n".join(f"[{_find_first_line(brief)}]\n{work}" for brief, work in found if work)


def can_judge(lead: Subagent) -> bool:
    """Return whether the lead has any model besides the embedded one, which cannot judge text."""
    team = lead.contract.team
    return team is None or any(member.wire != LOCAL for member in team.members)


def _select_delegated(parts: Parts) -> list[tuple[Subagent, Result | None]]:
    return [part for part in parts if part[0].id != ROOT]


def _get_brief(subagent: Subagent) -> str:
    return subagent.contract.step.description or subagent.contract.step.title


def _read_work(app: App, subagent: Subagent, result: Result | None) -> str:
    """Return the text of the only file of a part; else its answer.

    The embedded model writes a file first and then a sentence about it. The file is the work.
    """
    files = _list_files(app, subagent)
    if len(files) == 1 and subagent.contract.team is not None and not can_judge(subagent):
        try:
            found = app.inspection.read_file(subagent, files[0])
        except NotFound:
            found = None
        text = found.data.decode("utf-8", "replace").strip() if found is not None else ""
        if text:
            return text[:LONGEST_TEXT]
    return (result.answer or "").strip()[:LONGEST_TEXT] if result is not None else ""


def _find_first_line(text: str) -> str:
    lines = (line.strip() for line in text.splitlines())
    return next(filter(None, lines), "")[:LONGEST_LINE]


def _list_files(app: App, subagent: Subagent) -> list[str]:
    found, _ = app.inspection.list_files(subagent)
    return [each.path for each in found[:MOST_PART_FILES]]
