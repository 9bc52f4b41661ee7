"""What a person is told of, decides and compares on the page, in a real browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from e2e.test_page import ASKS, texts
from e2e.test_page_runs import write_into
from integration.test_within import CLI, SEEN
from support.browser import Browser, Page
from support.cli import Cli
from support.page import Served, served
from support.repositories import Repository, plan, step
from support.roots import CONFIG, Root, command, sh

# A stand-in for the browser's own notifications, of a page that is not looked at.
IN_BACKGROUND = """
window.told = [];
window.Notification = class {
  static permission = 'granted';
  static async requestPermission() { return 'granted'; }
  constructor(title, { body }) { window.told.push(`${title}: ${body}`); }
};
Object.defineProperty(document, 'hidden', { get: () => window.hides === true });
"""


def start_review(root: Root, folder: Path) -> Any:
    repository = Repository(folder / "code", {"a.txt": "a"})
    document = plan(
        step("new", "echo b > b.txt; echo made", approve=True),
        base={"repository": str(repository.path)},
    )
    return root.call("run.start", plan_text=document)["task_id"]


def test_a_page_in_the_background_tells_of_questions_and_ends(
    page: Page, ui: Served, root: Root, task: str
) -> None:
    page.call("Page.addScriptToEvaluateOnNewDocument", source=IN_BACKGROUND)
    page.goto(ui.base)
    page.click(".notify", "Notify me")
    page.until("document.querySelector('.notify').getAttribute('aria-pressed') === 'true'")
    page.goto(f"{ui.base}/costs")
    page.until("document.querySelector('h1') && Boolean(navigator.locks)")
    page.until("performance.getEntriesByType('resource').some(e => e.name.includes('/api/gates'))")
    page.js("window.hides = true; document.dispatchEvent(new Event('visibilitychange')); 0")
    root.spawn(task, sh(ASKS, subagent_id="asks"))
    page.until("window.told.some(said => said === 'asks asks: Publish it?')")
    root.call("subagent.cancel", task=task, subagent="asks", by="user")
    page.until("window.told.some(said => said.includes(' ended: 1 cancelled'))")
    page.js("localStorage.removeItem('retinue.notify')")


def test_output_is_approved_where_all_tasks_are_listed(
    page: Page, ui: Served, root: Root, tmp_path: Path
) -> None:
    task = start_review(root, tmp_path)
    page.goto(ui.base)
    page.until(f"document.querySelector('.gates a[href=\"/tasks/{task}\"]')")
    page.until("/^\\(\\d+ waiting/.test(document.title)")
    page.click(".gates .button", "Approve")
    page.click(".dialog .button.primary", "Approve")
    page.until("document.querySelector('.toast').textContent === 'Approved the output of new'")
    ended = root.call("run.wait", task=task)
    assert ended["status"] == "completed"
    page.until(f"!document.querySelector('.gates a[href=\"/tasks/{task}\"]')")


def test_a_review_shows_its_changes_and_is_rejected_with_a_reason(
    page: Page, ui: Served, root: Root, tmp_path: Path
) -> None:
    task = start_review(root, tmp_path)
    page.goto(f"{ui.base}/tasks/{task}")
    page.click(".gates .button", "See changes")
    page.until("document.querySelector('.patch-file')?.textContent.includes('b.txt')")
    page.click(".gates .button", "Reject")
    write_into(page, "#dialog-field", "too short")
    page.click(".dialog .button.danger", "Reject")
    page.sees("review rejected")
    assert root.call("run.wait", task=task)["status"] == "failed"


def test_a_subagent_is_added_to_an_open_task(page: Page, ui: Served, root: Root, task: str) -> None:
    page.forgive("400 (Bad Request)")
    page.goto(f"{ui.base}/tasks/{task}")
    page.click(".buttons .button", "Add a subagent")
    write_into(page, "#start-command", "echo from the page | tee note.md")
    write_into(page, "#start-id", "no id at all")
    page.click(".dialog .button.primary", "Start")
    page.until("document.querySelector('.dialog-error')?.textContent")
    write_into(page, "#start-id", "added")
    page.click(".dialog .button.primary", "Start")
    page.until(f"location.pathname === '/tasks/{task}/subagents/added'")
    page.sees("from the page")
    page.until("document.querySelector('.ran').textContent.startsWith('sh -c ')")
    page.click(".tabs button", "Files")
    page.click(".file", "note.md")
    page.until("document.querySelector('.file-text .markdown')?.textContent === 'from the page'")


def test_a_subagent_is_started_with_a_task_of_its_own(page: Page, ui: Served, root: Root) -> None:
    page.goto(f"{ui.base}/?start=subagent")
    write_into(page, "#start-title", "Made on the page")
    write_into(page, "#start-command", "echo alone")
    page.click(".dialog .button.primary", "Start")
    page.until("location.pathname.includes('/subagents/')")
    page.sees("alone")
    assert "Made on the page" in [each["title"] for each in root.call("task.list")]


def test_attempts_are_compared_line_by_line(page: Page, ui: Served, root: Root, task: str) -> None:
    script = 'echo same; echo "try $RETINUE_ATTEMPT"; exit 1'
    root.run(task, sh(script, subagent_id="tries", max_retries=2))
    page.goto(f"{ui.base}/tasks/{task}/subagents/tries?tab=attempts")
    page.until("document.querySelectorAll('.sides tr').length === 2")
    rows = "[...document.querySelectorAll('.sides tr')].map(row => [...row.cells].map(cell =>"
    assert page.js(f"{rows} cell.textContent))") == [["same", "same"], ["try 2", "try 3"]]
    page.js(
        "(select => { select.value = '1'; select.dispatchEvent(new Event('change',"
        " {bubbles: true})); })(document.querySelector('.compared select'))"
    )
    page.until("document.querySelectorAll('.sides td')[2]?.textContent === 'try 1'")


def test_several_roots_are_on_one_page(
    browser: Browser, root: Root, cli: Cli, tmp_path: Path
) -> None:
    cli.run("task", "create", "--title", "Elsewhere", "--id", "elsewhere")
    cli.run("subagent", "spawn", "elsewhere", "--id", "far", "--wait", "--", "echo", "from afar")
    with served(root.path, "--also", str(cli.root.parent)) as ui:
        assert ui.get("/roots/1/tasks/elsewhere").status == 401
        assert ui.get("/api/roots/1/tasks").status == 401
        ui.enter()
        assert ui.get("/api/roots/1/tasks", X_CSRF_Token=None).status == 403
        assert ui.get("/api/roots/2/tasks").status == 404
        page = browser.page()
        page.admit(ui.base, ui.cookie, ui.word)
        page.goto(ui.base)
        page.click(".roots a", str(cli.root))
        page.until("location.pathname === '/roots/1/'")
        page.click(".task-link", "Elsewhere")
        page.until("location.pathname === '/roots/1/tasks/elsewhere'")
        page.click(".sub-title a", "far")
        page.sees("from afar")
        page.until("document.querySelector('.link').classList.contains('live')")
        page.click(".buttons .button", "Continue")
        page.click("#dialog-field")
        page.write("Once more")
        page.click("dialog .button", "Continue")
        page.until("document.querySelector('.toast').textContent.startsWith('Continued far')")
        page.click(".brand")
        page.until("location.pathname === '/roots/1/'")
        page.js(
            "(select => { select.value = ''; select.dispatchEvent(new Event('change',"
            " {bubbles: true})); })(document.querySelector('.root select'))"
        )
        page.until("location.pathname === '/' && document.querySelector('.roots a')")
        assert not page.complaints()
        page.close()


def test_children_stand_below_their_parents(page: Page, ui: Served, root: Root) -> None:
    text = CONFIG.format(limit=5) + f"    subagent_context_roots: {json.dumps(SEEN)}\n"
    task = str(root.call("task.create", title="t", config_text=text)["task_id"])

    def make_parent(name: str) -> dict[str, Any]:
        spawn = f"{CLI} subagent spawn $RETINUE_TASK_ID --id {name}-child --wait -- echo x"
        brief = command("/bin/sh", "-c", spawn, subagent_id=name, max_delegation_depth=1)
        return brief | {"context_paths": SEEN}

    root.run(task, make_parent("first"), make_parent("second"), cwd=str(root.path.parent))
    page.goto(f"{ui.base}/tasks/{task}")
    page.until("document.querySelectorAll('.sub-title a').length === 4")
    expected = ["first", "first-child", "second", "second-child"]
    assert texts(page, ".sub-title a") == expected
    assert texts(page, ".lane[href] .lane-name > span:nth-child(2)") == expected
