"""Lists of subagents: what they leave out by default, and that they say so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import retinue
from retinue.core.brief import Brief
from support.cli import Cli, cli
from support.roots import CONFIG

__all__ = ["cli"]

CLOSED = 53
CUT = f"51 of {CLOSED + 1} subagents; --all shows the older closed ones"


def filled(folder: Path) -> str:
    """A task with so many closed subagents, and one that is open though it is the oldest."""

    async def fill() -> str:
        async with retinue.open(folder / ".retinue") as held:
            task = await held.create_task(title="many", config=CONFIG.format(limit=8))
            await task.run([Brief(argv=["echo", "ok"], id="open", close_on_completion=False)])
            briefs = [Brief(argv=["echo", "ok"], id=f"s{n}") for n in range(CLOSED)]
            await task.run(briefs, queue=True)
            assert len(await task.subagents()) == 51
            assert len(await task.subagents(limit=3)) == 4
            assert len(await task.subagents(limit=None)) == CLOSED + 1
            return task.id

    return asyncio.run(fill())


def said(cli: Cli, *words: str) -> tuple[str, str]:
    process = cli.start(*words)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    return out, err


def test_a_list_that_leaves_some_out_says_so(cli: Cli) -> None:
    task = filled(cli.folder)
    rows = cli.json("subagent", "list", task)
    names = [row["agentInstance"] for row in rows]
    assert names == ["open", *(f"s{n}" for n in range(3, CLOSED))], "the newest 50 closed"
    assert said(cli, "--json", "subagent", "list", task)[1] == f"note: {CUT}\n"

    out, err = said(cli, "subagent", "list", task)
    assert out.splitlines()[0] == CUT
    assert err == f"note: {CUT}\n"

    page = cli.json("subagent", "list", task, "--page")
    assert (page["total"], page["shown"], len(page["subagents"])) == (CLOSED + 1, 51, 51)
    assert said(cli, "--json", "subagent", "list", task, "--page")[1] == ""

    everyone = cli.json("subagent", "list", task, "--all")
    assert len(everyone) == CLOSED + 1
    out, err = said(cli, "subagent", "list", task, "--all")
    assert out.startswith("ID ") and err == ""
    few = cli.json("subagent", "list", task, "--page", "--limit", "2")
    assert (few["total"], few["shown"]) == (CLOSED + 1, 3)


def test_a_task_that_is_shown_without_all_of_its_subagents_says_so(cli: Cli) -> None:
    task = filled(cli.folder)
    shown = cli.json("task", "show", task)
    assert len(shown["subagents"]) == 51
    assert (shown["subagents_total"], shown["subagents_shown"]) == (CLOSED + 1, 51)
    out, err = said(cli, "task", "show", task)
    assert CUT in out.splitlines() and err == f"note: {CUT}\n"
    assert said(cli, "--json", "task", "show", task)[1] == f"note: {CUT}\n"
    whole = cli.json("task", "show", task, "--all")
    assert len(whole["subagents"]) == CLOSED + 1
    assert said(cli, "task", "show", task, "--all")[1] == ""
