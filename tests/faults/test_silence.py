"""Processes that stand still: whoever waits for them is told, and cancelling has an end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from retinue.steward import client
from support.roots import BOUND_S, Root, holder, until


@pytest.mark.parametrize("words", [["task", "list"], ["steward", "status"], ["steward", "stop"]])
def test_who_waits_for_a_steward_that_stands_still_is_told_of_it(
    fresh: Root, words: list[str]
) -> None:
    pid = fresh.pid
    asked = [sys.executable, "-m", "retinue", "--root", str(fresh.path), *words]
    os.kill(pid, signal.SIGSTOP)
    try:
        with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            assert f"process {pid}, does not answer" in process.stderr.readline().decode()
            os.kill(pid, signal.SIGCONT)
            assert process.wait(BOUND_S) == 0
            assert process.stderr.read() == b""
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def test_who_waits_for_something_long_is_told_nothing(
    fresh: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "QUIET_SECONDS", 0.05)
    task, told = fresh.create_task(), list[str]()
    patient = client.Client(fresh.path, told.append)
    brief = {"argv": ["sh", "-c", "sleep 0.5; echo done"], "context_paths": []}
    patient.call("subagent.spawn", task=task, tasks=[brief], wait=True)
    patient.close()
    assert told == []


def test_a_steward_that_takes_too_long_to_start_is_not_said_to_have_ended(
    fresh: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "START_SECONDS", 0.0)
    error = client.start(fresh.path)
    assert error is not None and "is not ready after 0 seconds" in error.message
    assert "it goes on" in error.hint
    pid = until(lambda: holder(fresh.path))
    assert f"process {pid}," in error.message
