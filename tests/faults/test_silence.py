"""Processes that stand still: whoever waits for them is told, and cancelling has an end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from retinue.client import blocking_client
from retinue.core.errors import StewardUnavailable
from support.roots import BOUND_S, CONFIG, Root, holder, sh, until
from support.traces import holdings


@pytest.mark.parametrize("words", [["task", "list"], ["steward", "status"], ["steward", "stop"]])
def test_a_client_reports_that_its_steward_does_not_answer(fresh: Root, words: list[str]) -> None:
    pid = fresh.pid
    asked = [sys.executable, "-m", "retinue", "--root", str(fresh.path), *words]
    os.kill(pid, signal.SIGSTOP)
    with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            said, _, _ = select.select([process.stderr], [], [], BOUND_S)
            assert said, "it was told nothing"
            assert f"process {pid}, which does not answer" in process.stderr.readline().decode()
        finally:
            os.kill(pid, signal.SIGCONT)
        assert process.wait(BOUND_S) == 0
        assert process.stderr.read() == b""


def test_a_long_wait_reports_nothing_about_the_steward(
    fresh: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_client, "QUIET_SECONDS", 0.05)
    task, told = fresh.create_task(), list[str]()
    patient = blocking_client.Client(fresh.path, told.append)
    brief = {"argv": ["sh", "-c", "sleep 0.5; echo done"], "context_paths": []}
    patient.call("subagent.spawn", task=task, tasks=[brief], wait=True)
    patient.close()
    assert told == []


def test_what_a_killed_steward_never_read_is_asked_of_the_next(
    fresh: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_client, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(blocking_client, "PROBE_SECONDS", 0.05)
    pid = fresh.pid

    def kill(_: str) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    os.kill(pid, signal.SIGSTOP)
    with closing(blocking_client.Client(fresh.path, kill)) as asking:
        task = asking.call("task.create", title="t", config_text=CONFIG.format(limit=2))["task_id"]
    assert [row["task_id"] for row in fresh.client().call("task.list")] == [task]
    assert fresh.client().call("steward.status")["pid"] != pid


@pytest.mark.parametrize("large", [False, True])
def test_what_could_not_be_sent_to_a_killed_steward_is_asked_of_the_next(
    fresh: Root, large: bool
) -> None:
    pid, words = fresh.pid, ""
    with closing(blocking_client.Client(fresh.path)) as asking:
        assert asking.call("task.list") == []
        if large:  # more than the kernel keeps for who does not read
            words = "\N{OWL}" * 100_000
            os.kill(pid, signal.SIGSTOP)
            threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
        else:
            os.kill(pid, signal.SIGKILL)
            until(lambda: not os.path.exists(f"/proc/{pid}/exe"))
        task = asking.call("task.create", title="t", description=words)["task_id"]
    assert [row["task_id"] for row in fresh.client().call("task.list")] == [task]


def test_a_connection_that_was_shut_down_sends_no_request(fresh: Root) -> None:
    with closing(blocking_client.Client(fresh.path)) as asking:
        asking.shut_down()
        with pytest.raises(StewardUnavailable):
            asking.call("task.create", title="t")
    assert fresh.client().call("task.list") == []


def test_a_steward_that_takes_too_long_to_start_is_not_said_to_have_ended(
    fresh: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_client, "START_SECONDS", 0.0)
    error = blocking_client.start(fresh.path)
    assert error is not None and "is not ready after 0 seconds" in error.message
    assert "it is still starting" in error.hint
    pid = until(lambda: holder(fresh.path))
    assert f"process {pid}," in error.message


@pytest.mark.parametrize("mode", ["inherited", "isolated"])
def test_cancelling_a_child_whose_first_process_stands_still_has_an_end(
    root: Root, mode: str
) -> None:
    text = CONFIG.format(limit=2).replace("inherited", mode)
    task = str(root.call("task.create", title="t", config_text=text)["task_id"])
    script = 'echo draft > "$RETINUE_ANSWER"; touch up; exec sleep 300'
    (name,) = root.spawn(task, sh(script, timeout_seconds=300))
    workspace = Path(root.rows(task)[name]["workspace"])
    until((workspace / "up").exists)
    (attempt,) = root.call("subagent.show", task=task, subagent=name)["attempts"]
    os.kill(attempt["pid"], signal.SIGSTOP)
    began = time.monotonic()
    result = root.call("subagent.cancel", task=task, subagent=name)["result"]
    assert time.monotonic() - began < 10
    assert (result["status"], result["answer"].strip()) == ("cancelled", "draft")
    assert not Path(f"/proc/{attempt['pid']}").exists()


def test_a_client_that_connects_while_an_idle_steward_exits_is_served(
    fresh: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_IDLE_SECONDS", "0.5")
    fresh.create_task()
    pid, held = fresh.pid, holdings(fresh.pid)
    fresh.release()
    until(lambda: holdings(pid) < held)  # from here on it is idle
    os.kill(pid, signal.SIGSTOP)
    due = time.monotonic() + 0.6
    late = fresh.client()
    until(lambda: time.monotonic() > due)
    os.kill(pid, signal.SIGCONT)
    assert late.call("steward.status")["pid"] == pid
