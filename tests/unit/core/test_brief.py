"""Briefs and their defaults."""

from __future__ import annotations

import dataclasses

import pytest

from retinue import Brief


def test_text_is_positional_and_all_else_is_keyword_only() -> None:
    brief = Brief("Write bio.md", id="bio")
    assert (brief.text, brief.id, brief.argv) == ("Write bio.md", "bio", ())
    with pytest.raises(TypeError):
        Brief("Write bio.md", "bio")  # type: ignore[call-arg]


def test_a_brief_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Brief("x").retries = 3  # type: ignore[misc]


@pytest.mark.requirement("R89")
@pytest.mark.parametrize(
    ("brief", "heading"),
    [
        (Brief("\n  First line\nsecond line"), "First line"),
        (Brief("First line", title="A title"), "A title"),
        (Brief(argv=["make", "-j2", "all"]), "make -j2 all"),
        (Brief("words", argv=["make"]), "words"),
        (Brief("a\tb   c"), "a b c"),
    ],
)
def test_the_heading_is_the_title_the_first_line_or_the_command(brief: Brief, heading: str) -> None:
    assert brief.heading == heading


def test_a_team_is_retried_once_and_a_command_only_if_timeouts_are_retried() -> None:
    assert Brief("x").default_retries(command=False) == 1
    assert Brief(argv=["x"]).default_retries(command=True) == 0
    assert Brief(argv=["x"], retry_on_timeout=True).default_retries(command=True) == 1


def test_the_heading_is_one_short_line() -> None:
    heading = Brief("x" * 500).heading
    assert len(heading) == 80 and heading.endswith("…")


@pytest.mark.requirement("R96", "R97")
def test_omitted_terms_have_their_defaults() -> None:
    brief = Brief("x")
    assert (brief.retries, brief.retry_on_timeout, brief.close_on_completion) == (None, False, True)
    assert brief.timeout_seconds is None and brief.tools is None
