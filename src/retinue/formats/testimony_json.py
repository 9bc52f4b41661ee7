"""Parsers of the files that a child writes about itself: status, notices, final declaration, turns.

The bytes are untrusted and no parser raises. A file that is not a JSON object counts as
empty, an impossible value is dropped alone, and `problem` summarizes what was dropped.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from retinue.core.conversation import Call, Turn
from retinue.core.ids import MemberId, is_id
from retinue.core.result import (
    AgentNotice,
    AgentSession,
    Declared,
    FinalDeclaration,
    Refusal,
    Testimony,
    TokenUsage,
)
from retinue.core.safe_text import clean_text
from retinue.core.voting import Phase
from retinue.formats.json_text import parse_strict_json

# Bounds on what a child can make the steward store and show.
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
_CONTRADICTION = object()  # replaces a value whose key appears twice with different values


def parse_testimony(data: bytes) -> Testimony:
    """Parse status.json; impossible values are dropped and noted in `problem`."""
    notes: list[str] = []
    document = _load(data, notes)
    coordination = _get_section(document, "coordination", notes)
    costs = _get_section(document, "costs", notes)
    results = _get_section(document, "results", notes)
    members = _parse_members(_get_section(document, "agents", notes), notes)
    return Testimony(
        phase=_parse_phase(coordination.get("phase"), notes),
        winner=_parse_winner(results.get("winner"), members, notes),
        members=members,
        votes=_parse_votes(
            _get_section(results, "votes", notes), members, _map_authors(document), notes
        ),
        usage=TokenUsage(
            input_tokens=_parse_tokens(costs, "total_input_tokens", notes),
            output_tokens=_parse_tokens(costs, "total_output_tokens", notes),
            estimated_cost=_parse_number(costs, "total_estimated_cost", MAX_NUMBER, notes),
        ),
        completion_percentage=_parse_number(coordination, "completion_percentage", 100, notes),
        sessions=_parse_sessions(_get_section(document, "agents", notes), members),
        problem=_summarize_problems("status.json", notes),
    )


def _parse_sessions(
    agents: Mapping[str, Any], members: Sequence[MemberId]
) -> dict[MemberId, AgentSession]:
    """Return the session of each member that is a coding agent."""
    found: dict[MemberId, AgentSession] = {}
    for member in members:
        entry = agents.get(member)
        if not isinstance(entry, dict):
            continue
        told = entry.get("agent")
        if isinstance(told, dict) and told.get("resumed") in ("fresh", "native", "transcript"):
            session = _parse_text(told.get("session"), 200)
            doing = _parse_text(entry.get("doing"), 200)
            found[member] = AgentSession(session=session, resumed=told["resumed"], doing=doing)
    return found


# Kinds of notices on coding agents, and the facts of each.
AGENT_NOTICES = {
    "agent_session": ("agent", "version", "session", "resumed"),
    "agent_steered": ("how",),
    "agent_permission": ("tool", "answer"),
    "agent_warning": ("code", "text"),
}


def parse_notices(
    data: bytes,
) -> tuple[tuple[Refusal, ...], tuple[str, ...], tuple[AgentNotice, ...]]:
    """Return the distinct tool denials that a team reported, its latest notes on omissions, and
    its notices on coding agents.

    Lines of any other kind are ignored.
    """
    refusals: dict[Refusal, None] = {}
    lacks: dict[str, str] = {}
    agents: dict[AgentNotice, None] = {}
    for line in data.splitlines()[:MAX_NOTICES]:
        document = _load(line, [])
        texts = [_parse_text(document.get(key), 400) for key in ("member", "tool", "reason")]
        kind = _parse_text(document.get("kind"), 40)
        if kind in ("tool_denied", "delegation_denied") and all(texts):
            member, tool, reason = texts
            delegation = kind == "delegation_denied"
            refusal = Refusal(member=member, tool=tool, reason=reason, delegation=delegation)
            refusals[refusal] = None
        elif kind == "left_out":
            lacks[_parse_text(document.get("what"), 400)] = _parse_text(document.get("note"), 400)
        elif kind in AGENT_NOTICES:
            facts = [(name, _parse_text(document.get(name), 400)) for name in AGENT_NOTICES[kind]]
            member = _parse_text(document.get("member"), 400)
            agents[AgentNotice(kind=kind, member=member, facts=tuple(facts))] = None
    notes = tuple(filter(None, lacks.values()))[:MAX_NOTES]
    return tuple(refusals)[:MAX_REFUSALS], notes, tuple(agents)[:MAX_REFUSALS]


def parse_final(data: bytes) -> FinalDeclaration:
    """Parse a command's declaration of its own end; texts are cut at their limits."""
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
    # Look at a bounded number of items: a child could list millions of blank ones.
    asked = [
        _parse_text(question, MAX_QUESTION_BYTES) for question in questions[: MAX_QUESTIONS * 5]
    ]
    return FinalDeclaration(
        status=declared,
        summary=_parse_text(document.get("summary"), MAX_SUMMARY_BYTES),
        questions=tuple(question for question in asked if question.strip())[:MAX_QUESTIONS],
        problem=_summarize_problems("the final declaration", notes),
    )


