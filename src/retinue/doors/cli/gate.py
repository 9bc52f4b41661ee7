"""Gates: where a blocked subagent waits for an answer."""

from __future__ import annotations

from typing import Any

import click

from retinue.doors.cli import render, views
from retinue.doors.cli.options import TASK, Verbs, gate_id, given, task_id
from retinue.doors.cli.session import Session

GATE = click.argument("gate", metavar="GATE", type=gate_id)


@click.group(cls=Verbs, example="retinue gate list")
def gate() -> None:
    """Answer the questions of blocked subagents."""


@gate.command("list", example="retinue gate list\nretinue gate list site-1a2b3c")
@click.argument("task", metavar="[TASK]", type=task_id, required=False)
@click.pass_obj
def list_(session: Session, task: str | None) -> None:
    """List the gates of a task; without TASK, the open ones of all."""
    found = session.call("gate.list", task=task) if task else session.listed("gate.list")
    session.answer(found, _gates_view)


@gate.command(example='retinue gate approve site-1a2b3c bio-1 --answer "Yes, publish."')
@TASK
@GATE
@click.option("--answer", metavar="TEXT", help="What it reads next; without it: approved.")
@click.pass_obj
def approve(session: Session, task: str, gate: str, answer: str | None) -> None:
    """Let a blocked subagent go on."""
    params = {} if answer is None else {"answer": answer}
    document = session.call("gate.approve", task=task, gate=gate, by="user", **params)
    session.answer(document, views.spawned)


@gate.command(example='retinue gate reject site-1a2b3c bio-1 --reason "not now"')
@TASK
@GATE
@click.option("--reason", default="", metavar="R", help="Why; it is recorded.")
@click.pass_obj
def reject(session: Session, task: str, gate: str, reason: str) -> None:
    """End a blocked subagent without an answer."""
    params = given(reason=reason)
    document = session.call("gate.reject", task=task, gate=gate, by="user", **params)
    session.answer(document, lambda it: views.subagents([it]))


def _gates_view(gates: list[dict[str, Any]]) -> str:
    if not gates:
        return "no gates: no subagent has asked anything that is open"
    columns = ("task_id", "gate_id", "state", "agentInstance")
    return render.table(
        ("TASK", "GATE", "STATE", "SUBAGENT", "QUESTIONS"),
        [(*(each[name] for name in columns), "; ".join(each["questions"])) for each in gates],
    )
