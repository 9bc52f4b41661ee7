"""Gates: where a blocked subagent waits for an answer."""

from __future__ import annotations

from typing import Any

import click

from retinue.doors.cli import render, views
from retinue.doors.cli.options import TASK, Verbs, gate_id, given
from retinue.doors.cli.session import Session

GATE = click.argument("gate", metavar="GATE", type=gate_id)


@click.group(cls=Verbs, example="retinue gate list site-1a2b3c")
def gate() -> None:
    """Answer the questions of blocked subagents."""


@gate.command("list", example="retinue gate list site-1a2b3c")
@TASK
@click.pass_obj
def list_(session: Session, task: str) -> None:
    """List a task's gates and what is asked at them."""
    session.answer(session.call("gate.list", task=task), _gates_view)


@gate.command(example='retinue gate approve site-1a2b3c bio-1 --answer "Yes, publish."')
@TASK
@GATE
@click.option("--answer", metavar="TEXT", help="What the subagent reads in its next attempt.")
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
    params = given([("reason", reason)])
    document = session.call("gate.reject", task=task, gate=gate, by="user", **params)
    session.answer(document, lambda it: views.subagents([it]))


def _gates_view(gates: list[dict[str, Any]]) -> str:
    if not gates:
        return "no gates: no subagent has asked anything"
    return render.table(
        ("GATE", "STATE", "SUBAGENT", "QUESTIONS"),
        [
            (each["gate_id"], each["state"], each["agentInstance"], "; ".join(each["questions"]))
            for each in gates
        ],
    )
