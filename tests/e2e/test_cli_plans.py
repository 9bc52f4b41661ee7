"""Plans at the shell: the example as its README says, and the exit codes."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.test_cli import BOUND_S, CONFIG, Cli
from support.repositories import Repository, plan, step
from support.roots import until

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "plan"


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    cli = Cli(tmp_path)
    yield cli
    cli.run("steward", "stop", "--cancel")


@pytest.mark.requirement("R82", "R116")
def test_the_example_ends_in_a_merged_branch(cli: Cli) -> None:
    subprocess.run([EXAMPLE / "make.sh"], cwd=cli.folder, check=True, capture_output=True)
    shutil.copy(EXAMPLE / "plan.yaml", cli.folder)
    end = cli.json("run", "--plan", "plan.yaml")
    assert (end["status"], end["summary"]["completed"]) == ("completed", 4)
    log = ["git", "log", "--format=%(trailers:key=Sub-Agent-Id,valueonly)", end["branch"]]
    said = subprocess.run(log, cwd=cli.folder / "site", check=True, capture_output=True, text=True)
    assert said.stdout.split() == ["index", "pictures", "bio"]
    assert not (cli.folder / "site" / "index.md").exists()
    shown = cli.run("run", "--plan", "plan.yaml", "--apply")
    assert "applied to the branch" in shown and "look at it with: git -C site log" in shown
    assert (cli.folder / "site" / "index.md").exists()
    assert cli.json("verify")["ok"]


def test_exit_codes_say_how_a_run_ended(cli: Cli) -> None:
    Repository(cli.folder)
    (cli.folder / "c.yaml").write_text(CONFIG)
    words = ("run", "--plan", "p.yaml", "--config", "c.yaml")
    cli.run(*words, code=2)
    (cli.folder / "p.yaml").write_text(plan(step("bad", "exit 3"), step("next", "echo x")))
    end = cli.json(*words, code=1)
    assert (end["status"], list(end["not_started"])) == ("failed", ["next"])
    assert "next  not started: the run was stopped before" in cli.run(*words, code=1)
    (cli.folder / "p.yaml").write_text(plan(step("ok", "echo y > y; echo x")))
    started = cli.json(*words, "--background")
    assert started["status"] == "running"
    until(lambda: cli.json("task", "show", started["task_id"])["state"] == "closed")
    assert cli.json("task", "show", started["task_id"])["outcome"] == "succeeded"


def test_ctrl_c_cancels_the_run_and_shows_what_there_was(cli: Cli) -> None:
    Repository(cli.folder)
    (cli.folder / "c.yaml").write_text(CONFIG)
    (cli.folder / "p.yaml").write_text(plan(step("slow", "touch ready; sleep 60")))
    process = cli.start("run", "--plan", "p.yaml", "--config", "c.yaml", "--json")
    until(lambda: list(cli.root.glob("tasks/*/agents/slow/workspace/ready")))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=BOUND_S)
    assert process.returncode == 130, err
    assert '"cancelled"' in out


def test_output_is_integrated_at_the_shell(cli: Cli) -> None:
    repository = Repository(cli.folder)
    task = cli.task()
    spawn = ("subagent", "spawn", task, "--id", "one", "--integration", "merge", "--wait", "--")
    cli.run(*spawn, "sh", "-c", "echo 1 > one; echo x")
    assert "to be joined: one" in cli.run("subagent", "list", task)
    shown = cli.run("subagent", "integrate", task, "one")
    assert "output: merged " in shown and f"on retinue/{task}\n" in shown
    assert cli.json("subagent", "integrate", task, "one")["close_reason"] == "merged"
    assert "to be joined" not in cli.run("subagent", "list", task)
    assert "output: merged " in cli.run("subagent", "result", task, "one")
    assert repository.joined(f"retinue/{task}") == ["one"]
    assert cli.json("subagent", "integrate", task, "nobody", code=3)
