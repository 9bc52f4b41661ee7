"""The page for every reader: wide and narrow, light and dark, by keyboard and by screen reader."""

from __future__ import annotations

import json
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
    bad = sh("echo $RETINUE_ATTEMPT; exit 3", subagent_id="bad", max_retries=1)
    root.run(task, sh("echo fine > f; echo ok"), bad)
    root.run(task, python(TEAM, subagent_id="team"), python(SPENDS, subagent_id="spends"))
    root.run(task, sh(ASKS, subagent_id="asks"))
    root.run(task, sh(ASKS.replace("Publish it?", "Why" + "y" * 300), subagent_id="long"))
    root.spawn(task, sh("echo at work; sleep 60", subagent_id="slow"))
    return task


def addresses(task: str) -> dict[str, str]:
    """Each page, and what says that it is there."""
    base = f"/tasks/{task}/subagents"
    subagents = {f"{base}/{name}": ".tabpanel" for name in ("team", "slow", "asks", "long")}
    event = {f"/tasks/{task}?event=1": ".inspector .json"}
    costs = {"/costs": ".sums", f"/tasks/{task}/costs": ".sums"}
    start = {"/?start=plan": "#start-plan", "/?start=prompt": "#start-prompt"}
    start |= {"/?start=subagent": "#start-command"}
    costs |= {f"{base}/bad?tab=attempts": ".sides", f"{base}/bad?tab=files": ".panel"}
    return {"/": ".task-row", f"/tasks/{task}": ".event[id]"} | start | costs | event | subagents


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_is_wrong_for_anyone(
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


def test_times_are_in_the_time_zone_of_the_reader(
    page: Page, ui: Served, root: Root, task: str
) -> None:
    root.run(task, sh("echo ok", subagent_id="talks"))
    times = ("2026-01-01T20:00:00.000Z", "at noon")
    said = [json.dumps({"role": "user", "content": f"hi {at}", "at": at}) for at in times]
    (root.folder(task, "talks") / "conversation.jsonl").write_text("\n".join([*said, ""]))
    page.call("Emulation.setTimezoneOverride", timezoneId="Asia/Kolkata")
    page.goto(f"{ui.base}/tasks/{task}?event=1")
    told = page.until("document.querySelector('.inspector time')?.textContent")
    assert "GMT+5:30" in told
    listed = page.until("document.querySelector('#event-1 .event-time')?.textContent")
    assert listed in told
    page.goto(f"{ui.base}/tasks/{task}/subagents/talks?tab=conversation")
    page.sees("01:30:00")
    page.sees("hi at noon")


def test_joined_letters_and_figures_stay_joined(page: Page, ui: Served, root: Root) -> None:
    title = "\U0001f469\u200d\U0001f4bb \u0645\u06cc\u200c\u062e"
    task = root.call("task.create", title=title)["task_id"]
    page.goto(f"{ui.base}/tasks/{task}")
    page.until("document.querySelector('h1')")
    assert page.js("document.querySelector('h1').textContent") == title


def test_a_space_without_width_is_seen(page: Page, ui: Served, root: Root) -> None:
    task = root.call("task.create", title="pay\u200bpal")["task_id"]
    page.goto(f"{ui.base}/tasks/{task}")
    page.until("document.querySelector('h1')")
    assert page.js("document.querySelector('h1').textContent") == "pay\\u200bpal"


def test_escape_closes_an_event_from_inside_of_it(page: Page, ui: Served, busy: str) -> None:
    page.resize(390, 800)
    page.goto(f"{ui.base}/tasks/{busy}?event=1")
    page.until("document.querySelector('.inspector .json')")
    page.js("document.querySelector('.inspector .json').focus()")
    page.press("Escape")
    page.until("!document.querySelector('.inspector .json')")
    assert page.js("document.activeElement.getAttribute('role')") == "listbox"


@pytest.mark.parametrize("number", [2, 15])
def test_times_stand_above_what_they_tell_of(
    page: Page, ui: Served, root: Root, task: str, number: int
) -> None:
    root.run(task, *(sh("echo x") for _ in range(number)))
    page.goto(f"{ui.base}/tasks/{task}")
    page.until("document.querySelector('.lane .end')")
    for place in ("left", "right"):
        found = page.js(
            "['.axis .axis-track', '.grid .axis-track', '.lane .track'].map(each =>"
            f" Math.round(document.querySelector(each).getBoundingClientRect().{place}))"
        )
        assert len(set(found)) == 1, (place, found)


def test_a_call_of_a_tool_says_what_it_is_about(
    page: Page, ui: Served, root: Root, task: str
) -> None:
    root.run(task, sh("echo ok", subagent_id="calls"))
    given = [
        ("run_command", {"command": "pytest -q " + "x" * 100}),
        ("write_file", '{"path": "a"}'),
    ]
    entries = [
        {"role": "user", "content": "Check **all**:\n\n- tests"},
        {"role": "assistant", "calls": [{"tool": t, "arguments": a} for t, a in given]},
    ]
    lines = [json.dumps(entry) for entry in entries]
    (root.folder(task, "calls") / "conversation.jsonl").write_text("\n".join([*lines, ""]))
    page.goto(f"{ui.base}/tasks/{task}/subagents/calls?tab=conversation")
    page.until("document.querySelectorAll('.call').length === 2")
    said = page.js("[...document.querySelectorAll('.call summary')].map(each => each.textContent)")
    assert said[0].startswith("calls run_command pytest -q xxx") and said[0].endswith("x…")
    assert said[1] == "calls write_file a"
    assert page.js("document.querySelector('.said-by.user li').textContent") == "tests"


def test_a_table_of_an_answer_is_aligned_as_it_says(
    page: Page, ui: Served, root: Root, task: str
) -> None:
    table = "|name|lines|share|\\n|---|---:|:-:|\\n|a|1|2|\\n"
    root.run(task, sh(f"printf '{table}'", subagent_id="table"))
    page.goto(f"{ui.base}/tasks/{task}/subagents/table")
    page.until("document.querySelector('.markdown td')")
    aligned = (
        "[...document.querySelectorAll('.markdown td')].map(e => getComputedStyle(e).textAlign)"
    )
    assert page.js(aligned) == ["left", "right", "center"]


def test_the_chosen_tab_is_in_sight_on_a_narrow_screen(page: Page, ui: Served, busy: str) -> None:
    page.resize(390, 800)
    page.goto(f"{ui.base}/tasks/{busy}/subagents/bad?tab=attempts")
    page.until("document.querySelector('.sides')")
    box = page.js(
        "(e => [e.left, e.right])(document.querySelector('[role=tab][aria-selected=true]')"
        ".getBoundingClientRect())"
    )
    assert box[0] >= 0 and box[1] <= 390, box


@pytest.mark.parametrize("kind", ["prompt", "plan"])
def test_a_form_takes_the_text_at_once(page: Page, ui: Served, kind: str) -> None:
    page.goto(f"{ui.base}/?start={kind}")
    page.until(f"document.activeElement?.id === 'start-{kind}'")


def test_all_subagents_of_a_short_task_are_seen_without_scrolling(
    page: Page, ui: Served, root: Root
) -> None:
    for number in (1, 12):
        task = root.create_task()
        root.run(task, *(sh("echo x") for _ in range(number)))
        page.goto(f"{ui.base}/tasks/{task}")
        page.until(f"document.querySelectorAll('.subagents .sub-title a').length === {number}")
        tall = page.js(
            "(e => [e.scrollHeight, e.clientHeight])(document.querySelector('.subagents .virtual'))"
        )
        assert tall[0] == tall[1] == number * 38, tall
