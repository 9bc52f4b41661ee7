"""Patterns of paths."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.errors import BadInput
from retinue.domain.globs import could_meet, near, owns, require_glob

NAMES = st.text("ab", min_size=1, max_size=3)
PIECES = st.sampled_from(["a", "b", "*", "?", "[ab]", "[!a]", "ab", "a*", "*b"])
PATTERNS = st.lists(
    st.one_of(PIECES, st.just("**"), st.builds(str.__add__, PIECES, PIECES)),
    min_size=1,
    max_size=4,
).map("/".join)
KINDS = [("d", "/**"), ("e", "/*.py"), ("f", ".txt"), ("g/h", "")]
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)


@pytest.mark.parametrize(
    ("pattern", "path", "owned"),
    [
        ("bio.md", "bio.md", True),
        ("bio.md", "bio.md.txt", False),
        ("docs", "docs/a/b.md", True),
        ("docs/", "docs/a", True),
        ("docs", "docs2/a", False),
        ("img/**", "img/a/b.png", True),
        ("img/**", "images/a.png", False),
        ("src/*.py", "src/a.py", True),
        ("src/*.py", "src/a/b.py", False),
        ("src/*", "src/a/b.py", False),
        ("**/test_*.py", "test_a.py", True),
        ("**/test_*.py", "a/b/test_a.py", True),
        ("a/**/z", "a/z", True),
        ("a/**/z", "a/b/c/z", True),
        ("?.md", "a.md", True),
        ("?.md", "ab.md", False),
        ("[a-c].md", "b.md", True),
        ("[!a-c].md", "b.md", False),
        ("[a", "[a", True),
        ("a.c", "abc", False),
        ("**", "anything/at/all", True),
    ],
)
def test_a_pattern_owns_what_it_says(pattern: str, path: str, owned: bool) -> None:
    assert owns([pattern], path) is owned


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ("bio.md", "index.md", False),
        ("docs", "docs/a.md", True),
        ("docs/a.md", "docs/*.md", True),
        ("src/*.py", "src/*.c", False),
        ("src/**", "docs/**", False),
        ("**/*.md", "docs/**", True),
        ("a*", "*b", True),
        ("a?", "abc", False),
        ("img/*", "img/a/b", False),
        ("[ab]", "c", False),
    ],
)
@pytest.mark.requirement("R138")
def test_patterns_that_could_match_the_same_path_are_found(
    one: str, other: str, meet: bool
) -> None:
    assert could_meet(one, other) is meet
    assert could_meet(other, one) is meet


@given(one=PATTERNS, other=PATTERNS, path=PATHS)
def test_a_path_of_two_owners_is_never_overlooked(one: str, other: str, path: str) -> None:
    if owns([one], path) and owns([other], path):
        assert could_meet(one, other)


@given(patterns=st.lists(PATTERNS, max_size=6))
def test_no_two_that_could_meet_are_left_out(patterns: list[str]) -> None:
    found = set(near(patterns))
    for one, other in combinations(range(len(patterns)), 2):
        assert (one, other) in found or not could_meet(patterns[one], patterns[other])


def test_patterns_of_different_folders_are_not_compared_with_each_other() -> None:
    patterns = [f"{top}/{number}{end}" for number in range(1000) for top, end in KINDS]
    assert not list(near(patterns))


@given(pattern=PATTERNS)
def test_a_pattern_meets_itself(pattern: str) -> None:
    assert could_meet(pattern, pattern)


@pytest.mark.parametrize(
    "pattern",
    ["", "/etc", "../a", "a/../b", "a//b", ".git/config", "a\\b", "a/" * 1000, "a" * 1000],
)
def test_a_pattern_that_leaves_the_repository_is_refused(pattern: str) -> None:
    with pytest.raises(BadInput) as refused:
        require_glob(pattern, "owns")
    assert refused.value.code == "invalid_plan"
