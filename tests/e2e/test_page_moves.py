"""Moving on the page: what was chosen, and how far down, is there again."""

from __future__ import annotations

import pytest

from support.browser import Page
from support.page import Served
from support.roots import Root, sh

ADDRESS = "location.pathname + location.search"


@pytest.fixture(scope="module")
def ended(root: Root) -> str:
    """A task with enough in it to scroll."""
    task = root.create_task()
    root.run(task, sh("exit 3", subagent_id="bad"), *(sh("echo x") for _ in range(15)))
    return task


def test_a_reload_shows_the_same_events(page: Page, ui: Served, ended: str) -> None:
    page.goto(f"{ui.base}/tasks/{ended}")
    page.click(".filters .chip", "Problems")
    page.click("#event-text")
    page.write("attempt")
    page.click(".event", "bad")
    page.until("location.search.includes('event=')")
    page.click(".timeline .chip", "Failed")
    page.until("location.search.includes('lanes=failed')")
    address = page.js(ADDRESS)
    page.js("window.before = 1; location.reload()")
    page.until("!window.before && document.querySelector('.inspector .json')")
    assert page.js(ADDRESS) == address
    chosen = "[...document.querySelectorAll('.chip[aria-pressed=true]')].map(e => e.textContent)"
    assert page.js(chosen) == ["Failed 1", "Problems"]
    assert page.js("document.querySelector('#event-text').value") == "attempt"
    page.js("document.querySelector('.inspector-head .button').click()")
    page.until("!location.search.includes('event=')")


def test_the_event_of_an_address_is_scrolled_into_view(page: Page, ui: Served, ended: str) -> None:
    page.goto(f"{ui.base}/tasks/{ended}?event=3")
    page.until("document.querySelector('#event-3.chosen')")
    inside = (
        "(row => list => row.top >= list.top && row.bottom <= list.bottom)"
        "(document.querySelector('#event-3').getBoundingClientRect())"
        "(document.querySelector('.events-list').getBoundingClientRect())"
    )
    page.until(inside)


def test_an_address_that_asks_for_nonsense_shows_the_page(
    page: Page, ui: Served, ended: str
) -> None:
    page.goto(f"{ui.base}/tasks/{ended}?kind=x&lanes=y&event=z")
    page.until("document.querySelector('.event[id]') && document.querySelector('.lane[href]')")
    page.goto(f"{ui.base}/tasks/{ended}/subagents/bad?tab=x")
    page.until("document.querySelector('[aria-selected=true]').textContent.includes('Result')")


def test_the_way_back_leads_to_where_one_was(page: Page, ui: Served, ended: str) -> None:
    page.resize(1280, 600)
    page.goto(f"{ui.base}/tasks/{ended}")
    page.until("document.querySelector('.event[id]') && document.querySelector('.lane[href]')")
    page.js("scrollTo(0, 200); document.querySelector('.lane').click()")
    page.until("document.querySelector('.tabpanel') && scrollY === 0")
    page.until("document.activeElement.id === 'main'")
    page.click("[role=tab]", "Contract")
    page.until("location.search === '?tab=contract'")
    page.js("history.back()")
    page.until("document.querySelector('.event[id]') && scrollY === 200")
    page.js("history.forward()")
    page.until("document.querySelector('[aria-selected=true]')?.textContent.includes('Contract')")
