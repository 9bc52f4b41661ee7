"""The roster inside task.yaml, edited line by line so that what people wrote stays."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from retinue.domain.errors import BadInput
from retinue.store.pieces import end_of_entries
from retinue.wire.yaml import Limits, dump_yaml, load_yaml, quoted

LARGE = Limits(size_bytes=64 * 1024 * 1024, values=10_000_000)
FEW = 16
OUR_DASH = "  - "

_TOP = re.compile(
    r"""(?P<key>["']?roster["']?[ ]*:)(?:[ ]+(?:\[[ ]*\]|null|~))?(?P<after>[ ]*(?:[ ]\#.*)?\r?)""",
    re.VERBOSE,
)
_VALUE = re.compile(
    r"""(?P<before>[^:]*:)(?P<gap>[ ]*)
    (?P<old>"(?:[^"\\]|\\.)*" | '(?:[^']|'')*' | [^\s"'\#|>&*!%@`\[\]{},](?:[^\#]|(?<=\S)\#)*? |)
    (?P<after>[ ]*(?:[ ]\#.*)?\r?)""",
    re.VERBOSE,
)
_OURS = re.compile(r'instance: "([^"\\\n]+)"\n +agent: [^\n]*\n( +)(state: [^\n]*)')
_IDLE = re.compile(r"(?:\n[ ]*(?:\#[^\n]*|\r)?(?=\n|$))*")
_DASH = re.compile(r"\n( *)- +(?=\S)")
_PLAIN = re.compile(r"(?!(?:null|true|false|yes|no|on|off|y|n)$)[a-z][a-z_]*")


@dataclass(frozen=True, kw_only=True)
class RosterEntry:
    """One subagent, as a person sees it in task.yaml."""

    instance: str
    agent: str
    state: str
    skills: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Edited:
    """A roster with other states in it."""

    text: str
    lost: bool = False  # entries beyond the given ones, because the roster could not be read
    ours: bool = False  # every entry is written as we write them


@dataclass
class _Shape:
    """Where things stand in a roster that is written as a list of blocks."""

    end: int  # where the next entry goes
    wanted: Collection[str] = ()  # whose states are looked for; a roster can be long
    states: dict[str, tuple[int, int]] = field(default_factory=dict)  # `state: …` by instance
    seen: set[str] | None = None  # all of them; None where nobody is known to stand twice
    empty: bool = True
    ours: bool = True
    dash: int = 2
    key: int = 4

    def keep(self, instance: str, start: int, stop: int) -> bool:
        """Whether this is one more entry, and not a nameless or second one."""
        self.empty = False
        if self.seen is not None:
            if instance in self.seen:
                return False
            self.seen.add(instance)
        if instance in self.wanted:
            self.states[instance] = (start, stop)
        return bool(instance)


def edit_roster(block: str, entries: Sequence[RosterEntry], *, ours: bool = False) -> Edited:
    """The block with these entries' states in it, new ones at its end, all else untouched.

    Args:
        ours: the block is known to be as we write it; then few entries are found without
            reading all.
    """
    if not entries:
        return Edited(text=block, ours=ours)
    wanted = {each.instance: each for each in entries}
    if not block:
        text = "roster:\n" + _entries_text([*wanted.values()], _Shape(0), "\n")
        return Edited(text=text, ours=True)
    few = ours and len(wanted) <= FEW
    shape = (few and _shape_of_ours(block, wanted)) or _shape(block, wanted, ours=ours)
    if shape is None:
        return _rebuild(block, entries)
    edits: list[tuple[int, int, str]] = []
    fresh: list[RosterEntry] = []
    for entry in wanted.values():
        span = shape.states.get(entry.instance)
        if span is None:
            fresh.append(entry)
            continue
        changed = with_value(block[slice(*span)], entry.state)
        if changed is None:
            return _rebuild(block, entries)
        edits.append((*span, changed))
    if fresh:
        edits += _additions(block, shape, fresh)
    return Edited(text=_edited(block, edits), ours=shape.ours)


def _additions(
    block: str, shape: _Shape, entries: Sequence[RosterEntry]
) -> list[tuple[int, int, str]]:
    first = block.partition("\n")[0]
    newline = "\r\n" if first.endswith("\r") else "\n"
    text = _entries_text(entries, shape, newline)
    if not block.endswith("\n") and shape.end == len(block):  # a file without a last line end
        text = newline + text.removesuffix(newline)
    top = _TOP.fullmatch(first)
    opened = [(0, len(first), top["key"] + top["after"])] if top and shape.empty else []
    return [*opened, (shape.end, shape.end, text)]


def _edited(block: str, edits: Sequence[tuple[int, int, str]]) -> str:
    parts: list[str] = []
    done = 0
    for start, stop, text in sorted(edits):
        parts += [block[done:start], text]
        done = stop
    return "".join([*parts, block[done:]])


def with_value(line: str, value: str) -> str | None:
    """The line `key: value` with another value, in the quotes that stood there.

    None when the line holds more than a simple value.
    """
    found = _VALUE.fullmatch(line)
    if found is None:
        return None
    old = found["old"]
    if old.strip("\"'") == value:
        return line
    if old.startswith("'") and "'" not in value and value.isprintable():
        new = f"'{value}'"
    else:
        new = value if _PLAIN.fullmatch(value) and not old.startswith('"') else quoted(value)
    return f"{found['before']}{found['gap'] or ' '}{new}{found['after']}"


def _shape_of_ours(block: str, wanted: Collection[str]) -> _Shape | None:
    """The shape of a block as we write it. Who changes is mostly new, and so near its end."""
    shape = _Shape(end_of_entries(block), empty=False)
    dashed = f"\n{OUR_DASH}"
    for name in wanted:
        at = block.rfind(f"{dashed}instance: {quoted(name)}\n")
        if at < 0:
            continue
        found = _OURS.match(block, at + len(dashed))
        if found is None:  # a name that takes more than plain words
            return None
        shape.states[name] = found.span(3)
    return shape


def _shape(block: str, wanted: Collection[str], *, ours: bool) -> _Shape | None:
    first = block.partition("\n")[0]
    top = _TOP.fullmatch(first)
    if top is None:
        return None
    shape = _Shape(end_of_entries(block), wanted, seen=None if ours else set())
    shape.ours = not first.endswith("\r")
    idle = _IDLE.match(block, len(first))
    start = idle.end() if idle else len(first)
    if start >= shape.end:
        return shape
    dash = _DASH.match(block, start)
    if dash is None or first != top["key"] + top["after"]:
        return None
    shape.dash = len(dash[1])
    shape.ours &= f"{dash[1]}- " == OUR_DASH
    between = "\n" + dash[1] + "- "
    at = start + len(between)
    while at <= shape.end:
        next_one = block.find(between, at, shape.end)
        stop = shape.end if next_one < 0 else next_one
        if not _enter(shape, block[at:stop], at):
            return None
        at = stop + len(between)
    return shape


def _enter(shape: _Shape, entry: str, at: int) -> bool:
    found = _OURS.match(entry)
    if found is not None and found.end(2) - found.start(2) == shape.dash + 2:
        shape.key = shape.dash + 2
        return shape.keep(found[1], at + found.start(3), at + found.end(3))
    shape.ours = False
    inner = len(entry) - len(entry.lstrip(" "))
    shape.key = shape.dash + 2 + inner
    indent = "\n" + " " * shape.key
    name = _key_at(entry, "instance:", inner, indent)
    state = _key_at(entry, "state:", inner, indent)
    if name < 0 or state < 0:
        return False
    instance = _name(_line_at(entry, name))
    return shape.keep(instance, at + state, at + state + len(_line_at(entry, state)))


def _key_at(entry: str, key: str, inner: int, indent: str) -> int:
    if entry.startswith(key, inner):
        return inner
    found = entry.find(indent + key)
    return found if found < 0 else found + len(indent)


def _line_at(entry: str, start: int) -> str:
    end = entry.find("\n", start)
    return entry[start:] if end < 0 else entry[start:end]


def _name(pair: str) -> str:
    found = _VALUE.fullmatch(pair)
    return found["old"].strip("\"'") if found else ""


def _entries_text(entries: Sequence[RosterEntry], shape: _Shape, newline: str) -> str:
    dashed = " " * shape.dash + "-" + " " * (shape.key - shape.dash - 1)
    indent = " " * shape.key
    parts: list[str] = []
    for entry in entries:
        state = entry.state if _PLAIN.fullmatch(entry.state) else quoted(entry.state)
        skills = ", ".join(map(quoted, entry.skills))
        parts += [
            f"{dashed}instance: {quoted(entry.instance)}{newline}",
            f"{indent}agent: {quoted(entry.agent)}{newline}",
            f"{indent}state: {state}{newline}",
            f"{indent}skills: [{skills}]{newline}",
        ]
    return "".join(parts)


def _rebuild(block: str, entries: Sequence[RosterEntry]) -> Edited:
    """A roster in another style, in ours; what follows its last entry stays."""
    known = _read(block)
    before = {str(each["instance"]): each for each in known or ()}
    merged = dict(before)
    for entry in entries:
        told = {
            "instance": entry.instance,
            "agent": entry.agent,
            "state": entry.state,
            "skills": list(entry.skills),
        }
        merged[entry.instance] = {**before.get(entry.instance, told), "state": entry.state}
    if merged == before:
        return Edited(text=block)
    text = dump_yaml({"roster": list(merged.values())})
    return Edited(text=text + block[end_of_entries(block) :], lost=known is None)


def _read(block: str) -> list[Mapping[str, object]] | None:
    try:
        document = load_yaml(block, where="roster", limits=LARGE)
    except BadInput:
        return None
    listed = document.get("roster") if isinstance(document, dict) else None
    if listed is None:
        return []
    if not isinstance(listed, list):
        return None
    sound = all(isinstance(each, dict) and each.get("instance") for each in listed)
    return listed if sound else None
