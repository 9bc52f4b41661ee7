"""What a child wrote of itself, read with distrust.

Nothing here raises, whatever the bytes: a file that is no JSON object says
nothing, a value that cannot be true is dropped alone, and `problem` says in
short what was left out.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from retinue.domain.ids import MemberId, is_id
from retinue.domain.recovery import Declared, FinalDeclaration, Refusal, Testimony, TokenUsage
from retinue.domain.result import clean_text
from retinue.domain.team import Phase

MAX_MEMBERS = 64
MAX_NUMBER = 10**15
MAX_DIGITS = 30
MAX_SUMMARY_BYTES = 4096
MAX_QUESTIONS = 20
MAX_QUESTION_BYTES = 2048
MAX_NOTES = 5
MAX_NOTICES = 1000
MAX_REFUSALS = 20

_NUMBERED_LABEL = re.compile(r"agent([1-9][0-9]{0,2})(?:\.[0-9]+)?")
_CONTRADICTION = object()  # stands for a value that was given twice, differently


def parse_testimony(data: bytes) -> Testimony:
    """What status.json says of a team, without anything that cannot be true."""
    notes: list[str] = []
    document = _load(data, notes)
    coordination = _section(document, "coordination", notes)
    costs = _section(document, "costs", notes)
    results = _section(document, "results", notes)
    members = _members(_section(document, "agents", notes), notes)
    return Testimony(
        phase=_phase(coordination.get("phase"), notes),
        winner=_winner(results.get("winner"), members, notes),
        members=members,
        votes=_votes(_section(results, "votes", notes), members, _authors(document), notes),
        usage=TokenUsage(
            input_tokens=_tokens(costs, "total_input_tokens", notes),
            output_tokens=_tokens(costs, "total_output_tokens", notes),
            estimated_cost=_number(costs, "total_estimated_cost", MAX_NUMBER, notes),
        ),
        completion_percentage=_number(coordination, "completion_percentage", 100, notes),
        problem=_told("status.json", notes),
    )


def parse_notices(data: bytes) -> tuple[tuple[Refusal, ...], tuple[str, ...]]:
    """Which tools a team says it denied its members, each once, and what it had to leave out, as
    it last said so; anything else is left out.
    """
    refusals: dict[Refusal, None] = {}
    lacks: dict[str, str] = {}
    for line in data.splitlines()[:MAX_NOTICES]:
        document = _load(line, [])
        texts = [_text(document.get(key), 400) for key in ("member", "tool", "reason")]
        kind = document.get("kind")
        if kind in ("tool_denied", "delegation_denied") and all(texts):
            member, tool, reason = texts
            delegation = kind == "delegation_denied"
            refusal = Refusal(member=member, tool=tool, reason=reason, delegation=delegation)
            refusals[refusal] = None
        elif kind == "left_out":
            lacks[_text(document.get("what"), 400)] = _text(document.get("note"), 400)
    return tuple(refusals)[:MAX_REFUSALS], tuple(filter(None, lacks.values()))[:MAX_NOTES]


def parse_final(data: bytes) -> FinalDeclaration:
    """What a command declares of its own end, every text within its limit."""
    notes: list[str] = []
    document = _load(data, notes)
    status = document.get("status")
    declared = Declared(status) if isinstance(status, str) and status in set(Declared) else None
    if declared is None and not notes:
        notes.append("status is none of success, blocked, failed")
    questions = document.get("questions") or []
    if not isinstance(questions, list):
        notes.append("questions is not a list")
        questions = []
    asked = [_text(question, MAX_QUESTION_BYTES) for question in questions[: MAX_QUESTIONS * 5]]
    return FinalDeclaration(
        status=declared,
        summary=_text(document.get("summary"), MAX_SUMMARY_BYTES),
        questions=tuple(question for question in asked if question.strip())[:MAX_QUESTIONS],
        problem=_told("the final declaration", notes),
    )


def _load(data: bytes, notes: list[str]) -> dict[str, Any]:
    try:
        document = json.loads(
            data.decode("utf-8-sig"),
            object_pairs_hook=_object,
            # Both become numbers that no check accepts, so one absurd value costs only itself.
            parse_constant=lambda _: math.nan,
            parse_int=lambda digits: int(digits) if len(digits) <= MAX_DIGITS else math.inf,
        )
    except UnicodeDecodeError:
        notes.append("it is not UTF-8")
    except ValueError as error:
        notes.append(f"it is not JSON ({error})" if data.strip() else "it is empty")
    except RecursionError:
        notes.append("it is nested too deeply")
    else:
        if isinstance(document, dict):
            return document
        notes.append("it is not an object")
    return {}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The last of repeated sections; of repeated plain values that differ, neither."""
    document: dict[str, Any] = {}
    for key, value in pairs:
        plain = not isinstance(value, dict | list)
        if plain and key in document and document[key] != value:
            document[key] = _CONTRADICTION
        else:
            document[key] = value
    return document


