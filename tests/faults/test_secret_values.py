"""Secrets whose value changes while a subagent has them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from retinue.workspaces.secret_values import WITHHELD
from support import roots
from support.roots import Root, sh, until

fresh = roots.fresh
OLD, NEW = "the-old-value", "the-new-value"
SCRIPT = (
    'echo "to the log: $T"; touch up; while ! [ -e go ]; do sleep 0.02; done; '
    'printf "answer with $T" > "$RETINUE_ANSWER"'
)


def run(root: Root, file: Path, *, kill: bool, value: str) -> str:
    """The answer of a command that had the old value."""
    file.write_text(OLD)
    task = root.create_task()
    root.spawn(task, sh(SCRIPT, subagent_id="it", secrets=[f"T=file:{file}"], redact=True))
    workspace = root.folder(task, "it") / "workspace"
    until(lambda: (workspace / "up").exists())
    if kill:
        root.kill()
    file.write_text(value)
    (workspace / "go").touch()
    root.call("subagent.wait_all", task=task, timeout_seconds=20)
    return str(root.call("subagent.result", task=task, subagent="it")["answer"])


def find_old(root: Root) -> set[str]:
    """The files that have the old value, but for the one that the command wrote."""
    root.stop()
    everything = [Path(top, name) for top, _, names in os.walk(root.path) for name in names]
    found = {str(path) for path in everything if path.is_file() and OLD in _read(path)}
    return {path for path in found if not path.endswith("full_logs/answer.txt")}


def _read(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")


@pytest.mark.parametrize(
    ("kill", "value", "answer"),
    [
        (False, NEW, "answer with [T redacted]"),
        (True, OLD, "answer with [T redacted]"),
        (True, NEW, WITHHELD),
    ],
    ids=["changed", "killed", "changed and killed"],
)
def test_a_value_that_a_command_had_is_never_shown(
    fresh: Root, tmp_path: Path, kill: bool, value: str, answer: str
) -> None:
    said = run(fresh, tmp_path / "token", kill=kill, value=value)
    assert said == answer
    assert find_old(fresh) == set()


def test_digests_that_are_gone_hide_what_a_command_said(fresh: Root, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(OLD)
    task = fresh.create_task()
    fresh.spawn(task, sh(SCRIPT, subagent_id="it", secrets=[f"T=file:{file}"], redact=True))
    workspace = fresh.folder(task, "it") / "workspace"
    until(lambda: (workspace / "up").exists())
    fresh.kill()
    kept = fresh.folder(task, "it") / "runtime" / "secrets.json"
    assert OLD not in kept.read_text()
    kept.write_text("[7, {")
    (workspace / "go").touch()
    fresh.call("subagent.wait_all", task=task, timeout_seconds=20)
    assert fresh.call("subagent.result", task=task, subagent="it")["answer"] == WITHHELD
