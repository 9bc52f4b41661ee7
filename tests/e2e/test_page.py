"""The page in a real browser, beside a real steward with real children."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from retinue.core.errors import NO_OUTPUT, add_hint_to_error
from retinue.formats.event_json import COPIES
from support.browser import Browser, Page
from support.models import asking, keyed, model_task
from support.page import Served, served
from support.repositories import Repository, carry_out, plan, step
from support.roots import Root, command, python, sh, until
from support.upstream import provider

TAGS = "<img src=x onerror='window.pwned=1'></script><a href='javascript:pwned=1'>x</a>"
HOSTILE = TAGS + "\x1b[31m\u202e"
SHOWN = TAGS + "\\u001b[31m"
ASKS = 'echo \'{"status":"blocked","questions":["Publish it?"]}\' > "$RETINUE_FINAL"; echo .'
SPENDS = """
import json, os
costs = {"total_input_tokens": 1234, "total_output_tokens": 567, "total_estimated_cost": 0.0421}
with open(os.environ["RETINUE_LOGS"] + "/status.json", "w") as file:
    json.dump({"costs": costs, "agents": {}, "coordination": {"phase": "presentation"}}, file)
print("done")
"""


def texts(page: Page, selector: str) -> list[str]:
    found = page.js(f"[...document.querySelectorAll('{selector}')].map(each => each.textContent)")
    return [str(each) for each in found]


def saved(page: Page, button: str) -> str:
    """The text of the file that a button saves; the browser stores it nowhere."""
    page.call("Page.setDownloadBehavior", behavior="deny")
    page.js(
        "(make => { URL.createObjectURL = blob => {"
        " blob.text().then(text => { window.saved = text; });"
        " return make.call(URL, blob); }; })(URL.createObjectURL)"
    )
    page.click(".button", button)
    return str(page.until("window.saved"))


def seqs(page: Page) -> list[int]:
    """The numbers of the events that are drawn, from the top."""
    found = page.js(
        "[...document.querySelectorAll('.event-seq')].map(each => [each.getBoundingClientRect().y,"
        " Number(each.textContent)]).sort((a, b) => a[0] - b[0]).map(pair => pair[1])"
    )
    return [int(each) for each in found]


def shows_all(page: Page, root: Root, task: str) -> None:
    """The list is every event of the log, newest first, each once."""
    last = len(root.events(task))
    page.until(f"document.querySelector('.events .badge').textContent === '{last}'")
    page.until(f"document.querySelector('#event-{last}')")
    drawn = seqs(page)
    assert drawn == list(range(last, last - len(drawn), -1))


def test_the_link_opens_the_page_and_works_once(browser: Browser, root: Root) -> None:
    with served(root.path) as fresh:
        page = browser.page()
        page.goto(fresh.link)
        page.until("location.pathname === '/' && document.querySelector('h1')")
        page.goto(fresh.link)
        page.sees("This link was used before")
        page.goto(fresh.base)
        page.until("document.querySelector('h1').textContent === 'Tasks'")
        page.close()


def test_a_token_opens_the_page_where_there_is_one(
    browser: Browser, root: Root, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("a secret of many characters")
    with served(root.path, "--token-file", str(tmp_path / "token")) as fresh:
        page = browser.page()
        page.goto(fresh.base)
        page.click("#token")
        page.write("a guess of many characters")
        page.press("Enter")
        page.sees("That is not the token")
        page.js("document.querySelector('#token').value = ''")
        page.write("a secret of many characters")
        page.press("Enter")
        page.until("document.querySelector('h1').textContent === 'Tasks'")
        page.close()


def test_a_new_task_appears_by_itself(page: Page, ui: Served, root: Root) -> None:
    page.goto(ui.base)
    page.until("document.querySelector('.link.live')")
    page.js("window.mark = 1")
    root.call("task.create", title="Made meanwhile")
    page.sees("Made meanwhile")
    assert page.js("window.mark") == 1


def test_a_task_is_told_as_it_happens(page: Page, ui: Served, root: Root, task: str) -> None:
    page.goto(f"{ui.base}/tasks/{task}")
    page.sees("No subagents yet")
    page.until("document.querySelector('.link.live')")
    (name,) = root.spawn(task, sh("read line < /dev/zero; sleep 60", subagent_id="busy"))
    page.until("document.querySelector('.lane .span.working.open')")
    page.until("document.querySelector('.lane').getAttribute('aria-label') === 'busy: running'")
    shows_all(page, root, task)
    root.call("subagent.cancel", task=task, subagent=name)
    page.until("document.querySelector('.lane').getAttribute('aria-label') === 'busy: cancelled'")
    page.until("document.querySelector('.lane .span.working.cancelled')")
    shows_all(page, root, task)


def test_nothing_moves_while_it_is_told(page: Page, ui: Served, root: Root, task: str) -> None:
    root.run(task, sh("echo 1"))
    page.goto(f"{ui.base}/tasks/{task}")
    page.until("document.querySelector('.lane .end')")
    place = "document.querySelector('.events').getBoundingClientRect().y"
    before = page.js(place)
    root.run(task, sh("echo 2"), sh("echo 3"))
    shows_all(page, root, task)
    assert page.js(place) == before


@pytest.mark.requirement("R81", "R125")
def test_an_event_opens_to_all_that_was_recorded(
    page: Page, ui: Served, root: Root, task: str
) -> None:
    root.run(task, sh("echo hello", subagent_id="one"))
    page.goto(f"{ui.base}/tasks/{task}")
    page.click(".event", "subagent created")
    shown = page.until("document.querySelector('.inspector .json')?.textContent")
    recorded = next(e for e in root.events(task) if e["type"] == "agent.subagent_created")
    for copy in COPIES:  # the page shows contract and result in places of their own
        recorded["payload"].pop(copy, None)
    assert json.loads(shown) == recorded
    page.press("ArrowDown")
    wanted = f"document.querySelector('.inspector').ariaLabel === 'Event {recorded['seq'] - 1}'"
    page.until(wanted)
    page.press("Escape")
    page.sees("Choose an event")


def test_events_are_filtered(page: Page, ui: Served, root: Root, task: str) -> None:
    root.run(task, sh("echo 1", subagent_id="good"), sh("exit 3", subagent_id="bad"))
    page.goto(f"{ui.base}/tasks/{task}?subagent=bad")
    page.until("document.querySelectorAll('.event-who').length > 3")
    assert set(texts(page, ".event-who")) == {"bad"}
    page.click(".filters .chip", "Problems")
    page.until("!document.querySelector('.events-list').textContent.includes('created')")
    page.until("document.querySelector('.event-type')?.textContent.includes('closed') === false")
    assert "failed" in texts(page, ".event-type")
    page.js("document.querySelector('#event-text').focus()")
    page.write("no such words")
    page.sees("No event matches")
    page.click("button", "Show all events")
    shows_all(page, root, task)


def test_cancelling_asks_once_and_says_who(page: Page, ui: Served, root: Root, task: str) -> None:
    slow = "echo draft > $RETINUE_ANSWER; touch ready; exec sleep 60"
    root.spawn(task, sh(slow, subagent_id="slow"))
    until((root.folder(task, "slow") / "workspace" / "ready").exists)
    page.goto(f"{ui.base}/tasks/{task}/subagents/slow")
    page.click(".buttons .button", "Cancel")
    page.sees("Cancel slow?")
    assert texts(page, ".buttons .button") == ["Cancel"]  # only a team can be sent a message
    page.click("dialog .button", "Back")
    page.until("!document.querySelector('dialog')")
    assert root.rows(task)["slow"]["status"] == "running"
    page.click(".buttons .button", "Cancel")
    page.click("#dialog-field")
    page.write("seen enough")
    page.click("dialog .button", "Cancel it")
    page.until("document.querySelector('h1 + .pill').textContent === 'cancelled'")
    page.sees("draft")
    asked = next(e for e in root.events(task) if e["type"] == "agent.cancel_requested")
    assert (asked["by"], asked["payload"]["reason"]) == ("user", "seen enough")


def test_a_command_without_output_gets_a_hint(
    page: Page, ui: Served, root: Root, task: str
) -> None:
    root.run(task, sh("true", subagent_id="silent"))
    page.goto(f"{ui.base}/tasks/{task}/subagents/silent")
    page.until("document.querySelector('.note.bad')")
    told = [*texts(page, ".note.bad"), *texts(page, ".attempts p")]
    assert told == [add_hint_to_error(NO_OUTPUT)] * 2


def test_what_a_failed_command_printed_is_on_the_page(
    page: Page, ui: Served, root: Root, task: str
) -> None:
    root.run(task, sh("echo '<b>why</b>'; exit 3", subagent_id="bad"))
    page.goto(f"{ui.base}/tasks/{task}/subagents/bad")
    page.sees("End of its output")
    assert texts(page, 'pre[aria-label="End of its output"]') == ["[stdout]\n<b>why</b>"]


def test_a_question_is_answered_on_the_page(page: Page, ui: Served, root: Root, task: str) -> None:
    script = f'grep -q "sh[i]p it" "$RETINUE_BRIEF" && {{ echo shipped; exit; }}; {ASKS}'
    root.spawn(task, sh(script, subagent_id="asks"))
    page.goto(f"{ui.base}/tasks/{task}")
    page.sees("Publish it?")
    elapsed = "Number.parseFloat(document.querySelectorAll('.stat dd')[2].textContent)"
    begun = page.js(elapsed)
    page.until(f"{elapsed} > {begun}")  # for whoever has to answer, time passes
    page.click(".gates .button", "Answer")
    page.until("document.querySelector('dialog .asked').textContent === 'Publish it?'")
    page.click("#dialog-field")
    page.write("Yes, ship it")
    page.click("dialog .button", "Answer")
    page.until("document.querySelector('.lane').getAttribute('aria-label').includes('completed')")
    assert root.call("subagent.result", task=task, subagent="asks")["answer"].strip() == "shipped"
    answered = next(e for e in root.events(task) if e["type"] == "gate.answered")
    assert answered["by"] == "user"


def test_the_successor_of_who_is_continued_can_be_followed(
    page: Page, ui: Served, root: Root, task: str
) -> None:
    root.run(task, sh("echo once", subagent_id="quick"))
    page.goto(f"{ui.base}/tasks/{task}/subagents/quick")
    page.click(".buttons .button", "Continue")
    page.click("#dialog-field")
    page.write("Once more")
    page.click("dialog .button", "Continue")
    page.until("document.querySelector('.toast').textContent.startsWith('Continued quick, as')")
    (successor,) = root.rows(task).keys() - {"quick"}
    page.click(".toast a", successor)
    page.until(f"document.querySelector('h1').textContent === '{successor}'")


def test_no_subagent_can_be_continued_on_the_page_of_a_closed_task(
    page: Page, ui: Served, root: Root, task: str
) -> None:
    root.run(task, sh("echo done", subagent_id="quick"))
    page.goto(f"{ui.base}/tasks/{task}/subagents/quick")
    page.until("document.querySelector('.buttons .button').textContent.includes('Continue')")
    asked = "performance.getEntriesByType('resource').filter(e => /quick([?]|$)/.test(e.name))"
    page.until(f"{asked}.length > 1")  # and again, once it follows: from here on it is told
    root.call("task.close", task=task)
    page.until("!document.querySelector('.buttons .button')")


def test_a_page_names_one_time_for_one_attempt(
    page: Page, ui: Served, root: Root, task: str
) -> None:
    """That of the command, which is much shorter than what was recorded around it."""
    (result,) = root.run(task, sh("echo done", subagent_id="quick"))
    page.goto(f"{ui.base}/tasks/{task}/subagents/quick")
    page.until("document.querySelector('.result-head') && document.querySelector('.attempts')")
    (elapsed,) = [each for each in texts(page, ".stat") if each.startswith("Elapsed")]
    shown = elapsed.removeprefix("Elapsed")
    assert shown == f"{round(result['execution_time_seconds'] * 1000)}ms"
    assert f"attempt 1 {shown}" in texts(page, ".own-spans li")
    assert texts(page, ".attempts .muted")[0].endswith(f", {shown}")
    assert texts(page, ".result-head .muted")[-1] == shown
    title = page.js("document.querySelector('.span.working').title")
    assert f"attempt 1, completed: {shown}," in title


def test_a_dialog_gives_the_focus_back(page: Page, ui: Served, root: Root, task: str) -> None:
    root.spawn(task, sh("sleep 60", subagent_id="slow"))
    page.goto(f"{ui.base}/tasks/{task}/subagents/slow")
    page.click(".buttons .button", "Cancel")
    page.until("document.activeElement.id === 'dialog-field'")
    page.press("Escape")
    page.until("!document.querySelector('dialog')")
    assert page.js("document.activeElement.textContent") == "Cancel"


@pytest.mark.requirement("R81", "R125")
def test_what_a_plan_ended_without_is_told_on_the_page(page: Page, ui: Served, root: Root) -> None:
    later = step("later", "echo x", depends_on=["first"])
    ended = carry_out(root, plan(step("first", "exit 3"), later, base=None))
    page.goto(f"{ui.base}/tasks/{ended['task_id']}")
    page.sees("Not started")
    (told,) = texts(page, ".never li")
    assert told == f"later {ended['not_started']['later']}"
    page.until("document.querySelector('.lane.none')?.textContent === 'laternot started'")
    dots = (
        "Object.fromEntries([...document.querySelectorAll('.event[id]')].map(row =>"
        " [row.querySelector('.event-type').textContent, row.querySelector('.dot').className]))"
    )
    page.until("document.querySelector('.event[id]')")
    shown = page.js(dots)
    assert shown["run ended"] == shown["subagent attempt"] == "dot failed"
    assert (shown["task closed"], shown["started"]) == ("dot pending", "dot running")
    page.click(".chip", "Lifecycle")
    page.until("document.querySelector('.events .badge').textContent.match(/^[0-9]+$/)")
    assert page.js(dots)["run ended"] == "dot failed"
    assert texts(page, ".stat dd")[:2] == ["1 / 2 1 failed", "0 1 not started"]
    page.goto(ui.base)
    row = f'.task-link[href="/tasks/{ended["task_id"]}"]'
    page.until(f"document.querySelector('{row}')?.textContent.includes('1 of 2')")


def test_what_is_wrong_with_an_edited_task_is_told_on_the_page(
    page: Page, ui: Served, root: Root, task: str
) -> None:
    file = root.task_folder(task) / "task.yaml"
    file.write_text(file.read_text().replace("maxConcurrentAgents", "maxConcurentAgents"))
    page.goto(f"{ui.base}/tasks/{task}")
    page.sees("maxConcurentAgents")


def test_what_a_child_wrote_is_only_text(page: Page, ui: Served, root: Root) -> None:
    task = root.call("task.create", title=HOSTILE, description=HOSTILE)["task_id"]
    script = (
        "import os\n"
        f"text = {HOSTILE!r}\n"
        "open(os.environ['RETINUE_ANSWER'], 'w').write(text)\n"
        "open('<b>' + chr(27) + '.html', 'w').write(text)\n"
        "print(text)"
    )
    brief = python(script, subagent_id="bad", title=HOSTILE)
    (result,) = root.run(task, brief)
    assert result["answer"] == HOSTILE
    page.goto(ui.base)
    page.sees(SHOWN)
    for path in (f"/tasks/{task}", f"/tasks/{task}/subagents/bad"):
        page.goto(ui.base + path)
        page.sees(SHOWN)
    for tab in ("Output", "Conversation", "Files", "Contract"):
        page.click("[role=tab]", tab)
        page.sees({"Files": "<b>\\u001b.html", "Contract": TAGS}.get(tab, SHOWN))
    page.click("[role=tab]", "Files")
    page.click("button.file")
    page.sees(SHOWN)
    assert page.js("window.pwned === undefined && !document.querySelector('img[src=x]')")
    assert not page.js("[...document.links].some(link => link.protocol === 'javascript:')")


@pytest.mark.requirement("R247", "R248")
def test_the_page_and_the_files_agree_to_the_token_and_the_cent(
    page: Page, ui: Served, root: Root, task: str
) -> None:
    root.run(task, *(python(SPENDS) for _ in range(3)))
    shown = root.call("task.show", task=task)["metrics"]
    path = root.task_folder(task) / "metrics_summary.json"
    until(lambda: json.loads(path.read_text()) == shown)
    sums = shown["subagents"]
    assert (sums["total_input_tokens"], sums["total_output_tokens"]) == (3702, 1701)
    assert ui.get(f"/api/tasks/{task}").json["metrics"] == shown
    assert ui.get(f"/api/tasks/{task}/overview").json["metrics"] == shown
    page.goto(f"{ui.base}/tasks/{task}")
    page.until("document.querySelector('[data-field=cost]')")
    assert texts(page, "[data-field]") == ["3,702 / 1,701", "$0.1263"]
    exact = page.js("document.querySelector('[data-field=cost]').closest('dd').title")
    assert exact == f"${shown['totals']['estimated_cost']}"


def test_costs_are_shown_by_model_task_and_subagent_down_to_each_request(
    browser: Browser, tmp_path: Path
) -> None:
    ask = "print([chat(model=name).status for name in ('gpt-4o-mini', 'un,known')])"
    with keyed(tmp_path / ".retinue") as root, provider() as upstream, served(root.path) as ui:
        task = model_task(root, upstream, more="    subagent_models: {models: ['*']}")
        root.run(task, asking(ask, subagent_id="asks"), sh("echo", subagent_id="none"))
        ui.enter()
        known = ui.get(f"/api/tasks/{task}/costs").json
        assert ui.get("/api/costs").json == known
        totals = root.call("task.show", task=task)["metrics"]["totals"]
        assert known["total"]["cost"] == pytest.approx(totals["estimated_cost"])
        assert known["total"]["input_tokens"] == totals["input_tokens"] > 0
        assert (known["total"]["requests"], known["total"]["unpriced"]) == (2, 1)
        assert {each["name"] for each in known["models"]} == {
            "openai_agent/gpt-4o-mini",
            "openai_agent/un,known",
        }
        assert ui.get("/api/costs?period=year").code == "invalid_request"
        page = browser.page()
        page.admit(ui.base, ui.cookie, ui.word)
        page.goto(ui.base)
        page.until("document.querySelectorAll('.task-number')[1]?.textContent.endsWith(' + ?')")
        page.click(".home-tools a", "Costs")
        page.until("document.querySelectorAll('.cost-cards .bars i').length")
        assert [each["name"] for each in known["subagents"]] == ["asks"]
        assert len(texts(page, '[aria-labelledby="by-model"] tbody tr')) == 2
        rows = list(csv.DictReader(io.StringIO(saved(page, "Save as CSV"))))
        assert [row["model"] for row in rows] == [
            "openai_agent/gpt-4o-mini",
            "openai_agent/un,known",
        ]
        assert {(row["task_id"], row["subagent_id"]) for row in rows} == {(task, "asks")}
        page.click('[aria-labelledby="by-task"] a')
        page.until(f"location.pathname === '/tasks/{task}/costs'")
        page.until("!document.querySelector('#by-task') && document.querySelector('#by-subagent')")
        page.click('[aria-labelledby="by-subagent"] a', "asks")
        page.until("document.querySelectorAll('.calls tbody tr').length === 2")
        took = texts(page, ".calls td:nth-child(4)")
        assert all(re.fullmatch(r"[\d.]+m?s", each) for each in took), took
        assert texts(page, ".calls td:last-child")[1] == "?"
        assert not page.complaints()
        page.close()


def test_what_is_not_there_is_said(page: Page, ui: Served, task: str) -> None:
    page.goto(f"{ui.base}/tasks/no-such-task")
    page.sees("no task 'no-such-task'")
    page.goto(f"{ui.base}/tasks/{task}/subagents/nobody")
    page.sees("no subagent 'nobody'")
    page.goto(f"{ui.base}/nothing")
    page.sees("There is no page at this address")
    page.forgive("404")


def test_home_shows_what_waits_for_a_person_what_runs_and_what_ended(
    page: Page, ui: Served, root: Root
) -> None:
    asks = root.call("task.create", title="Release notes")["task_id"]
    root.run(asks, sh(ASKS, subagent_id="writer"))
    busy = root.call("task.create", title="Long work")["task_id"]
    (name,) = root.spawn(busy, sh("read line < /dev/zero; sleep 60"))
    page.goto(ui.base)
    page.until("document.querySelector('.gates')?.textContent.includes('Publish it?')")
    running = "[...document.querySelectorAll('[aria-labelledby=running-title] .task-link')]"
    page.until(f"{running}.some(each => each.textContent.includes('Long work'))")
    page.until("/waiting.*running.*Tasks/.test(document.title)")
    page.click(".gates a")
    page.until("location.pathname.endsWith('/subagents/writer')")
    root.call("subagent.cancel", task=busy, subagent=name)


def test_home_finds_tasks_by_title_and_state(page: Page, ui: Served, root: Root) -> None:
    for number in range(3):
        root.call("task.create", title=f"Haystack {number}")
    root.call("task.create", title="The Needle")
    page.goto(ui.base)
    page.until("document.querySelectorAll('.task-row').length >= 4")
    page.click("input[type=search]")
    page.write("needle")
    page.until("document.querySelectorAll('.task-row').length === 1")
    assert texts(page, ".task-name strong") == ["The Needle"]
    page.until("location.search === '?text=needle'")
    page.click(".chip", "Failed")
    page.sees("No task matches")


ANSWER = "# Found\\n\\n- **two** bugs\\n- see `a.py`\\n\\n<b>not bold</b>"


def test_a_task_shows_its_subagents_with_their_first_words(
    page: Page, ui: Served, root: Root, task: str
) -> None:
    root.run(task, sh(f"printf '{ANSWER}'", subagent_id="scout"), sh("exit 3", subagent_id="bad"))
    page.goto(f"{ui.base}/tasks/{task}")
    page.until("document.querySelectorAll('.subagents .sub-title a').length === 2")
    assert texts(page, ".virtual-row .sub-answer") == ["Found", "exited with code 3"]
    page.click(".subagents .sub-title a", "scout")
    page.until("document.querySelector('.markdown .heading')?.textContent === 'Found'")
    assert texts(page, ".markdown li") == ["two bugs", "see a.py"]
    assert texts(page, ".markdown > p:last-child") == ["<b>not bold</b>"]
    page.click(".answer .chip", "Raw")
    page.until("document.querySelector('.answer pre')?.textContent.startsWith('# Found')")


TALK = [
    {"role": "user", "member": "ann", "content": "Look"},
    {"role": "assistant", "member": "ann", "content": "", "calls": [{"id": "1", "tool": "list"}]},
    {"role": "assistant", "member": "bob", "content": "", "calls": [{"id": "1", "tool": "read"}]},
    {"role": "tool", "member": "bob", "content": "refused: b", "call": {"id": "1", "tool": "read"}},
    {"role": "tool", "member": "ann", "content": "a.txt\nb.txt", "call": {"id": "1"}},
    {"role": "tool", "member": "ann", "content": "late", "call": {"id": "1"}},
]


def test_a_conversation_folds_what_a_tool_gave_back_into_its_call(
    page: Page, ui: Served, root: Root, task: str
) -> None:
    root.run(task, sh("echo ok", subagent_id="talks"))
    lines = [json.dumps(entry) for entry in TALK]
    (root.folder(task, "talks") / "conversation.jsonl").write_text("\n".join([*lines, ""]))
    page.goto(f"{ui.base}/tasks/{task}/subagents/talks?tab=conversation")
    page.until("document.querySelectorAll('.said-by').length === 4")
    assert texts(page, ".call summary") == ["calls list → a.txt", "calls read → refused: b"]
    assert texts(page, ".call .bad") == ["→ refused: b"]
    page.click(".chip", "bob")
    page.until("document.querySelectorAll('.said-by').length === 1")
    assert texts(page, ".said-head span") == ["bob"]


def test_a_script_with_quotes_is_shown_as_it_was_written(
    page: Page, ui: Served, root: Root, task: str
) -> None:
    root.run(task, sh("echo 'a b'", subagent_id="quotes"), command("echo", "a b"))
    page.goto(f"{ui.base}/tasks/{task}/subagents/quotes")
    page.until("document.querySelector('.ran')?.textContent === \"sh -c\\necho 'a b'\"")
    page.goto(f"{ui.base}/tasks/{task}/subagents/subagent-2")
    page.until("document.querySelector('.ran')?.textContent === \"echo 'a b'\"")


def test_changes_of_a_subagent_are_shown_by_file(
    page: Page, ui: Served, root: Root, tmp_path: Path
) -> None:
    repository = Repository(root.path.parent / "site")
    change = step("edit", "sed -i s/two/TWO/ a.txt; mkdir d; echo new > d/b.txt; echo done")
    ended = carry_out(root, plan(change, base={"repository": str(repository.path)}))
    page.goto(f"{ui.base}/tasks/{ended['task_id']}/subagents/edit?tab=files")
    page.until("document.querySelectorAll('.patch-file').length === 2")
    assert texts(page, ".patch-file > summary") == ["a.txt +1 -1", "d/b.txt +1 -0"]
    assert texts(page, ".patch .removed td") == ["2", "", "two"]
    assert texts(page, ".patch .added td")[:3] == ["", "2", "TWO"]
    page.click(".chip", "Side by side")
    page.until("document.querySelector('.sides .removed')?.textContent === 'two'")
    assert texts(page, ".sides .added")[0] == "TWO"