def _load(data: bytes, notes: list[str]) -> dict[str, Any]:
    try:
        document = json.loads(
            data.decode("utf-8-sig"),
            object_pairs_hook=_merge_pairs,
            # NaN, infinities and huge integers become numbers that no check accepts, so one absurd
            # value does not invalidate the document.
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


def _merge_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Keep the last of repeated sections; drop plain values that differ."""
    document: dict[str, Any] = {}
    for key, value in pairs:
        plain = not isinstance(value, dict | list)
        if plain and key in document and document[key] != value:
            document[key] = _CONTRADICTION
        else:
            document[key] = value
    return document


def _get_section(document: dict[str, Any], name: str, notes: list[str]) -> dict[str, Any]:
    value = document.get(name)
    if isinstance(value, dict):
        return value
    if value is not None:
        notes.append(f"{name} is not an object")
    return {}


def _parse_members(agents: dict[str, Any], notes: list[str]) -> tuple[MemberId, ...]:
    named = [MemberId(name) for name in agents if is_id(name)]
    if len(named) < len(agents):
        notes.append(f"{len(agents) - len(named)} member name(s) are not valid ids")
    if len(named) > MAX_MEMBERS:
        notes.append(f"only the first {MAX_MEMBERS} members count")
    return tuple(named[:MAX_MEMBERS])


def _parse_phase(value: object, notes: list[str]) -> Phase | None:
    if isinstance(value, str) and value in set(Phase):
        return Phase(value)
    if value is not None:
        notes.append("coordination.phase is unknown")
    return None


def _parse_winner(
    value: object, members: tuple[MemberId, ...], notes: list[str]
) -> MemberId | None:
    if isinstance(value, str) and value in members:
        return MemberId(value)
    if value is not None:
        notes.append("results.winner is not a registered member")
    return None


def _map_authors(document: dict[str, Any]) -> dict[str, str]:
    """Return answer label -> member, from the history of answers."""
    history = document.get("historical_workspaces")
    authors: dict[str, str] = {}
    for entry in history if isinstance(history, list) else []:
        if isinstance(entry, dict):
            label = entry.get("answerLabel")
            author = entry.get("agentId")
            if isinstance(label, str) and isinstance(author, str):
                authors[label] = author
    return authors


def _parse_votes(
    votes: dict[str, Any],
    members: tuple[MemberId, ...],
    authors: dict[str, str],
    notes: list[str],
) -> dict[MemberId, int]:
    counts: dict[MemberId, int] = {}
    for label, count in votes.items():
        member = _find_author(label, members, authors)
        if member is None:
            notes.append(f"votes for {label[:40]!a} are for no member")
        elif type(count) is not int or not 0 <= count <= len(members):
            notes.append(f"votes for {label[:40]!a} are not a count of members")
        else:
            counts[member] = counts.get(member, 0) + count
    return counts


def _find_author(
    label: str, members: tuple[MemberId, ...], authors: dict[str, str]
) -> MemberId | None:
    name = authors.get(label, label)
    if name in members:
        return MemberId(name)
    # A label such as agent2.1 names the second member, unless the history assigns it otherwise.
    numbered = _NUMBERED_LABEL.fullmatch(label)
    if label in authors or numbered is None or int(numbered[1]) > len(members):
        return None
    return members[int(numbered[1]) - 1]


def _parse_number(
    section: dict[str, Any], key: str, most: int, notes: list[str]
) -> int | float | None:
    value = section.get(key)
    # The comparison is also false for NaN and infinities.
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most:
        return value
    if value is not None:
        notes.append(f"{key} is not a number from 0 to {most}")
    return None


def _parse_tokens(section: dict[str, Any], key: str, notes: list[str]) -> int | None:
    value = _parse_number(section, key, MAX_NUMBER, notes)
    if value is not None and value != int(value):
        notes.append(f"{key} is not a whole number")
        return None
    return None if value is None else int(value)


def _parse_text(value: object, limit: int) -> str:
    if not isinstance(value, str):
        return ""
    # `limit` counts bytes. "ignore" drops a character that the cut splits.
    return clean_text(value[:limit]).encode()[:limit].decode(errors="ignore")


def _summarize_problems(what: str, notes: list[str]) -> str:
    if not notes:
        return ""
    more = f", and {len(notes) - MAX_NOTES} more" if len(notes) > MAX_NOTES else ""
    return f"{what}: {', '.join(notes[:MAX_NOTES])}{more}"


ROLES = ("system", "user", "assistant", "tool")


def turn_to_json(member: str, turn: Turn, at: str) -> dict[str, Any]:
    document: dict[str, Any] = {"at": at, "member": member, "role": turn.role, "content": turn.text}
    if turn.calls:
        document["calls"] = [_call_to_json(call) for call in turn.calls]
    if turn.call is not None:
        document["call"] = _call_to_json(turn.call)
    return document


def entry_from_line(line: bytes) -> dict[str, Any] | None:
    """Return a turn as strict JSON data; None if the line is not a JSON object."""
    try:
        entry = parse_strict_json(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def turns_from_text(text: str, member: str) -> list[Turn]:
    """Return the turns of one member; other lines are ignored."""
    found = (_parse_turn(line, member) for line in text.splitlines())
    return [turn for turn in found if turn is not None]


def _parse_turn(line: str, member: str) -> Turn | None:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or document.get("member") != member:
        return None
    role = document.get("role")
    text = document.get("content")
    if role not in ROLES or not isinstance(text, str):
        return None
    calls = document.get("calls")
    return Turn(
        role=role,
        text=text,
        calls=tuple(filter(None, map(_parse_call, calls if isinstance(calls, list) else []))),
        call=_parse_call(document.get("call")),
    )


def _call_to_json(call: Call) -> dict[str, Any]:
    return {"id": call.id, "tool": call.tool, "arguments": dict(call.arguments)}


def _parse_call(document: Any) -> Call | None:
    if not isinstance(document, dict):
        return None
    name = document.get("id")
    tool = document.get("tool")
    arguments = document.get("arguments")
    if not isinstance(name, str) or not isinstance(tool, str) or not isinstance(arguments, dict):
        return None
    return Call(id=name, tool=tool, arguments=arguments)
