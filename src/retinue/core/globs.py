"""Glob patterns of paths: matching, and whether two patterns can match the same path.

`*` and `?` match within one path component, `[ab]` one of these characters, `**` any
number of components. A pattern whose last component has no wildcard also matches
everything below it: `docs` means `docs` and `docs/**`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import takewhile

from retinue.core.errors import BadInput

LONGEST = 400  # characters of a pattern
_WILD = re.compile(r"[*?\[]")
_WILD_END = re.compile(r"[*?\]]")
_TOKEN = re.compile(r"\*+|\?|\[[!^]?\]?[^]]*\]|.", re.DOTALL)


def require_glob(pattern: str, where: str, code: str = "invalid_plan") -> None:
    """Check that the pattern stays inside the repository.

    Raises:
        BadInput: it is absolute, leaves the tree, names .git, or is too long.
    """
    names = pattern.removesuffix("/").split("/")
    # .git in any case: on a case-insensitive file system .GIT is the same folder.
    odd = [name for name in names if name in ("", ".", "..") or name.lower() == ".git"]
    if odd or "\0" in pattern or "\\" in pattern or len(pattern) > LONGEST:
        raise BadInput(
            f"{where}: {pattern[:80]!a} is not a pattern of paths inside the repository",
            code=code,
            hint="relative, with '/' between names: 'bio.md', 'img/**', 'src/*.py'; "
            f"at most {LONGEST} characters",
        )


def matches_any(patterns: Sequence[str], path: str) -> bool:
    return any(_matches(pattern, path) for pattern in patterns)


# A regular expression of a whole pattern is fast, but with many wildcards it tries every way to
# spread a path over them, which takes for ever. A model can choose both the pattern and the path.
MOST_STARS = 2  # in a name, and `**` at most once


def _matches(pattern: str, path: str) -> bool:
    if _is_simple(pattern):
        return _compile_regex(pattern).fullmatch(path) is not None
    names = path.split("/")
    return any(_match_names(tuple(each), names) for each in _list_variants(pattern))


@lru_cache(maxsize=4096)
def _is_simple(pattern: str) -> bool:
    names = pattern.split("/")
    return names.count("**") < 2 and all(
        len(re.findall(r"\*+", name)) <= MOST_STARS for name in names
    )


def _match_names(pattern: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether the names of a pattern match those of a path, all ways at once."""
    end = len(pattern)

    def skip(places: set[int]) -> set[int]:
        # `**` may match nothing.
        for place in sorted(places):
            while place < end and pattern[place] == "**":
                place += 1
                places.add(place)
        return places

    here = skip({0})
    for name in names:
        beyond = set()
        for place in here:
            if place < end and pattern[place] == "**":
                beyond.add(place)
            elif place < end and _compile_name(pattern[place]).fullmatch(name):
                beyond.add(place + 1)
        here = skip(beyond)
    return end in here


@lru_cache(maxsize=4096)
def _compile_name(name: str) -> re.Pattern[str]:
    parts = [""]
    for token in _TOKEN.findall(name):
        if token.startswith("*"):
            parts.append("")
        else:
            parts[-1] += _translate_token(token)
    first, *inner = parts
    if not inner:
        return re.compile(first, re.DOTALL)
    # Atomic: the first place where a part fits is as good as any later one.
    found = "".join(f"(?>.*?{part})" for part in inner[:-1])
    return re.compile(f"{first}{found}.*{inner[-1]}", re.DOTALL)


def can_overlap(one: str, other: str) -> bool:
    """Return whether a path could match both; False is certain, True may be conservative."""
    return any(
        _can_names_overlap(tuple(first), tuple(second))
        for first in _list_variants(one)
        for second in _list_variants(other)
    )


