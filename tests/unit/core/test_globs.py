"""Glob patterns of paths."""

from __future__ import annotations

import time
from fnmatch import fnmatchcase
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import BadInput
from retinue.core.globs import can_overlap, find_overlap_candidates, matches_any, require_glob

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
def test_a_pattern_matches_its_paths(pattern: str, path: str, owned: bool) -> None:
    assert matches_any([pattern], path) is owned


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
    assert can_overlap(one, other) is meet
    assert can_overlap(other, one) is meet


@given(one=PATTERNS, other=PATTERNS, path=PATHS)
def test_a_path_that_matches_two_patterns_is_always_found(one: str, other: str, path: str) -> None:
    if matches_any([one], path) and matches_any([other], path):
        assert can_overlap(one, other)


@given(pattern=PATTERNS, path=PATHS)
def test_further_globstars_change_nothing(pattern: str, path: str) -> None:
    once, often = f"**/{pattern}", f"**/**/**/{pattern}"
    assert matches_any([once], path) == matches_any([often], path)


@given(pattern=st.text("ab*?", min_size=1, max_size=12), name=st.text("ab", max_size=12))
def test_a_name_is_matched_as_a_shell_does(pattern: str, name: str) -> None:
    if name and "**" not in pattern:
        assert matches_any([pattern], name) == fnmatchcase(name, pattern)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [("*a" * 100 + "b", "a" * 250), ("**/a/" * 50 + "b", "a/" * 500 + "a")],
    ids=["stars", "globstars"],
)
def test_a_pattern_of_many_wildcards_is_matched_at_once(pattern: str, path: str) -> None:
    began = time.process_time()
    assert not matches_any([pattern], path)
    assert time.process_time() - began < 2.0


@given(patterns=st.lists(PATTERNS, max_size=6))
def test_candidates_include_every_overlapping_pair(patterns: list[str]) -> None:
    found = set(find_overlap_candidates(patterns))
    for one, other in combinations(range(len(patterns)), 2):
        assert (one, other) in found or not can_overlap(patterns[one], patterns[other])


def test_patterns_of_different_folders_are_not_compared_with_each_other() -> None:
    patterns = [f"{top}/{number}{end}" for number in range(1000) for top, end in KINDS]
    assert not list(find_overlap_candidates(patterns))


@given(pattern=PATTERNS)
def test_a_pattern_overlaps_with_itself(pattern: str) -> None:
    assert can_overlap(pattern, pattern)


@pytest.mark.parametrize(
    "pattern",
    ["", "/etc", "../a", "a/../b", "a//b", ".git/config", "a\\b", "a/" * 1000, "a" * 1000],
)
def test_a_pattern_that_leaves_the_repository_is_refused(pattern: str) -> None:
    with pytest.raises(BadInput) as refused:
        require_glob(pattern, "owns")
    assert refused.value.code == "invalid_plan"
