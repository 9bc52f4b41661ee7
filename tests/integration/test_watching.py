"""Watching through the steward: bounded pages, each event once, files where they are said to be."""

from __future__ import annotations

import http.client
import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retinue.formats.event_json import COPIES
from retinue.web.routes import ACTS, READS
from support.page import Served, served
from support.roots import Root, sh, until

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def ui(root: Root) -> Iterator[Served]:
    with served(root.path) as page:
        page.enter()
        yield page


class Stream:
    """An open stream of events, read as a browser reads it."""

    def __init__(self, ui: Served, path: str, **headers: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", ui.port, timeout=20)
        self._connection.request(
            "GET", path, headers={"Cookie": ui.cookie, "X-CSRF-Token": ui.word, **headers}
        )
        self.response = self._connection.getresponse()
        assert self.response.status == 200, self.response.read()
        assert self.response.headers["content-type"].startswith("text/event-stream")

    def take(self, count: int) -> list[dict[str, Any]]:
        """So many messages, each with its number as the stream gave it."""
        found: list[dict[str, Any]] = []
        seq = 0
        while len(found) < count:
            line = self.response.readline().decode()
            assert line, "the stream ended"
            if line.startswith("id: "):
                seq = int(line[4:])
            elif line.startswith("data: "):
                found.append(json.loads(line[6:]))
                assert found[-1]["seq"] == seq
        return found

    def rest(self) -> str:
        return self.response.read().decode()

    def close(self) -> None:
        self._connection.close()


def test_the_page_counts_each_subagent_once_and_agrees_with_the_command_line(
    root: Root, ui: Served
) -> None:
    task = root.create_task()
    root.run(task, sh("echo x"), sh("exit 1"))
    root.spawn(task, sh("sleep 60", subagent_id="gone"), sh("sleep 60", subagent_id="works"))
    root.call("subagent.cancel", task=task, subagent="gone", kill=True)
    (row,) = [each for each in ui.get("/api/tasks").json if each["task_id"] == task]
    ones = dict.fromkeys(("completed", "failed", "cancelled", "running"), 1)
    ones |= dict.fromkeys(("pending", "blocked", "waiting_for_merge"), 0)
    assert row["counts"] == ones | {"total": 4}
    assert (row["subagents"], row["places"], row["unclosed"]) == (4, 4, 1)
    assert row["outcome"] == root.call("task.show", task=task)["outcome"] == "running"
    root.call("task.cancel", task=task, kill=True)
    shown = ui.get(f"/api/tasks/{task}/overview").json
    assert shown["outcome"] == root.call("task.list", limit=1)[0]["outcome"] == "failed"
    assert shown["counts"]["cancelled"] == 2


def test_a_stream_goes_on_after_the_event_it_was_cut_at(ui: Served, root: Root, task: str) -> None:
    root.run(task, sh("echo 1"), sh("echo 2"))
    path = f"/api/tasks/{task}/events"
    first = Stream(ui, path)
    seen = first.take(5)
    first.close()
    second = Stream(ui, path, **{"Last-Event-ID": "5"})
    root.run(task, sh("echo 3"))
    root.call("task.close", task=task)
    last = root.call("look.task", task=task)["last_seq"]
    seen += second.take(last - 5)
    assert second.rest().strip() == "event: end\ndata: {}"
    until(lambda: len(root.events(task)) == last)
    recorded = root.events(task)
    for event in recorded:
        for copy in COPIES:  # contract and result have addresses of their own
            event["payload"].pop(copy, None)
    assert seen == recorded


def test_a_waiting_stream_hears_of_an_event_at_once(ui: Served, root: Root, task: str) -> None:
    known = root.call("look.task", task=task)["last_seq"]
    stream = Stream(ui, f"/api/tasks/{task}/events?since={known}")
    assert stream.response.readline() == b"retry: 1000\n"
    began = time.monotonic()
    root.spawn(task, sh("sleep 60"))
    assert stream.take(1)[0]["type"] == "agent.subagent_created"
    assert time.monotonic() - began < 5
    stream.close()


def test_an_unknown_task_has_no_stream(ui: Served) -> None:
    assert ui.get("/api/tasks/nothing/events").status == 404


def test_a_search_reads_only_so_many_events_at_a_time(root: Root, task: str) -> None:
    root.run(task, sh("echo 1", subagent_id="one"), sh("exit 3", subagent_id="two"))
    everything = root.call("look.search", task=task)
    assert [e["seq"] for e in everything["events"]] == sorted(
        (e["seq"] for e in root.events(task)), reverse=True
    )
    assert everything["before"] == 0
    of_two = root.call("look.search", task=task, subagent="TWO", kinds=["*failed*"], limit=1)
    (event,) = of_two["events"]
    assert event["agentInstance"] == "two" and of_two["before"] == event["seq"]
    older = root.call("look.search", task=task, subagent="two", before=of_two["before"], limit=1)
    assert older["events"][0]["seq"] < event["seq"]
    assert root.refusal("look.search", task=task, kinds="x").code == "invalid_request"


def test_timelines_show_how_the_time_was_spent(root: Root, task: str) -> None:
    script = 'test "$RETINUE_ATTEMPT" = 2 && echo ok || exit 3'
    root.run(task, sh(script, subagent_id="twice", max_retries=1), sh("exit 3", subagent_id="bad"))
    lanes = {lane["agentInstance"]: lane for lane in root.call("look.lanes", task=task)["lanes"]}
    working = [span for span in lanes["twice"]["spans"] if span["kind"] == "working"]
    assert [(span["attempt"], span["status"]) for span in working] == [
        (1, "error"),
        (2, "completed"),
    ]
    assert all(span["start"] <= span["end"] for span in lanes["twice"]["spans"])
    (failed,) = root.call("look.lanes", task=task, which="failed")["lanes"]
    assert failed["agentInstance"] == "bad"
    assert root.call("look.lanes", task=task, which="open")["lanes"] == []
    assert root.call("look.lanes", task=task, first=1)["lanes"] == [lanes["bad"]]
    counts = root.call("look.task", task=task)["counts"]
    assert (counts["total"], counts["completed"], counts["failed"]) == (2, 1, 1)


def test_output_is_read_from_its_end_and_by_attempt(root: Root, task: str) -> None:
    script = 'seq 20000; echo "attempt $RETINUE_ATTEMPT"; test "$RETINUE_ATTEMPT" = 2'
    root.run(task, sh(script, subagent_id="prints", max_retries=1))
    about = {"task": task, "subagent": "prints"}
    newest = root.call("look.output", **about, bytes=100)
    assert newest["cut"] and newest["text"].endswith("attempt 2\n") and len(newest["text"]) == 100
    earlier = root.call("look.output", **about, attempt=1)
    assert earlier["text"].endswith("attempt 1\n")
    assert root.call("look.output", **about, stream="stderr") == {"text": "", "cut": False}
    assert root.refusal("look.output", **about, stream="../x").code == "invalid_request"


def test_each_result_names_the_folder_of_its_own_logs(root: Root, task: str) -> None:
    script = (
        'echo "attempt $RETINUE_ATTEMPT"; test "$RETINUE_ATTEMPT" = 2 && exit 3;'
        'echo half > "$RETINUE_ANSWER"; echo \'{"status": "failed"}\' > "$RETINUE_FINAL"; exit 3'
    )
    (result,) = root.run(task, sh(script, subagent_id="logged", max_retries=1))
    folder = root.path / "tasks" / task / "agents" / "logged"
    shown = root.call("subagent.show", task=task, subagent="logged")
    attempts = [attempt["result"] for attempt in shown["attempts"]]
    told = (folder / "runtime" / "attempts.jsonl").read_text().splitlines()
    for each in (attempts, [json.loads(line) for line in told]):
        said = [Path(one["log_path"], "stdout.log").read_text() for one in each]
        assert said == ["attempt 1\n", "attempt 2\n"]
    assert result["answer"] == "half", "the first attempt is the better one"
    assert result["log_path"] == attempts[0]["log_path"]


def test_the_server_is_idle_without_viewers_and_ends_on_request(root: Root) -> None:
    with served(root.path) as quiet:
        quiet.enter()
        status = Path(f"/proc/{quiet.process.pid}/status")

        def switches() -> int:
            text = status.read_text()
            return int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0])

        before = switches()
        time.sleep(1.5)  # what is measured is that nothing happens
        assert switches() - before <= 3
        began = time.monotonic()
        quiet.process.send_signal(signal.SIGINT)
        assert quiet.process.wait(10) == 130
        assert time.monotonic() - began < 5


@pytest.mark.requirement("R252")
def test_progress_is_where_the_documents_say(root: Root, task: str) -> None:
    script = 'echo {} > "$RETINUE_LOGS/status.json"; echo ok'
    root.run(task, sh(script, subagent_id="one"))
    text = (DOCS / "how-to" / "watch.md").read_text()
    named = re.findall(r"^\| [^|]+ \| `(tasks/[^`]+)` \|$", text, re.MULTILINE)
    assert {name.rpartition("/")[2] for name in named} >= {"status.json", "metrics_summary.json"}
    for name in named:
        path = root.path / name.replace("TASK", task).replace("ID", "one")
        until(path.is_file)
    assert "`retinue subagent list TASK --json`" in text


def test_every_address_is_documented_and_no_other() -> None:
    text = (DOCS / "reference" / "page.md").read_text()
    named = set(re.findall(r"^\| `(/api/[^`]+)` \|", text, re.MULTILINE))
    calls = {f"/api{path}" for path in (*READS, *ACTS)}
    streams = {"/api/tasks/{task}/events", "/api/tasks/{task}/subagents/{subagent}/live"}
    assert named == {*calls, *streams, "/api/session", "/api/changes"}
