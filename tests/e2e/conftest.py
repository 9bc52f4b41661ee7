"""A root with its steward, its page, and a browser to look at it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.browser import Browser, Page, browsing
from support.cli import cli
from support.mcp import own
from support.page import Served, served
from support.roots import Root, fresh, root, task

__all__ = ["cli", "fresh", "own", "root", "task"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.fixture(scope="module")
def ui(root: Root) -> Iterator[Served]:
    with served(root.path) as page:
        page.enter()
        yield page


@pytest.fixture
def page(browser: Browser, ui: Served) -> Iterator[Page]:
    """A browser's page with a session, of which the browser has nothing to complain about."""
    page = browser.page()
    page.admit(ui.base, ui.cookie, ui.word)
    yield page
    complaints = page.complaints()
    page.close()
    assert not complaints