def _section(document: dict[str, Any], name: str, notes: list[str]) -> dict[str, Any]:
    value = document.get(name)
    if isinstance(value, dict):
        return value
    if value is not None:
        notes.append(f"{name} is not an object")
    return {}


def _members(agents: dict[str, Any], notes: list[str]) -> tuple[MemberId, ...]:
    named = [MemberId(name) for name in agents if is_id(name)]
    if len(named) < len(agents):
        notes.append(f"{len(agents) - len(named)} member name(s) are not valid ids")
    if len(named) > MAX_MEMBERS:
        notes.append(f"only the first {MAX_MEMBERS} members count")
    return tuple(named[:MAX_MEMBERS])


def _phase(value: object, notes: list[str]) -> Phase | None:
    if isinstance(value, str) and value in set(Phase):
        return Phase(value)
    if value is not None:
        notes.append("coordination.phase is unknown")
    return None


def _winner(value: object, members: tuple[MemberId, ...], notes: list[str]) -> MemberId | None:
    if isinstance(value, str) and value in members:
        return MemberId(value)
    if value is not None:
        notes.append("results.winner is not a registered member")
    return None


def _authors(document: dict[str, Any]) -> dict[str, str]:
    """Answer label -> member, as the history of answers has it."""
    history = document.get("historical_workspaces")
    authors: dict[str, str] = {}
    for entry in history if isinstance(history, list) else []:
        if isinstance(entry, dict):
            label, author = entry.get("answerLabel"), entry.get("agentId")
            if isinstance(label, str) and isinstance(author, str):
                authors[label] = author
    return authors


def _votes(
    votes: dict[str, Any],
    members: tuple[MemberId, ...],
    authors: dict[str, str],
    notes: list[str],
) -> dict[MemberId, int]:
    counts: dict[MemberId, int] = {}
    for label, count in votes.items():
        member = _author(label, members, authors)
        if member is None:
            notes.append(f"votes for {label[:40]!a} are for nobody")
        elif type(count) is not int or not 0 <= count <= len(members):
            notes.append(f"votes for {label[:40]!a} are not a count of members")
        else:
            counts[member] = counts.get(member, 0) + count
    return counts


def _author(label: str, members: tuple[MemberId, ...], authors: dict[str, str]) -> MemberId | None:
    name = authors.get(label, label)
    if name in members:
        return MemberId(name)
    numbered = _NUMBERED_LABEL.fullmatch(label)
    if label in authors or numbered is None or int(numbered[1]) > len(members):
        return None
    return members[int(numbered[1]) - 1]


def _number(section: dict[str, Any], key: str, most: int, notes: list[str]) -> int | float | None:
    value = section.get(key)
    # The comparison also refuses NaN and the infinities.
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most:
        return value
    if value is not None:
        notes.append(f"{key} is not a number from 0 to {most}")
    return None


def _tokens(section: dict[str, Any], key: str, notes: list[str]) -> int | None:
    value = _number(section, key, MAX_NUMBER, notes)
    if value is not None and value != int(value):
        notes.append(f"{key} is not a whole number")
        return None
    return None if value is None else int(value)


def _text(value: object, limit: int) -> str:
    if not isinstance(value, str):
        return ""
    return clean_text(value[:limit]).encode()[:limit].decode(errors="ignore")


def _told(what: str, notes: list[str]) -> str:
    if not notes:
        return ""
    more = f", and {len(notes) - MAX_NOTES} more" if len(notes) > MAX_NOTES else ""
    return f"{what}: {', '.join(notes[:MAX_NOTES])}{more}"
