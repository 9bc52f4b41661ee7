"""What a person starts, repeats, takes over and removes on the page, in a real browser."""

from __future__ import annotations

import json
from pathlib import Path

from e2e.test_page import saved, texts
from support.browser import Page
from support.page import Served
from support.repositories import Repository, carry_out, plan, step
from support.roots import Root, sh

PLAN = """goal: Two steps
steps:
  - id: one
    command: [sh, -c, echo first]
  - id: two
    command: [sh, -c, echo second]
    depends_on: [one]
"""


def places(page: Page) -> dict[str, float]:
    """How far right each step of the graph is."""
    found: dict[str, float] = page.js(
        "Object.fromEntries([...document.querySelectorAll('.step')].map(each =>"
        " [each.querySelector('b').textContent, each.getBoundingClientRect().x]))"
    )
    return found


def write_into(page: Page, selector: str, text: str) -> None:
    # A dialog moves the focus when it opens, which is after its fields are drawn.
    page.until(f"document.querySelector('{selector}')?.closest('dialog').open")
    page.js(f"document.querySelector('{selector}').select()")
    page.js(f"document.querySelector('{selector}').focus()")
    page.write(text)


def test_a_plan_is_started_and_drawn_by_its_dependencies(page: Page, ui: Served) -> None:
    page.forgive("400 (Bad Request)")
    page.goto(f"{ui.base}/?start=plan")
    write_into(page, "#start-plan", "steps: 3")
    page.click(".dialog .button.primary", "Start")
    page.until("document.querySelector('.dialog-error')?.textContent")
    write_into(page, "#start-plan", PLAN)
    page.click(".dialog .button.primary", "Start")
    page.until("document.querySelectorAll('a.step.completed').length === 2", 30)
    drawn = places(page)
    assert drawn["one"] < drawn["two"]
    assert page.js("document.querySelectorAll('.graph path:not(.icon path)').length") == 1
    page.click("a.step", "two")
    page.until("location.pathname.endsWith('/subagents/two')")


# Whether any line of the graph runs behind a step.
HIDDEN = """[...document.querySelectorAll('.graph-all > svg path')].some(path => {
  const box = path.ownerSVGElement.getBoundingClientRect();
  const steps = [...document.querySelectorAll('.step')].map(each => each.getBoundingClientRect());
  const length = path.getTotalLength() / 100;
  return Array.from({length: 99}, (_, index) => path.getPointAtLength(length * (index + 1)))
    .some(({x, y}) => steps.some(step => box.x + x > step.left + 1 && box.x + x < step.right - 1
      && box.y + y > step.top + 1 && box.y + y < step.bottom - 1));
})"""


def test_a_line_of_a_plan_runs_behind_no_step(page: Page, ui: Served, root: Root) -> None:
    needs: dict[str, list[str]] = {"a": [], "b": [], "c": ["a"], "d": ["c"], "e": ["d", "b", "a"]}
    steps = [step(name, "echo x", depends_on=names) for name, names in needs.items()]
    ended = carry_out(root, plan(*steps, base=None))
    page.goto(f"{ui.base}/tasks/{ended['task_id']}")
    page.until("document.querySelectorAll('a.step.completed').length === 5")
    assert page.js("document.querySelectorAll('.graph-all > svg path').length") == 5
    assert not page.js(HIDDEN)


def test_a_step_that_never_started_is_drawn_and_can_be_retried(
    page: Page, ui: Served, root: Root, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    later = step("later", "echo x", depends_on=["first"])
    ended = carry_out(root, plan(step("first", f"test -e {mark}"), later, base=None))
    page.goto(f"{ui.base}/tasks/{ended['task_id']}")
    page.until("document.querySelector('a.step.failed')?.textContent.includes('first')")
    page.until("document.querySelector('span.step')?.textContent.includes('not started')")
    page.click(".buttons .button", "Retry")
    page.click(".dialog .button.primary", "Retry")
    page.until(f"document.querySelector('.plan')?.textContent.includes('{ended['task_id']}')")
    assert page.js("location.pathname") != f"/tasks/{ended['task_id']}"


def test_a_branch_is_applied_once_the_tree_is_clean(
    page: Page, ui: Served, root: Root, tmp_path: Path
) -> None:
    page.forgive("409 (Conflict)")
    repository = Repository(tmp_path / "code", {"a.txt": "a"})
    base = {"repository": str(repository.path)}
    document = plan(step("new", "echo b > b.txt; echo made"), base=base)
    ended = carry_out(root, document)
    page.goto(f"{ui.base}/tasks/{ended['task_id']}")
    (repository.path / "a.txt").write_text("mine")
    page.click(".buttons .button", "Apply branch")
    page.click(".dialog .button.primary", "Apply")
    page.until("document.querySelector('.dialog-error')?.textContent.includes('not applied')")
    assert not (repository.path / "b.txt").exists()
    (repository.path / "a.txt").write_text("a")
    page.click(".dialog .button.primary", "Apply")
    page.sees("Applied the branch")
    assert (repository.path / "b.txt").read_text() == "b\n"


def test_a_task_is_exported_and_deleted(page: Page, ui: Served, root: Root) -> None:
    task = root.create_task()
    root.run(task, sh("echo fine", subagent_id="fine"))
    root.call("task.close", task=task, by="user")
    page.goto(f"{ui.base}/tasks/{task}")
    page.until("document.querySelector('.event[id]')")
    document = json.loads(saved(page, "Export JSON"))
    assert document["task"]["task_id"] == task
    assert [each["agentInstance"] for each in document["subagents"]] == ["fine"]
    assert [each["seq"] for each in document["events"]] == list(
        range(1, document["task"]["last_seq"] + 1)
    )
    page.click(".buttons .button", "Delete")
    page.click(".dialog-check", "")
    page.click(".dialog .button.danger", "Delete it")
    page.until("location.pathname === '/'")
    page.until("document.querySelector('h1')?.textContent === 'Tasks'")
    page.until(f"!document.querySelector('.task-link[href=\"/tasks/{task}\"]')")


def test_the_palette_leads_to_a_task(page: Page, ui: Served, root: Root) -> None:
    task = root.call("task.create", title="Needle in the palette")["task_id"]
    page.goto(f"{ui.base}/costs")
    page.until("document.querySelector('.palette-open')")
    # The page may be drawn a moment before it listens.
    page.until(
        "(dispatchEvent(new KeyboardEvent('keydown', {key: 'k', ctrlKey: true})),"
        " document.activeElement?.getAttribute('role') === 'combobox')"
    )
    page.until("document.querySelector('.palette li')")
    assert texts(page, ".palette li")[0] == "All tasks"
    page.write("needle in")
    page.until("document.querySelector('.palette li')?.textContent.startsWith('Needle')")
    page.press("Enter")
    page.until(f"location.pathname === '/tasks/{task}'")
    page.until("document.querySelector('h1')?.textContent === 'Needle in the palette'")
