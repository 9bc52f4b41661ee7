"""The `retinue gate` commands."""

from __future__ import annotations

from typing import Any

import click

from retinue.cli import render, tables
from retinue.cli.options import TASK, CliGroup, parse_gate_id, parse_task, select_given
from retinue.cli.steward_session import CliSession

GATE = click.argument("gate", metavar="GATE", type=parse_gate_id)


@click.group(cls=CliGroup, example="retinue gate list")
def gate() -> None:
    """Answer the questions of blocked subagents, and approve output before it is joined."""


@gate.command("list", example="retinue gate list\nretinue gate list site-1a2b3c")
@click.argument("task", metavar="[TASK]", type=parse_task, required=False)
@click.pass_obj
def list_(session: CliSession, task: str | None) -> None:
    """List the gates of a task; without TASK, the open gates of all tasks."""
    found = session.call("gate.list", task=task) if task else session.call_list("gate.list")
    session.answer(found, _format_gates)


@gate.command(example='retinue gate approve site-1a2b3c bio-1 --answer "Yes, publish."')
@TASK
@GATE
@click.option("--answer", metavar="TEXT", help="The answer. Default: approved.")
@click.pass_obj
def approve(session: CliSession, task: str, gate: str, answer: str | None) -> None:
    """Answer a blocked subagent, which then continues; in a review, let its output be joined."""
    params = {} if answer is None else {"answer": answer}
    document = session.call("gate.approve", task=task, gate=gate, by="user", **params)
    session.answer(document, tables.format_spawned)


@gate.command(example='retinue gate reject site-1a2b3c bio-1 --reason "not now"')
@TASK
@GATE
@click.option("--reason", default="", metavar="R", help="The reason, for the record.")
@click.pass_obj
def reject(session: CliSession, task: str, gate: str, reason: str) -> None:
    """Fail a blocked subagent without an answer; in a review, do not join its output."""
    params = select_given(reason=reason)
    document = session.call("gate.reject", task=task, gate=gate, by="user", **params)
    session.answer(document, lambda it: tables.format_subagents([it]))


def _format_gates(gates: list[dict[str, Any]]) -> str:
    if not gates:
        return "no gates: no subagent has an open question"
    columns = ("task_id", "gate_id", "state", "agentInstance")
    return render.format_table(
        ("TASK", "GATE", "STATE", "SUBAGENT", "QUESTIONS"),
        [(*(each[name] for name in columns), "; ".join(each["questions"])) for each in gates],
    )
