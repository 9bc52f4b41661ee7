"""The page when its steward or its server is away, and when nobody sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.test_page import shows_all
from support.browser import Browser, Page
from support.page import Served, served
from support.roots import Root, holder, sh, until


@contextmanager
def looked_at(browser: Browser, root: Root, path: str) -> Iterator[Page]:
    """The page at this path, of a server of its own."""
    with served(root.path) as ui:
        ui.enter()
        page = browser.page()
        page.admit(ui.base, ui.cookie, ui.word)
        page.goto(f"{ui.base}{path}")
        yield page
        page.close()


def printing(root: Root, task: str) -> Path:
    """What a subagent without an end writes to."""
    endless = "while true; do echo x >> lines; echo x; sleep 0.05; done"
    root.spawn(task, sh(endless, subagent_id="prints"))
    return root.folder(task, "prints") / "workspace" / "lines"


def test_a_lost_steward_costs_no_event_and_doubles_none(browser: Browser, fresh: Root) -> None:
    task = fresh.create_task()
    with looked_at(browser, fresh, f"/tasks/{task}") as page:
        page.until("document.querySelector('.link.live')")
        fresh.run(task, sh("echo 1"))
        shows_all(page, fresh, task)
        fresh.kill()
        page.until("document.querySelector('.link.lost')")
        fresh.run(task, sh("echo 2"), sh("echo 3"))  # starts the next steward
        shows_all(page, fresh, task)
        page.until("document.querySelector('.link.live')")
        fresh.run(task, sh("echo 4"))
        shows_all(page, fresh, task)


def test_a_page_whose_server_was_started_anew_says_what_to_do(browser: Browser, root: Root) -> None:
    page = browser.page()
    with served(root.path) as before:
        before.enter()
        page.admit(before.base, before.cookie, before.word)
        page.goto(before.base)
        page.until("document.querySelector('.link.live')")
    page.until("document.querySelector('.link.lost')")
    with served(root.path, port=before.port):
        page.sees("signed out: open a new link")
    page.close()


def test_a_hidden_page_closes_its_streams_and_catches_up(
    page: Page, ui: Served, root: Root, task: str
) -> None:
    hide = (
        "Object.defineProperty(document, 'hidden', {{get: () => {0}, configurable: true}});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    page.goto(f"{ui.base}/tasks/{task}")
    page.until("document.querySelector('.link.live')")
    before = ui.streams()
    page.js(hide.format("true"))
    until(lambda: ui.streams() < before)
    root.run(task, sh("echo 1"), sh("echo 2"))
    page.js(hide.format("false"))
    shows_all(page, root, task)


def test_a_page_that_watches_starts_no_steward(browser: Browser, fresh: Root) -> None:
    task = fresh.create_task()
    lines = printing(fresh, task)
    with looked_at(browser, fresh, f"/tasks/{task}/subagents/prints") as page:
        page.until("document.querySelector('.link.live') && document.querySelector('.tail')")
        fresh.stop()
        page.until("document.querySelector('.link.stopped')")
        written = lines.stat().st_size
        until(lambda: lines.stat().st_size > written + 20)
        assert holder(fresh.path) is None
        page.sees("reload to start one")
        page.js("location.reload()")
        page.until("document.querySelector('.link.live')")
        assert holder(fresh.path) is not None


def test_what_a_stopped_steward_did_not_tell_is_asked_for_once_until_something_happens(
    browser: Browser, fresh: Root
) -> None:
    task = fresh.create_task()
    lines = printing(fresh, task)
    asked = (
        "performance.getEntriesByType('resource').filter(each => each.name.includes('{}')).length"
    )
    with looked_at(browser, fresh, f"/tasks/{task}") as page:
        page.until("document.querySelector('.link.live') && document.querySelector('a.lane')")
        fresh.stop()
        page.until("document.querySelector('.link.stopped')")
        page.js("[...document.querySelectorAll('.chip')].find(e => e.innerText[0] == 'O').click()")
        page.until(asked.format("which=open"))
        page.js("[...document.querySelectorAll('.chip')].find(e => e.innerText[0] == 'P').click()")
        page.until(asked.format("/search?"))
        written = lines.stat().st_size
        until(lambda: lines.stat().st_size > written + 40)
        assert holder(fresh.path) is None
        assert page.js(asked.format("which=open")) == 1
        fresh.run(task, sh("echo 1"))
        page.until("document.querySelector('a.lane')")


def test_the_mark_of_a_closed_task_is_not_that_of_a_live_one(
    page: Page, ui: Served, root: Root, task: str
) -> None:
    mark = "getComputedStyle(document.querySelector('.link i')).backgroundColor"
    page.goto(f"{ui.base}/tasks/{task}")
    page.until("document.querySelector('.link.live')")
    live = page.js(mark)
    root.call("task.close", task=task)
    page.until("document.querySelector('.link.ended')")
    assert page.js(mark) != live


def test_what_could_not_be_shown_without_a_steward_says_so_and_comes_with_the_next(
    browser: Browser, fresh: Root
) -> None:
    chip = "[...document.querySelectorAll('.chip')].find(e => e.innerText.startsWith('{}')).click()"
    task = fresh.create_task()
    fresh.run(task, sh("exit 3", subagent_id="bad", max_retries=0))
    fresh.call("task.close", task=task)
    with looked_at(browser, fresh, f"/tasks/{task}") as page:
        page.until("document.querySelector('.link.ended') && document.querySelector('a.lane')")
        fresh.stop()
        page.js(chip.format("Failed"))
        page.sees("no steward is running")
        page.js(chip.format("Problems"))
        page.sees("Could not be searched")
        assert holder(fresh.path) is None
        page.forgive("503")
        page.click("button", "Try again")
        page.until("document.querySelector('a.lane')?.innerText.includes('bad')")
        page.until("document.querySelector('.event .event-type')?.innerText == 'subagent failed'")
