"""The command line among other programs of a shell: pipes that close, folders that are not ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cli import BOUND_S, Cli
from support.roots import tree


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    (tmp_path / "project").mkdir()
    cli = Cli(tmp_path / "project")
    yield cli
    cli.run("steward", "stop", "--cancel")


def test_an_end_that_could_not_be_read_is_reported_again(cli: Cli) -> None:
    task = cli.task()
    cli.run("subagent", "spawn", task, "--id", "one", "--wait", "--", "true", code=None)
    with open("/dev/full", "w") as full:
        lost = subprocess.Popen(
            [sys.executable, "-m", "retinue", "subagent", "wait-any", task],
            **{"cwd": cli.folder, "env": cli.environment, "stdout": full},
            stderr=subprocess.DEVNULL,
        )
        assert lost.wait(BOUND_S) == 1
    shell = f"{sys.executable} -m retinue subagent wait-any {task} | true"
    subprocess.run(shell, shell=True, cwd=cli.folder, env=cli.environment, timeout=BOUND_S)
    assert "one" in cli.run("subagent", "wait-any", task, "--timeout-seconds", "0")
    cli.run("subagent", "wait-any", task, "--timeout-seconds", "0", code=4)


def test_a_reader_that_has_enough_hides_no_failure(cli: Cli) -> None:
    task = cli.task()
    words = f"subagent spawn {task} --wait --retries 0 -- sh -c 'sleep 0.3; exit 3'"
    shell = f"set -o pipefail; {sys.executable} -m retinue {words} | true"
    done = subprocess.run(
        ["bash", "-c", shell], cwd=cli.folder, env=cli.environment, timeout=BOUND_S
    )
    assert done.returncode == 1


@pytest.mark.parametrize("words", [("task", "list"), ("task", "create", "--title", "t")])
def test_a_folder_of_other_things_is_not_taken_for_a_root(
    cli: Cli, tmp_path: Path, words: tuple[str, ...]
) -> None:
    mine = tmp_path / "mine"
    (mine / "tasks").mkdir(parents=True, mode=0o755)
    (mine / "code.py").write_text("pass")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    other = tmp_path / "other"
    (other / "tasks" / "of-mine").mkdir(parents=True)
    before = tree(tmp_path)
    for folder in (mine, shared, other):
        cli.run("--root", str(folder), *words, code=None)
    assert tree(tmp_path) == before
    said = cli.json("--root", str(mine), "task", "create", "--title", "t", code=2)
    assert said["error"]["code"] == "bad_root" and "mine/.retinue" in said["error"]["hint"]


def test_a_project_given_as_root_gets_a_hint_to_its_root(cli: Cli) -> None:
    task = cli.task()
    said = cli.json("--root", str(cli.folder), "task", "show", task, code=3)
    assert said["error"]["message"].endswith(
        "is not a retinue root: no task was ever created in it"
    )
    assert f"--root {cli.root}" in said["error"]["hint"]


def test_a_new_tasks_id_is_all_that_is_printed(cli: Cli) -> None:
    made = cli.run("task", "create", "--title", "A task").split()
    assert len(made) == 1 and (cli.root / "tasks" / made[0]).is_dir()


@pytest.mark.requirement("R16", "R60")
def test_the_files_of_one_that_did_not_end_well_are_named(cli: Cli) -> None:
    task = cli.task()
    script = "seq -f file-%02g 20 | xargs touch; exit 3"
    words = ("--id", "a", "--retries", "0", "--wait", "--", "sh", "-c", script)
    shown = cli.run("subagent", "spawn", task, *words, code=1)
    names = ", ".join(f"file-{number:02}" for number in range(1, 13))
    assert shown.endswith(f"/agents/a/workspace\nfiles: {names} and 8 more\n")


def test_a_log_that_was_changed_is_restored_as_verify_says(cli: Cli) -> None:
    task = cli.task()
    log = cli.root / "tasks" / task / "events.jsonl"
    whole = log.read_text()
    log.write_text("?" + whole)
    told = cli.run("verify", code=6)
    assert f"{log}:1\n" in told and "'retinue verify --rebuild' restores the log" in told
    cli.run("steward", "stop")
    done = cli.run("verify", "--rebuild")
    assert "restored" in done and f"kept  {log}.before-rebuild-1\n" in done
    assert done.endswith("ok: database, logs and folders agree\n")
    assert log.read_text() == whole
