"""Reading and writing of YAML files that people edit."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_HALF_PAIR = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True)
class YamlLimits:
    """Limits of a document; a larger one is refused."""

    size_bytes: int = 256 * 1024
    values: int = 20_000  # the parser needs about 35 microseconds for each
    depth: int = 32


DEFAULT_LIMITS = YamlLimits()
Place = tuple[str | int, ...]  # keys and list indexes that lead from the top to a value


def load_yaml(
    text: str | bytes,
    *,
    where: str,
    limits: YamlLimits = DEFAULT_LIMITS,
    first_line: int = 1,
    lines: dict[Place, int] | None = None,
) -> object:
    """Parse YAML into plain data: dicts with str keys, lists, str, numbers, bool, None.

    Args:
        first_line: number of the first line, for a text that is part of a larger file.
        lines: is filled with the line of each key and item.

    Raises:
        BadInput: the text is too large, not UTF-8, not YAML, or not plain data (infinities and
            NaN are not); the message names the line.
    """
    # Imported here, because ruamel is slow to load and many commands read no YAML.
    from retinue.formats.schemas import yaml_reader

    data, marks = yaml_reader.read(text, where, limits, first_line)
    if lines is not None:
        lines.update(marks)
    return data


# Writing: texts are quoted so that all YAML readers agree; texts of several lines become blocks,
# because people edit them.

_ESCAPED = re.compile('["\\\\\x00-\x1f\x7f-\xa0\xad\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]')
_NOT_IN_BLOCK = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\xa0\xad\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]| (?:\n|$)"
)
_SHORT = {"\0": "\\0", "\t": "\\t", "\n": "\\n", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
# Keys that need no quotes. YAML 1.1 readers take the words listed here for other values.
_KEY = re.compile(r"(?!(?:null|true|false|yes|no|on|off|y|n)$)[a-z][a-z0-9_]*", re.IGNORECASE)


def quote_text(text: str) -> str:
    """Return a quoted scalar on one line that every YAML reader decodes to this text.

    Lone surrogates become U+FFFD.
    """
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    code = 0xFFFD if _HALF_PAIR.match(character) else ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def dump_yaml(document: Mapping[str, object]) -> str:
    """Return YAML that `load_yaml` reads back as the same data, with keys in the given order.

    Raises:
        ValueError: a number is infinite or NaN, which `load_yaml` refuses.
    """
    return "".join(f"{line}\n" for line in _render_mapping(document))


def _render_mapping(mapping: Mapping[str, object]) -> list[str]:
    lines: list[str] = []
    for key, value in mapping.items():
        name = key if _KEY.fullmatch(key) else quote_text(key)
        if isinstance(value, Mapping) and value:
            lines += [f"{name}:", *_indent_lines(_render_mapping(value))]
        elif isinstance(value, list | tuple) and value and all(_is_tree(item) for item in value):
            lines += [
                f"{name}:",
                *_indent_lines(line for item in value for line in _render_item(item)),
            ]
        elif isinstance(value, str) and _can_be_block(value):
            chomp = "" if value.endswith("\n") else "-"
            lines += [f"{name}: |{chomp}", *_indent_lines(value.removesuffix("\n").split("\n"))]
        else:
            lines.append(f"{name}: {_render_flow(value)}")
    return lines


def _is_tree(value: object) -> bool:
    return isinstance(value, Mapping) and bool(value)


def _render_item(item: Mapping[str, object]) -> list[str]:
    first, *rest = _render_mapping(item)
    return [f"- {first}", *_indent_lines(rest)]


def _indent_lines(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" if line else "" for line in lines]


def _can_be_block(text: str) -> bool:
    # A block scalar cannot start with a space or blank line, and loses further trailing newlines.
    lines = text.removesuffix("\n").split("\n")
    return (
        len(lines) > 1
        and lines[0][:1] not in ("", " ")
        and lines[-1] != ""
        and _NOT_IN_BLOCK.search(text) is None
    )


def _render_flow(value: object) -> str:
    if isinstance(value, str):
        return quote_text(value)
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{quote_text(k)}: {_render_flow(v)}" for k, v in value.items()) + "}"
        )
    if isinstance(value, Sequence):
        return "[" + ", ".join(_render_flow(item) for item in value) + "]"
    return json.dumps(value, allow_nan=False)
