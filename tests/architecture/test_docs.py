"""What the documents say is what the code does, and every link leads somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel import yaml

from architecture.source import TOP
from retinue.core import events
from retinue.core.lifecycle import MOVES, ROSTER_STATES
from retinue.core.result import Status
from support.reader import CLOSE_REASONS

DOCS = TOP / "docs"
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
ANCHOR = re.compile(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")
WORD_LIMITS = {"README.md": 600, "AGENTS.md": 700}


def test_every_relative_link_leads_to_a_file() -> None:
    broken = [
        f"{page.relative_to(TOP)} -> {target}"
        for page in (*DOCS.rglob("*.md"), *TOP.glob("*.md"))
        for target in LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert not broken


def test_every_link_to_a_heading_leads_to_one() -> None:
    broken = [
        f"{page.relative_to(TOP)} -> {target}#{heading}"
        for page in (*DOCS.rglob("*.md"), *TOP.glob("*.md"))
        for target, heading in ANCHOR.findall(page.read_text(encoding="utf-8"))
        if target.endswith(".md") or not target
        if heading not in find_headings(page.parent / target if target else page)
    ]
    assert not broken


def test_the_site_shows_every_page_once() -> None:
    site = yaml.YAML(typ="safe").load((TOP / "mkdocs.yml").read_text(encoding="utf-8"))
    shown = [page for entry in site["nav"] for page in list_pages(entry)]
    assert sorted(shown) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


@pytest.mark.parametrize(("name", "limit"), WORD_LIMITS.items())
def test_what_is_read_first_stays_short(name: str, limit: int) -> None:
    assert len((TOP / name).read_text(encoding="utf-8").split()) < limit


@pytest.mark.requirement("R29")
def test_the_documented_statuses_and_roster_states_are_the_ones_in_force() -> None:
    rows = table("reference/status.md", "| status | when | roster state |")
    assert {status: roster for status, _, roster in rows} == ROSTER_STATES


def test_the_documented_result_statuses_are_the_ones_in_force() -> None:
    rows = table("reference/status.md", "| status | success | then |")
    assert {status for status, _, _ in rows} == set(Status)


def test_the_documented_moves_are_the_legal_ones() -> None:
    rows = table("explanation/lifecycle.md", "| from | to | because |")
    legal = {(str(state), str(to)) for state, moves in MOVES.items() for to in moves}
    assert {(before, after) for before, after, _ in rows} == legal


def test_the_documented_delegation_events_are_the_ones_that_are_written() -> None:
    rows = table("explanation/lifecycle.md", "| event | how often |")
    assert [name for name, _ in rows] == [
        events.SUBAGENT_CREATED,
        events.SUBAGENT_STARTED,
        events.SUBAGENT_ATTEMPT,
        events.SUBAGENT_WAITING,
        events.SUBAGENT_FAILED,
        events.SUBAGENT_CLOSED,
    ]


def test_the_documented_attempt_events_are_the_ones_that_are_written() -> None:
    rows = table("explanation/lifecycle.md", "| event | the attempt |")
    assert {name for name, _ in rows} == {
        events.STARTED,
        events.COMPLETED,
        events.FAILED,
        events.BLOCKED,
        events.CANCELLED,
    }


@pytest.mark.requirement("R136")
def test_the_documented_reasons_for_a_close_are_all_there_are() -> None:
    rows = table("explanation/lifecycle.md", "| closed as | `close_reason` | because |")
    named = [re.findall(r"\w+", words) for _, words, _ in rows]
    assert sorted(word for words in named for word in words) == sorted(CLOSE_REASONS)


@pytest.mark.requirement("R71")
def test_the_capability_is_named_in_the_documents() -> None:
    for page in ("index.md", "reference/status.md"):
        assert "**subagent-orchestration**" in (DOCS / page).read_text(encoding="utf-8")


def table(page: str, header: str) -> list[tuple[str, ...]]:
    """The rows below a header, as plain cells."""
    rows = list(_rows_below(DOCS / page, header))
    assert rows, f"{page} has no table {header}"
    return rows


def _rows_below(page: Path, header: str) -> Iterator[tuple[str, ...]]:
    lines = iter(page.read_text(encoding="utf-8").splitlines())
    for line in lines:
        if line == header:
            next(lines)  # the rule below it
            break
    for line in lines:
        if not line.startswith("|"):
            return
        yield tuple(cell.strip().strip("`") for cell in line.strip("|").split("|"))


def find_headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in plain}


def list_pages(entry: Any) -> Iterator[str]:
    """Yield the pages of an entry of the site's navigation."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        for below in entry.values():
            yield from list_pages(below)
    else:
        for below in entry:
            yield from list_pages(below)
