"""Looking after a root: its steward, what is in force, what is broken, what can go."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from retinue.domain.errors import IntegrityBroken
from retinue.doors.cli import render
from retinue.doors.cli.lending import ask_anywhere, stop
from retinue.doors.cli.options import Verb, Verbs, given, task_id
from retinue.doors.cli.session import Session
from retinue.steward.client import dial

NO_ROOT = "'retinue task create' makes one, as does 'retinue run'"


@click.group(cls=Verbs, example="retinue steward status")
def steward() -> None:
    """The resident process of a root: started on demand, gone when idle.

    Every command asks it, and starts it where none runs. It ends a minute after the last
    subagent and the last client; killed at any instant, the next one goes on where it was.
    """


@steward.command("status", example="retinue steward status --json")
@click.pass_obj
def steward_status(session: Session) -> None:
    """Show whether a steward runs; none is started for it. Exit code 0 either way."""
    held = dial(session.folder())
    if held is None:
        document: Any = {"running": False, "pid": None, "version": None, "subagents": {}}
    else:
        with held:  # while it is held, the steward does not end for want of clients
            document = session.call("steward.status")
    session.answer(document, _steward_view)


@steward.command("stop", example="retinue steward stop --cancel")
@click.option("--cancel", is_flag=True, help="End its subagents first; else they go on without it.")
@click.pass_obj
def steward_stop(session: Session, cancel: bool) -> None:
    """End the steward; the next command starts another.

    Its subagents go on and keep their own time: the next steward takes them up again.
    """
    held = dial(session.folder())
    if held is None:
        document: Any = {"stopped": False, "running": False, "pid": None}
    else:
        with held:
            asked = given(cancel=cancel)
            document = stop(held, lambda: session.call("steward.stop", **asked))
    session.answer(document, lambda it: "stopped" if it["stopped"] else "no steward runs here")


@click.command(
    cls=Verb,
    example="retinue doctor",
    exits="0 every check is well\n1 one is not; its line says what to do",
)
@click.pass_obj
def doctor(session: Session) -> int:
    """What subagents can rely on here, each point tried.

    Isolation is tried with a child, models by asking their providers. It needs no root, and
    makes none.
    """
    document, rooted = ask_anywhere(session, "doctor")
    for check in document["checks"] if not rooted else ():
        if check["name"] == "root":
            check.update(_without_root(session.folder()))
    document["ok"] = all(check["ok"] for check in document["checks"])
    session.answer(document, _doctor_view)
    return 0 if document["ok"] else 1


def _without_root(folder: Path) -> dict[str, Any]:
    """Whether one can be made there."""
    place = next(filter(os.path.exists, folder.parents))
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        return {"detail": f"none here yet: {NO_ROOT}"}
    why = f"none here yet, and none can be made: {place} is not a folder that you may write to"
    return {"ok": False, "detail": why, "hint": "name one of your own with --root or RETINUE_ROOT"}


@click.command(
    cls=Verb,
    example="retinue verify\nretinue verify site-1a2b3c\nretinue verify --rebuild",
    exits="0 all agree\n6 they do not; each problem is named",
)
@click.argument("task", metavar="[TASK]", type=task_id, required=False)
@click.option("--rebuild", is_flag=True, help="Make what is lost from what is intact.")
@click.pass_obj
def verify(session: Session, task: str | None, rebuild: bool) -> int:
    """Whether database, logs and folders agree, of one task or of all.

    --rebuild is for a database that is lost or damaged: a new one is made from logs and folders,
    and the old files are kept beside it.
    """
    try:
        if rebuild:
            from retinue.upkeep import rebuild_root

            document = rebuild_root(session.folder())
        else:
            document = session.call("verify", **given(task=task))
    except IntegrityBroken as error:
        said = f"{error.message} ({error.hint})" if error.hint else error.message
        problem = {"kind": error.code, "where": str(session.folder()), "message": said}
        document = {"ok": False, "problems": [problem]}
    session.answer(document, _verify_view)
    return 0 if document["ok"] else IntegrityBroken.exit_code


@click.command(cls=Verb, example="retinue gc")
@click.option("--force", is_flag=True, help="Also take work that was never joined.")
@click.pass_obj
def gc(session: Session, force: bool) -> None:
    """Remove what closed tasks no longer need.

    That is copies of what subagents were given to read, and workspaces that are empty or whose
    output was joined; with --force every workspace. It also takes what a killed steward
    left half done. Results, logs and events stay.
    """
    report = session.call("gc", **given(force=force))
    session.answer(report, lambda it: _gc_view(it, force))


def _steward_view(status: dict[str, Any]) -> str:
    if not status["running"]:
        return "no steward runs here; the next command starts one"
    counts = ", ".join(f"{name} {number}" for name, number in status["subagents"].items())
    return render.facts(
        [
            ("steward", f"process {status['pid']}"),
            ("version", status["version"]),
            ("root", status.get("root")),
            ("subagents", counts),
        ]
    )


def _doctor_view(report: dict[str, Any]) -> str:
    checks = render.table(
        ("CHECK", "", "DETAIL"),
        [
            (each["name"], "ok" if each["ok"] else "failed", _detail(each))
            for each in report["checks"]
        ],
        paint=1,
        widest=1000,
    )
    isolation = render.facts(report["isolation"].items())
    return f"{checks}\n\nisolation\n{isolation}"


def _detail(check: dict[str, Any]) -> str:
    return f"{check['detail']} ({check['hint']})" if check.get("hint") else check["detail"]


def _verify_view(report: dict[str, Any]) -> str:
    lines = [
        f"{render.one_line(each['kind'])}  {render.one_line(each['where'])}\n"
        f"  {render.one_line(each['message'])}"
        for each in (*report.get("repaired", ()), *report["problems"])
    ]
    lines += [f"kept  {render.one_line(each)}" for each in report.get("kept", ())]
    if report["ok"]:
        lines.append("ok: database, logs and folders agree")
    return "\n".join(lines)


def _gc_view(report: dict[str, Any], force: bool) -> str:
    lines = [f"removed  {render.one_line(each['path'])}" for each in report["removed"]]
    lines += [
        f"kept     {render.one_line(each['path'])}  ({render.one_line(each['reason'])})"
        for each in report["kept"]
    ]
    if report["kept"] and not force:
        lines.append("--force also takes work that was never joined")
    return "\n".join(lines) or "nothing to remove"
