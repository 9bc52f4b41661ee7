"""What is gone, and what was never answered, is said by whatever still names it."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path

import retinue
from retinue.core.brief import Brief
from support.cli import BLOCKS, Cli, cli
from support.roots import CONFIG

__all__ = ["cli"]

GONE = "removed since, by 'retinue gc' or by hand"


def test_a_result_says_that_its_workspace_was_removed(cli: Cli) -> None:
    task = cli.task()
    script = "echo x > kept; echo ok"
    first = cli.json("subagent", "spawn", task, "--id", "a", "--wait", "--", "sh", "-c", script)
    cli.run("subagent", "continue", task, "a", "more", "--wait")
    (before,) = first["results"]
    cli.run("task", "close", task)
    assert cli.json("subagent", "result", task, "a") == before
    assert not any("workspace_removed" in row for row in cli.json("subagent", "list", task))
    cli.run("gc", "--force")
    assert not Path(before["workspace"]).exists()

    assert cli.json("subagent", "result", task, "a") == before | {"workspace_removed": True}
    assert cli.json("subagent", "result", task, "a-2")["workspace_removed"] is True
    shown = cli.json("subagent", "show", task, "a")
    assert shown["workspace_removed"] is True and shown["result"]["workspace_removed"] is True
    assert all(row["workspace_removed"] for row in cli.json("subagent", "list", task))
    joined = cli.json("task", "join", task)["subagents"]
    assert all(each["result"]["workspace_removed"] for each in joined)
    place = f"workspace: {before['workspace']} ({GONE})"
    assert place in cli.run("subagent", "result", task, "a")
    assert GONE in cli.run("subagent", "show", task, "a")
    assert cli.json("verify", task)["ok"] is True


def test_closing_a_task_names_its_unanswered_subagents(cli: Cli) -> None:
    task = cli.task()
    asks = ("--id", "asks", "--wait", "--", "sh", "-c", BLOCKS)
    cli.run("subagent", "spawn", task, "Paint", *asks, code=1)
    said = cli.run("task", "close", task)
    assert "asks was blocked and its questions were not answered: it is closed as failed" in said
    other = cli.task()
    cli.run("subagent", "spawn", other, "Paint", *asks, code=1)
    cli.run("subagent", "spawn", other, "--id", "fine", "--wait", "--", "echo", "ok")
    document = cli.json("task", "close", other)
    assert document["blocked_unresolved"] == ["asks"]
    assert document["warnings"][0].startswith("asks was blocked")
    assert "blocked_unresolved" not in cli.json("task", "close", other), "it is closed already"


def test_closing_a_task_from_python_warns_of_unanswered_subagents(tmp_path: Path) -> None:
    async def scene() -> None:
        async with retinue.open(tmp_path / ".retinue") as held:
            task = await held.create_task(title="t", config=CONFIG.format(limit=2))
            await task.run([Brief("Paint", argv=["sh", "-c", BLOCKS], id="asks")])
            await task.close()

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        asyncio.run(scene())
    assert [str(each.message) for each in heard if "asks was blocked" in str(each.message)]