def overlap(some: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether a path could match a pattern of each; an empty list matches every path."""
    if not some or not others:
        return True
    return any(can_overlap(one, other) for one in some for other in others)


def find_overlap_candidates(patterns: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the index pairs that may overlap, smaller index first; some do not overlap.

    Two patterns can overlap only if the literal prefix of one begins with that of the other.
    Grouping by prefix avoids comparing every pair.
    """
    under: dict[tuple[str, ...], list[int]] = {}
    plain = [_list_literal_prefix(pattern) for pattern in patterns]
    for place, names in enumerate(plain):
        under.setdefault(names, []).append(place)
    for place, names in enumerate(plain):
        for end in range(len(names) + 1):
            for other in under.get(names[:end], ()):
                if end < len(names) or other < place:
                    yield min(place, other), max(place, other)


def _list_literal_prefix(pattern: str) -> tuple[str, ...]:
    """Return the leading components without a wildcard; every match begins with them."""
    names = pattern.removesuffix("/").split("/")
    return tuple(takewhile(lambda name: not _WILD.search(name), names))


def _list_variants(pattern: str) -> list[list[str]]:
    """Return the pattern's components and, if it also matches what lies below, a `**` variant."""
    names = pattern.removesuffix("/").split("/")
    below = pattern.endswith("/") or not _WILD.search(names[-1])
    return [names, [*names, "**"]] if below else [names]


@lru_cache(maxsize=4096)
def _compile_regex(pattern: str) -> re.Pattern[str]:
    readings = ["/".join(_name_regex(n) for n in names) for names in _list_variants(pattern)]
    joined = "|".join(f"(?:{_drop_empty_globstars(each)})" for each in readings)
    return re.compile(joined, re.DOTALL)


_ANY_NAMES = r"(?:[^/]+(?:/[^/]+)*)?"


def _drop_empty_globstars(regex: str) -> str:
    """Let `**` match nothing, together with its slash."""
    leading = regex.replace(_ANY_NAMES + "/", r"(?:[^/]+/)*")
    return leading.replace("/" + _ANY_NAMES, r"(?:/[^/]+)*")


def _name_regex(name: str) -> str:
    if name == "**":
        return _ANY_NAMES
    return "".join(_translate_token(token) for token in _TOKEN.findall(name))


def _translate_token(token: str) -> str:
    if token.startswith("*"):
        return "[^/]*"
    if token == "?":
        return "[^/]"
    if len(token) > 2 and token.startswith("["):
        turned = token[1] in "!^"
        inner = token[2:-1] if token[1] in "!^" else token[1:-1]
        # Escape what a regex set treats specially and a glob set does not.
        safe = re.sub(r"[]\\[&~|^]", r"\\\g<0>", inner)
        try:
            re.compile(f"[{safe}]")
        except re.error:
            # Not a valid set, such as [z-a]: match it literally.
            return re.escape(token)
        return f"(?!/)[^{safe}]" if turned else f"(?!/)[{safe}]"
    return re.escape(token)


@lru_cache(maxsize=4096)
def _can_names_overlap(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    # One side is used up: the rest of the other must be able to match nothing.
    if not one or not other:
        return all(name == "**" for name in (*one, *other))
    # `**` matches either no component or the next one of the other side.
    if one[0] == "**":
        return _can_names_overlap(one[1:], other) or _can_names_overlap(one, other[1:])
    if other[0] == "**":
        return _can_names_overlap(one, other[1:]) or _can_names_overlap(one[1:], other)
    return _name_meets(one[0], other[0]) and _can_names_overlap(one[1:], other[1:])


def _name_meets(one: str, other: str) -> bool:
    # Compare the literal ends first: this is cheap and rules out most pairs.
    (head, tail) = _split_literal_ends(one)
    (first, last) = _split_literal_ends(other)
    if not (head.startswith(first) or first.startswith(head)):
        return False
    if not (tail.endswith(last) or last.endswith(tail)):
        return False
    return _can_tokens_overlap(tuple(_TOKEN.findall(one)), tuple(_TOKEN.findall(other)))


@lru_cache(maxsize=4096)
def _split_literal_ends(name: str) -> tuple[str, str]:
    """Return the text before the first wildcard and after the last; the whole name without one."""
    return _WILD.split(name, maxsplit=1)[0], _WILD_END.split(name)[-1]


@lru_cache(maxsize=65536)
def _can_tokens_overlap(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    if not one or not other:
        return all(token.startswith("*") for token in (*one, *other))
    if one[0].startswith("*"):
        return _can_tokens_overlap(one[1:], other) or _can_tokens_overlap(one, other[1:])
    if other[0].startswith("*"):
        return _can_tokens_overlap(one, other[1:]) or _can_tokens_overlap(one[1:], other)
    return _can_characters_overlap(one[0], other[0]) and _can_tokens_overlap(one[1:], other[1:])


def _can_characters_overlap(one: str, other: str) -> bool:
    wild = [len(token) > 1 or token == "?" for token in (one, other)]
    if all(wild):
        return True  # two character sets are assumed to overlap, which is the safe answer
    if not any(wild):
        return one == other
    pattern, character = (one, other) if wild[0] else (other, one)
    return re.fullmatch(_translate_token(pattern), character, re.DOTALL) is not None
