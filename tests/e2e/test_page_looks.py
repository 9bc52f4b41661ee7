"""The page for every reader: wide and narrow, light and dark, by keyboard and by screen reader."""

from __future__ import annotations

from importlib.resources import files

import pytest

from e2e.test_page import ASKS, SPENDS
from support.browser import Page
from support.page import Served
from support.roots import Root, python, sh

TEAM = """
import json, os, pathlib
logs = pathlib.Path(os.environ["RETINUE_LOGS"])
names = ["alpha", "beta"]
for name in names:
    folder = logs / name / "20260101_000000"
    folder.mkdir(parents=True)
    (folder / "answer.txt").write_text("by " + name)
status = {
    "agents": {name: {} for name in names},
    "coordination": {"phase": "presentation", "completion_percentage": 100},
    "results": {"votes": {"beta": 2}, "winner": "beta"},
}
(logs / "status.json").write_text(json.dumps(status))
print("done")
"""


@pytest.fixture(scope="module")
def busy(root: Root) -> str:
    """A task with one of everything."""
    task = root.create_task()
    root.run(task, sh("echo fine > f; echo ok"), sh("exit 3", subagent_id="bad"))
    root.run(task, python(TEAM, subagent_id="team"), python(SPENDS, subagent_id="spends"))
    root.run(task, sh(ASKS, subagent_id="asks"))
    root.spawn(task, sh("echo at work; sleep 60", subagent_id="slow"))
    return task


def addresses(task: str) -> dict[str, str]:
    """Each page, and what says that it is there."""
    base = f"/tasks/{task}/subagents"
    subagents = {f"{base}/{name}": ".tabpanel" for name in ("team", "slow", "asks")}
    return {"/": ".task-row", f"/tasks/{task}": ".event[id]"} | subagents


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_serious_is_wrong_for_anyone(
    page: Page, ui: Served, busy: str, width: int, dark: bool
) -> None:
    axe = files("axe_core_python").joinpath("axe.min.js").read_text()
    page.resize(width, 900)
    page.dark(dark)
    for path, there in addresses(busy).items():
        page.goto(ui.base + path)
        page.until(f"document.querySelector('{there}')")
        page.js(axe + "; true")
        found = page.js(
            "axe.run(document, {resultTypes: ['violations']}).then(all => all.violations"
            ".filter(each => ['serious', 'critical'].includes(each.impact))"
            ".map(each => [each.id, each.nodes.map(node => node.html).slice(0, 3)]))"
        )
        assert not found, (path, found)


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_cut_off_at_the_side(page: Page, ui: Served, busy: str, width: int) -> None:
    page.resize(width, 900)
    for path, there in addresses(busy).items():
        page.goto(ui.base + path)
        page.until(f"document.querySelector('{there}')")
        assert page.js("document.documentElement.scrollWidth") <= width


def test_the_team_is_shown_with_its_winner(page: Page, ui: Served, busy: str) -> None:
    page.goto(f"{ui.base}/tasks/{busy}/subagents/team")
    page.until("document.querySelector('.members .winner')?.textContent.includes('beta')")
    page.until("document.querySelector('.winner .member-head').textContent.includes('2 votes')")
    assert page.js("document.querySelector('.percent span').textContent") == "100%"
    page.click(".winner summary")
    page.sees("by beta")


def test_output_is_shown_as_it_is_written(page: Page, ui: Served, root: Root, task: str) -> None:
    script = "for i in 1 2 3 4 5 6 7 8 9; do echo line $i; sleep 0.2; done; sleep 60"
    root.spawn(task, sh(script, subagent_id="prints"))
    page.goto(f"{ui.base}/tasks/{task}/subagents/prints")
    page.sees("line 1")
    page.sees("line 9")


def test_colours_are_chosen_and_kept(page: Page, ui: Served, busy: str) -> None:
    page.dark(False)
    page.goto(ui.base)
    page.until("document.querySelector('.theme')")
    light = page.js("getComputedStyle(document.body).backgroundColor")
    page.click(".theme")
    page.click(".theme")
    page.until("document.documentElement.dataset.theme === 'dark'")
    assert page.js("getComputedStyle(document.body).backgroundColor") != light
    page.goto(f"{ui.base}/tasks/{busy}")
    page.until("document.documentElement.dataset.theme === 'dark'")


def test_all_can_be_reached_by_keyboard(page: Page, ui: Served, busy: str) -> None:
    page.goto(f"{ui.base}/tasks/{busy}")
    page.until("document.querySelector('.event[id]') && document.querySelector('.lane[href]')")
    reached = set()
    for _ in range(60):
        page.press("Tab")
        reached.add(page.js("(e => e.id || e.className || e.tagName)(document.activeElement)"))
    assert {"lane", "chip", "event-subagent", "event-text", "virtual"} <= reached
