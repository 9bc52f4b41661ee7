"""What a failed command printed is part of its result, in every door."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

import retinue
from retinue.core.brief import Brief
from support.cli import Cli, cli
from support.repositories import Repository, carry_out, plan, step
from support.roots import CONFIG, Root, fresh, root, sh, task, until
from support.traces import is_over

__all__ = ["cli", "fresh", "root", "task"]

FAILS = "echo why; echo because >&2; exit 3"
PRINTED = "[stdout]\nwhy\n[stderr]\nbecause"
LIMIT = 64 * 1024


def test_both_streams_are_in_the_result(root: Root, task: str) -> None:
    (result,) = root.run(task, sh(FAILS, subagent_id="bad", max_retries=0))
    assert result["error_output"] == PRINTED
    folder = root.path / "tasks" / task / "agents" / "bad"
    assert json.loads((folder / "result.json").read_text())["error_output"] == PRINTED
    shown = root.call("subagent.show", task=task, subagent="bad")
    assert shown["result"]["error_output"] == PRINTED
    assert shown["attempts"][0]["result"]["error_output"] == PRINTED


@pytest.mark.parametrize(
    ("script", "status", "printed"),
    [
        ("echo why; exit 3", "error", "[stdout]\nwhy"),
        ("echo because >&2", "error", "[stderr]\nbecause"),
        ("echo half; exec sleep 60", "timeout", "[stdout]\nhalf"),
        ("printf 'a\\377\\0b'; kill -9 $$", "error", "[stdout]\na\ufffd\0b"),
        ('echo on its way; echo x > "$RETINUE_ANSWER"; exit 1', "completed_but_timeout", None),
        ("exit 3", "error", ""),
        ("echo fine; echo noise >&2", "completed", ""),
    ],
)
def test_only_one_with_an_error_has_its_output(
    root: Root, task: str, script: str, status: str, printed: str | None
) -> None:
    (result,) = root.run(task, sh(script, timeout_seconds=1, max_retries=0))
    assert result["status"] == status
    expected = "[stdout]\non its way" if printed is None else printed
    assert result.get("error_output", "") == expected


def test_long_output_is_cut_to_whole_lines_of_both_streams(root: Root, task: str) -> None:
    script = "seq -f 'out %06.0f ü' 20000; seq -f 'err %06.0f' 20000 >&2; exit 1"
    (result,) = root.run(task, sh(script, max_retries=0))
    printed = result["error_output"]
    assert LIMIT - 200 < len(printed.encode()) <= LIMIT
    lines = printed.split("\n")
    second = next(at for at, line in enumerate(lines) if line.startswith("[stderr, the last "))
    assert lines[0].startswith("[stdout, the last ")
    assert all(line.startswith("out ") and len(line) == 12 for line in lines[1:second])
    assert all(line.startswith("err ") and len(line) == 10 for line in lines[second + 1 :])
    assert (lines[second - 1], lines[-1]) == ("out 020000 ü", "err 020000")


def test_it_is_the_same_after_the_steward_was_killed(fresh: Root) -> None:
    name = fresh.create_task()
    (before,) = fresh.run(name, sh(FAILS, subagent_id="bad", max_retries=0))
    pid = int((fresh.path / "steward.lock").read_text())
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_over(pid))
    again = Root(fresh.path)
    assert again.call("subagent.result", task=name, subagent="bad") == before
    assert before["error_output"] == PRINTED


def test_programs_have_it_as_an_attribute(tmp_path: Path) -> None:
    async def scene() -> None:
        async with retinue.open(tmp_path / ".retinue") as held:
            made = await held.create_task(title="t", config=CONFIG.format(limit=2))
            batch = await made.run([Brief(argv=["sh", "-c", FAILS], id="bad")])
            assert batch.results[0].error_output == PRINTED
            assert (await made.result("bad")).error_output == PRINTED

    asyncio.run(scene())


def test_the_shell_quotes_its_last_lines(cli: Cli) -> None:
    name = cli.task()
    script = "seq 1 30; printf '\\033[31mred\\r\\n'; exit 3"
    words = ("--id", "bad", "--wait", "--", "sh", "-c", script)
    quoted = ["  | 30", "  | \\x1b[31mred"]
    for said in (
        cli.run("subagent", "spawn", name, *words, code=1),
        cli.run("subagent", "result", name, "bad"),
        cli.run("subagent", "show", name, "bad"),
    ):
        assert "\x1b" not in said and "output, without " in said
        lines = said.splitlines()
        at = lines.index(quoted[0])
        assert lines[at : at + 2] == quoted
    (cli.folder / "plan.yaml").write_text(plan(step("bad", script), base=None))
    assert f"  {quoted[1]}" in cli.run("run", "--plan", "plan.yaml", code=1)
    joined = cli.run("task", "join", name)
    assert quoted[1] in joined
    result = cli.json("subagent", "result", name, "bad")
    assert result["error_output"].endswith("\n30\n\x1b[31mred")


def test_a_plan_shows_the_output_of_a_failed_step_and_of_a_failed_check(fresh: Root) -> None:
    Repository(fresh.path.parent)
    text = plan(
        step("a", FAILS),
        step("b", "echo b > b; echo ok", integration="merge", verify=["sh", "-c", FAILS]),
        on_failure="continue",
    )
    end = carry_out(fresh, text, cwd=str(fresh.path.parent))
    printed = {each["subagent_id"]: each.get("error_output") for each in end["results"]}
    assert printed == {"a": PRINTED, "b": PRINTED}
