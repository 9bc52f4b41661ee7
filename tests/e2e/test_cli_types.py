"""Types and shipped configurations at the shell, as processes of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cli import BOUND_S, Cli

MINE = "orchestrator:\n  coordination:\n    subagent_types: {types}\n"
CLAUDE = """\
---
name: reviewer
description: Reviews code.
tools: Read, Grep
model: opus
---
You review.
"""


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def served(cli: Cli) -> Iterator[Cli]:
    yield cli
    cli.run("steward", "stop", "--cancel")


def marked(rows: list[dict[str, Any]], key: str = "active") -> list[str]:
    return [row["name"] for row in rows if row[key]]


def said(cli: Cli, *words: str) -> str:
    """Standard error of a command that went well."""
    process = cli.start(*words)
    _, err = process.communicate(timeout=BOUND_S)
    assert process.returncode == 0
    return err


@pytest.mark.requirement("R193", "R198")
def test_without_a_configuration_the_core_types_are_active(cli: Cli) -> None:
    rows = cli.json("types", "list")
    assert marked(rows) == ["explorer", "researcher", "evaluator"]
    assert [row["name"] for row in rows] == ["explorer", "researcher", "evaluator", "novelty"]
    assert not cli.root.exists()  # to look needs no steward


@pytest.mark.requirement("R194")
def test_the_configuration_selects_the_active_types(cli: Cli) -> None:
    (cli.folder / "c.yaml").write_text(MINE.format(types="[novelty, explorer]"))
    rows = cli.json("types", "list", "--config", "c.yaml")
    assert sorted(marked(rows)) == ["explorer", "novelty"]
    cli.root.mkdir()
    (cli.root / "config.yaml").write_text(MINE.format(types="[]"))
    assert marked(cli.json("types", "list")) == []


@pytest.mark.requirement("R196")
def test_an_unknown_name_in_the_configuration_warns_and_does_not_fail(cli: Cli) -> None:
    (cli.folder / "c.yaml").write_text(MINE.format(types="[explorer, nobody]"))
    words = ("types", "list", "--config", "c.yaml")
    assert marked(cli.json(*words)) == ["explorer"]
    assert said(cli, *words).startswith("warning: there is no subagent type 'nobody'; available: ")


@pytest.mark.requirement("R196")
def test_an_unknown_configured_type_is_reported(served: Cli) -> None:
    (served.folder / "c.yaml").write_text(MINE.format(types="[explorer, nobody]"))
    warning = "warning: there is no subagent type 'nobody'; available: "
    create = ("task", "create", "--title", "t", "--config", "c.yaml")
    assert said(served, *create, "--id", "one").startswith(warning)
    (told,) = served.json(*create, "--id", "two")["warnings"]
    assert f"warning: {told}\n".startswith(warning)
    spawn = ("subagent", "spawn", "one", "--wait", "--", "/bin/echo", "ok")
    assert said(served, *spawn).count(warning) == 1
    assert served.json(*spawn)["warnings"] == [told]


def test_a_new_type_is_had_by_name_and_never_written_over(cli: Cli) -> None:
    made = cli.json("types", "new", "reasoner")
    assert made["path"] == str(cli.folder / ".agent/subagent_types/reasoner/SUBAGENT.md")
    rows = cli.json("types", "list")
    assert "reasoner" not in marked(rows)
    assert marked(rows, "available") == ["explorer", "researcher", "evaluator", "reasoner"]
    assert cli.json("types", "show", "reasoner")["source"] == made["path"]
    before = Path(made["path"]).read_text()
    assert cli.json("types", "new", "reasoner", code=1)["error"]["code"] == "type_exists"
    assert Path(made["path"]).read_text() == before
    assert cli.json("types", "new", "../x", code=2)["error"]["code"] == "invalid_id"


def test_a_type_in_the_place_of_a_built_in_one_is_told(cli: Cli) -> None:
    assert "it replaces the built-in type" in cli.run("types", "new", "explorer")
    assert cli.json("types", "list")[0]["origin"] == "project"


def test_another_tools_definition_is_imported_and_what_is_dropped_is_named(cli: Cli) -> None:
    folder = cli.folder / ".claude" / "agents"
    folder.mkdir(parents=True)
    (folder / "reviewer.md").write_text(CLAUDE)
    shown = cli.run("types", "import", ".claude/agents/reviewer.md")
    assert "left out: tools, model" in shown
    again = cli.json("types", "import", ".claude/agents/reviewer.md", code=1)
    assert again["error"]["code"] == "type_exists"
    assert cli.json("types", "show", "reviewer")["instructions"] == "You review."


def test_an_unknown_type_is_refused_with_the_known_ones(cli: Cli) -> None:
    refused = cli.json("types", "show", "nobody", code=3)["error"]
    assert refused["code"] == "unknown_type" and "retinue types list" in refused["hint"]
    assert refused["message"].endswith("available: explorer, researcher, evaluator, novelty")


def test_a_broken_type_is_listed_with_its_reason_and_explained_when_asked_for(cli: Cli) -> None:
    made = Path(cli.json("types", "new", "reasoner")["path"])
    made.write_text(made.read_text().replace("skills:", "tools:"))
    (row,) = [row for row in cli.json("types", "list") if row["name"] == "reasoner"]
    assert row["error"]["code"] == "unknown_key"
    assert row["error"]["message"].startswith(f"{made}: line 6: unknown key tools")
    assert cli.json("types", "show", "reasoner", code=2)["error"]["code"] == "unknown_key"
    assert cli.json("types", "show", "explorer")["origin"] == "built-in"


@pytest.mark.requirement("R197")
def test_without_any_type_a_general_subagent_is_still_spawned(served: Cli) -> None:
    (served.folder / "c.yaml").write_text(
        MINE.format(types="[]") + "    subagent_runtime_mode: inherited\n"
    )
    assert marked(served.json("types", "list", "--config", "c.yaml"), "available") == []
    task = served.json("task", "create", "--title", "T", "--config", "c.yaml")["task_id"]
    done = served.json("subagent", "spawn", task, "--wait", "--", "echo", "hello")
    assert done["results"][0]["answer"].strip() == "hello"


def test_a_shipped_configuration_is_kept_by_its_task(served: Cli) -> None:
    made = served.json("task", "create", "--title", "T", "--config", "@demo")
    kept = served.json("task", "show", made["task_id"])["config"]
    assert kept["agents"][0]["backend"]["type"] == "local"
    assert kept["orchestrator"]["coordination"]["enable_subagents"] is True


def test_an_unknown_configuration_is_refused_before_a_steward_is_started(cli: Cli) -> None:
    refused = cli.json("task", "create", "--title", "T", "--config", "@demos", code=2)["error"]
    assert refused["code"] == "unknown_config"
    assert "@demo" in refused["hint"]
    assert not cli.root.exists()
