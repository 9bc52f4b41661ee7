"""Patterns of paths: what they match, and whether two of them could ever match the same path.

`*` and `?` stay within one name, `[ab]` is one of these characters, `**` is any number of
names. A pattern whose last name has no wildcard owns what lies below it, too: `docs` is
`docs` and `docs/**`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import takewhile

from retinue.domain.errors import BadInput

LONGEST = 400  # of a pattern, in characters
_WILD = re.compile(r"[*?\[]")
_WILD_END = re.compile(r"[*?\]]")
_TOKEN = re.compile(r"\*+|\?|\[[!^]?\]?[^]]*\]|.", re.DOTALL)


def require_glob(pattern: str, where: str) -> None:
    """The pattern stays inside the tree it is about.

    Raises:
        BadInput: it is absolute, leaves the tree, names git's own folder, or is too long.
    """
    names = pattern.removesuffix("/").split("/")
    odd = [name for name in names if name in ("", ".", "..") or name.lower() == ".git"]
    if odd or "\0" in pattern or "\\" in pattern or len(pattern) > LONGEST:
        raise BadInput(
            f"{where}: {pattern[:80]!a} is not a pattern of paths inside the repository",
            code="invalid_plan",
            hint="relative, with '/' between names: 'bio.md', 'img/**', 'src/*.py'; "
            f"at most {LONGEST} characters",
        )


def owns(patterns: Sequence[str], path: str) -> bool:
    """Whether one of the patterns matches the path."""
    return any(_regex(pattern).fullmatch(path) is not None for pattern in patterns)


def could_meet(one: str, other: str) -> bool:
    """Whether some path could match both. Never says no wrongly; may say yes to be safe."""
    return any(
        _names_meet(tuple(first), tuple(second))
        for first in _readings(one)
        for second in _readings(other)
    )


def near(patterns: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The places of every two that could meet, the earlier first, and of some that could not.

    Names without a wildcard decide it for most: nobody has to compare each with each.
    """
    under: dict[tuple[str, ...], list[int]] = {}
    plain = [_plain_names(pattern) for pattern in patterns]
    for place, names in enumerate(plain):
        under.setdefault(names, []).append(place)
    for place, names in enumerate(plain):
        for end in range(len(names) + 1):
            for other in under.get(names[:end], ()):
                if end < len(names) or other < place:
                    yield min(place, other), max(place, other)


def _plain_names(pattern: str) -> tuple[str, ...]:
    """The names that every path begins with that the pattern matches."""
    names = pattern.removesuffix("/").split("/")
    return tuple(takewhile(lambda name: not _WILD.search(name), names))


def _readings(pattern: str) -> list[list[str]]:
    names = pattern.removesuffix("/").split("/")
    below = pattern.endswith("/") or not _WILD.search(names[-1])
    return [names, [*names, "**"]] if below else [names]


@lru_cache(maxsize=4096)
def _regex(pattern: str) -> re.Pattern[str]:
    readings = ["/".join(_name_regex(n) for n in names) for names in _readings(pattern)]
    joined = "|".join(f"(?:{_without_gaps(each)})" for each in readings)
    return re.compile(joined, re.DOTALL)


_ANY_NAMES = r"(?:[^/]+(?:/[^/]+)*)?"


def _without_gaps(regex: str) -> str:
    """`**` may stand for nothing at all, and takes its slash with it."""
    leading = regex.replace(_ANY_NAMES + "/", r"(?:[^/]+/)*")
    return leading.replace("/" + _ANY_NAMES, r"(?:/[^/]+)*")


def _name_regex(name: str) -> str:
    if name == "**":
        return _ANY_NAMES
    return "".join(_token_regex(token) for token in _TOKEN.findall(name))


def _token_regex(token: str) -> str:
    if token.startswith("*"):
        return "[^/]*"
    if token == "?":
        return "[^/]"
    if len(token) > 2 and token.startswith("["):
        turned, inner = token[1] in "!^", token[2:-1] if token[1] in "!^" else token[1:-1]
        safe = re.sub(r"[]\\[&~|^]", r"\\\g<0>", inner)
        try:
            re.compile(f"[{safe}]")
        except re.error:
            return re.escape(token)
        return f"(?!/)[^{safe}]" if turned else f"(?!/)[{safe}]"
    return re.escape(token)


@lru_cache(maxsize=4096)
def _names_meet(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    if not one or not other:
        return all(name == "**" for name in (*one, *other))
    if one[0] == "**":
        return _names_meet(one[1:], other) or _names_meet(one, other[1:])
    if other[0] == "**":
        return _names_meet(one, other[1:]) or _names_meet(one[1:], other)
    return _name_meets(one[0], other[0]) and _names_meet(one[1:], other[1:])


def _name_meets(one: str, other: str) -> bool:
    (head, tail), (first, last) = _ends(one), _ends(other)
    if not (head.startswith(first) or first.startswith(head)):
        return False
    if not (tail.endswith(last) or last.endswith(tail)):
        return False
    return _tokens_meet(tuple(_TOKEN.findall(one)), tuple(_TOKEN.findall(other)))


@lru_cache(maxsize=4096)
def _ends(name: str) -> tuple[str, str]:
    """What stands before the first wildcard and after the last: all of it where there is none."""
    return _WILD.split(name, maxsplit=1)[0], _WILD_END.split(name)[-1]


@lru_cache(maxsize=65536)
def _tokens_meet(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    if not one or not other:
        return all(token.startswith("*") for token in (*one, *other))
    if one[0].startswith("*"):
        return _tokens_meet(one[1:], other) or _tokens_meet(one, other[1:])
    if other[0].startswith("*"):
        return _tokens_meet(one, other[1:]) or _tokens_meet(one[1:], other)
    return _characters_meet(one[0], other[0]) and _tokens_meet(one[1:], other[1:])


def _characters_meet(one: str, other: str) -> bool:
    wild = [len(token) > 1 or token == "?" for token in (one, other)]
    if all(wild):
        return True  # two sets of characters: to be safe
    if not any(wild):
        return one == other
    pattern, character = (one, other) if wild[0] else (other, one)
    return re.fullmatch(_token_regex(pattern), character, re.DOTALL) is not None
