"""YAML as people write it, read; and YAML that people can edit, written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_HALF_PAIR = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much is read before it is refused."""

    size_bytes: int = 256 * 1024
    values: int = 20_000  # the parser needs some 35 microseconds for each
    depth: int = 32


DEFAULT_LIMITS = Limits()
Place = tuple[str | int, ...]  # keys and positions, from the top to a value


def load_yaml(
    text: str | bytes,
    *,
    where: str,
    limits: Limits = DEFAULT_LIMITS,
    first_line: int = 1,
    lines: dict[Place, int] | None = None,
) -> object:
    """Plain data: dicts with text keys, lists, texts, numbers, booleans, None.

    Lines count from `first_line`, for a text cut out of a larger one; `lines` is
    filled with where each key or item stands.

    Raises:
        BadInput: too large, not UTF-8, not YAML, or YAML beyond plain data, among that
            numbers that are infinite or none; names the line.
    """
    from retinue.wire.forms import yaml

    data, marks = yaml.read(text, where, limits, first_line)
    if lines is not None:
        lines.update(marks)
    return data


# Writing: quoted wherever readers might differ, a block wherever a person would edit.

_ESCAPED = re.compile('["\\\\\x00-\x1f\x7f-\xa0\xad\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]')
_NOT_IN_BLOCK = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\xa0\xad\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]| (?:\n|$)"
)
_SHORT = {"\0": "\\0", "\t": "\\t", "\n": "\\n", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_KEY = re.compile(r"(?!(?:null|true|false|yes|no|on|off|y|n)$)[a-z][a-z0-9_]*", re.IGNORECASE)


def quoted(text: str) -> str:
    """One line that every YAML reader takes for exactly this text.

    Halves of surrogate pairs are no text; each is marked as U+FFFD.
    """
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    code = 0xFFFD if _HALF_PAIR.match(character) else ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def dump_yaml(document: Mapping[str, object]) -> str:
    """A text that `load_yaml` reads back as the same data, keys in the order given.

    Raises:
        ValueError: a number is infinite or none, which nobody could read back.
    """
    return "".join(f"{line}\n" for line in _mapping_lines(document))


def _mapping_lines(mapping: Mapping[str, object]) -> list[str]:
    lines: list[str] = []
    for key, value in mapping.items():
        name = key if _KEY.fullmatch(key) else quoted(key)
        if isinstance(value, Mapping) and value:
            lines += [f"{name}:", *_indented(_mapping_lines(value))]
        elif isinstance(value, list | tuple) and value and all(_is_tree(item) for item in value):
            lines += [f"{name}:", *_indented(line for item in value for line in _item_lines(item))]
        elif isinstance(value, str) and _fits_block(value):
            chomp = "" if value.endswith("\n") else "-"
            lines += [f"{name}: |{chomp}", *_indented(value.removesuffix("\n").split("\n"))]
        else:
            lines.append(f"{name}: {_flow(value)}")
    return lines


def _is_tree(value: object) -> bool:
    return isinstance(value, Mapping) and bool(value)


def _item_lines(item: Mapping[str, object]) -> list[str]:
    first, *rest = _mapping_lines(item)
    return [f"- {first}", *_indented(rest)]


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" if line else "" for line in lines]


def _fits_block(text: str) -> bool:
    lines = text.removesuffix("\n").split("\n")
    return (
        len(lines) > 1
        and lines[0][:1] not in ("", " ")
        and lines[-1] != ""
        and _NOT_IN_BLOCK.search(text) is None
    )


def _flow(value: object) -> str:
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{quoted(k)}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    return json.dumps(value, allow_nan=False)
