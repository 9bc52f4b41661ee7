"""Plans at the shell: the example as its README says, and the exit codes."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from e2e.test_terminal import at_a_terminal
from support.cli import BLOCKS, BOUND_S, CONFIG, Cli
from support.repositories import Repository, plan, step
from support.roots import until

QUESTION = "Which colour is it to be, of the house, of its fence and of the door to the garden?"
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "plan"


def test_what_is_copied_into_the_project_can_be_read_as_other_files_of_it(cli: Cli) -> None:
    script = "mkdir d; echo 1 > d/f; echo 2 > d/g; chmod +x d/g; echo x"
    text = plan(step("one", script, integration="copy", destination="out/a/b"), base=None)
    (cli.folder / "plan.yaml").write_text(text)
    assert cli.json("run", "--plan", "plan.yaml")["status"] == "completed"
    out = cli.folder / "out"
    modes = {str(each.relative_to(out)): each.stat().st_mode & 0o777 for each in out.rglob("*")}
    folders = dict.fromkeys(("a", "a/b", "a/b/d"), 0o755)
    assert modes == {**folders, "a/b/d/f": 0o644, "a/b/d/g": 0o755}
    assert out.stat().st_mode & 0o777 == 0o755


def test_where_the_work_of_a_failed_step_is_stands_below_it(cli: Cli) -> None:
    (cli.folder / "plan.yaml").write_text(plan(step("one", "echo half; exit 3"), base=None))
    shown = cli.run("run", "--plan", "plan.yaml", code=1)
    printed = r"  output:\n    \| \[stdout\]\n    \| half\n"
    place = r"  workspace: /.*/agents/one/workspace\n"
    assert re.search(rf"exited with code 3\n{printed}{place}", shown)


def test_what_should_be_known_of_a_step_stands_below_it(cli: Cli) -> None:
    script = 'echo "{" > "$RETINUE_LOGS/status.json"; echo done'
    (cli.folder / "plan.yaml").write_text(plan(step("one", script), base=None))
    shown = cli.run("run", "--plan", "plan.yaml")
    assert re.search(r"^one  result: completed\n  warning: .*status.json.*\n", shown), shown


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
    assert (
        "applied to the checked-out branch" in shown
        and "show the changes with: git -C site log" in shown
    )
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


@pytest.mark.requirement("R14", "R15")
def test_the_workspace_of_a_step_that_failed_is_named_wherever_its_end_is_told(cli: Cli) -> None:
    (cli.folder / "p.yaml").write_text(
        'goal: g\nsteps: [{id: bad, retries: 0, command: [sh, -c, "echo 1 > half; exit 3"]}]'
    )
    shown = cli.run("run", "--plan", "p.yaml", code=1)
    (workspace,) = re.findall("\n  workspace: (.*)\n  files: half\n", shown)
    assert Path(workspace, "half").read_text() == "1\n"
    joined = cli.run("task", "join", Path(workspace).parts[-4])
    assert f"\n  workspace: {workspace}\n  files: half\n" in joined


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_run_is_cancelled_when_its_command_is_killed_and_keeps_what_there_was(
    cli: Cli, number: signal.Signals
) -> None:
    Repository(cli.folder)
    (cli.folder / "c.yaml").write_text(CONFIG)
    steps = step("made", "echo x > x; echo done"), step("slow", "touch ready; sleep 60")
    (cli.folder / "p.yaml").write_text(plan(*steps))
    process = cli.start("run", "--plan", "p.yaml", "--config", "c.yaml")
    until(lambda: list(cli.root.glob("tasks/*/agents/slow/workspace/ready")))
    process.send_signal(number)
    process.communicate(timeout=BOUND_S)
    (task,) = cli.json("task", "list")
    told = cli.run("timeline", task["task_id"], "--follow")  # until it is closed
    assert "its caller is gone" in told
    statuses = [row["status"] for row in cli.json("subagent", "list", task["task_id"])]
    assert statuses == ["completed", "cancelled"]
    assert cli.json("subagent", "show", task["task_id"], "made")["close_reason"] == "merged"
    assert cli.json("verify")["ok"]


@pytest.fixture
def asking(cli: Cli) -> str:
    """The words of a run whose only step asks, and is done when it has an answer."""
    (cli.folder / "c.yaml").write_text(CONFIG)
    asks = step("ask", BLOCKS.replace("Which colour?", QUESTION), integration="none")
    (cli.folder / "p.yaml").write_text(plan(asks | {"description": "Ask"}, base=None))
    return f"run --plan {cli.folder}/p.yaml --config {cli.folder}/c.yaml"


def test_a_question_that_holds_a_plan_up_is_told_with_the_way_to_answer(
    cli: Cli, asking: str
) -> None:
    process = cli.start(*asking.split())
    assert process.stderr is not None
    told = process.stderr.readline()
    found = re.fullmatch(rf"ask asks: {re.escape(QUESTION)} \((.*)\)\n", told)
    assert found, told
    cli.run(*found[1].split()[1:-1], "blue")
    out, err = process.communicate(timeout=BOUND_S)
    assert (process.returncode, err) == (0, "") and "ask  result: completed" in out


def test_a_question_is_not_cut_at_a_terminal(cli: Cli, asking: str) -> None:
    def answer() -> None:
        found = until(lambda: cli.root.exists() and cli.json("gate", "list"))
        cli.run("gate", "approve", found[0]["task_id"], "ask-1", "--answer", "blue")

    person = threading.Thread(target=answer)
    person.start()
    said = at_a_terminal("--root", str(cli.root), *asking.split()).decode()
    person.join(BOUND_S)
    assert re.search(rf"ask asks: {re.escape(QUESTION)} \(retinue gate approve \S+ ask-1 ", said)


def test_a_run_says_where_its_output_is_and_what_git_kept_out_of_it(cli: Cli) -> None:
    repository = Repository(cli.folder)
    repository.write({".gitignore": "*.log\n"})
    repository.commit("ignore")
    (cli.folder / "c.yaml").write_text(CONFIG)
    logs = step("logs", "echo l > x.log; echo x", owns=["l"])
    (cli.folder / "p.yaml").write_text(plan(step("one", "echo 1 > o; echo x", owns=["o"]), logs))
    shown = cli.run("run", "--plan", "p.yaml", "--config", "c.yaml")
    assert re.search(r"one  result: completed  merged [0-9a-f]{12} on retinue/", shown)
    assert "logs  result: completed  no_changes (git ignores x.log)\n" in shown


def test_why_a_plan_failed_is_seen_later(cli: Cli) -> None:
    Repository(cli.folder)
    (cli.folder / "c.yaml").write_text(CONFIG)
    steps = (
        step("viol", "echo x > x; echo so far", owns=["y"]),
        step("later", "echo x", depends_on=["viol"]),
    )
    (cli.folder / "p.yaml").write_text(plan(*steps))
    end = cli.json("run", "--plan", "p.yaml", "--config", "c.yaml", code=1)
    task, error = end["task_id"], end["results"][0]["error"]
    never = "later  not started: viol, which it depends on, did not complete\n"
    joined = cli.run("task", "join", task)
    assert f"viol  failed\n  error: {error}\n  so far" in joined and never in joined
    assert never in cli.run("task", "show", task)
    assert "failed; not started: later" in cli.run("timeline", task)
    document = cli.json("task", "join", task)
    assert list(document["not_started"]) == ["later"] and document["summary"]["not_started"] == 1
    assert cli.json("task", "show", task)["not_started"] == document["not_started"]
    report = cli.root / "tasks" / task / "shared" / "reports" / "joined-summary.md"
    assert "## later: not started" in report.read_text()


def test_a_step_without_output_fails_with_a_hint(cli: Cli) -> None:
    Repository(cli.folder)
    (cli.folder / "c.yaml").write_text(CONFIG)
    (cli.folder / "p.yaml").write_text(plan(step("bio", "echo x > x", owns=["x"])))
    words = ("run", "--plan", "p.yaml", "--config", "c.yaml")
    told = "no output: a command has to print its answer, or write it to $RETINUE_ANSWER\n"
    assert f"  {told}" in cli.run(*words, code=1)
    end = cli.json(*words, code=1)
    assert end["results"][0]["error"] == "no output"
    assert f"  error: {told}" in cli.run("task", "join", end["task_id"])
    assert f"\nerror: {told}" in cli.run("subagent", "result", end["task_id"], "bio")
    report = cli.root / "tasks" / end["task_id"] / "shared" / "reports" / "joined-summary.md"
    assert f"Error: {told}" in report.read_text()


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


@pytest.mark.requirement("R99")
def test_where_a_report_lies_is_said_at_the_shell(cli: Cli) -> None:
    task = cli.task()
    words = ("--id", "one", "--report-path", "out/<idx>.md", "--wait", "--")
    cli.run(
        "subagent", "spawn", task, *words, "sh", "-c", "mkdir out; echo mine > out/0.md; echo x"
    )
    report = cli.workspace(task, "one").parent / "artifacts" / "step-0-result.md"
    assert report.read_text() == "mine\n"


def test_integrating_says_what_is_in_conflict_or_that_there_is_nothing(cli: Cli) -> None:
    Repository(cli.folder)
    task = cli.task()
    spawn = ("subagent", "spawn", task, "--wait", "--id")
    for name in ("one", "two"):
        words = ("sh", "-c", f"echo {name} > page.md; echo x")
        cli.run(*spawn, name, "--integration", "merge", "--", *words)
    cli.run("subagent", "integrate", task, "one")
    refused = cli.run("subagent", "integrate", task, "two", code=1)
    assert "output: merge_conflict" in refused and "error: conflict in page.md" in refused
    cli.run(*spawn, "three", "--", "echo", "x")
    assert cli.run("subagent", "integrate", task, "three").endswith("\nthere was nothing to join\n")
