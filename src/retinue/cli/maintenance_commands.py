"""The commands `retinue steward`, `doctor` and `verify`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from retinue.cli import render
from retinue.cli.options import CliCommand, CliGroup, parse_task, select_given
from retinue.cli.steward_session import CliSession
from retinue.cli.temporary_root import ask_anywhere, stop
from retinue.client.blocking_client import connect_if_running
from retinue.core.errors import IntegrityBroken
from retinue.formats.steward_protocol import ANOTHER
from retinue.version import VERSION

NO_ROOT = "'retinue task create' and 'retinue run' create one"


@click.group(cls=CliGroup, example="retinue steward status")
def steward() -> None:
    """Run, show or stop the resident process of a root.

    Commands start the steward on demand. It exits after a minute without subagents and
    clients. If it is killed, the next steward takes over its subagents.
    """


@steward.command("run", example="retinue steward run")
@click.pass_obj
def run_steward(session: CliSession) -> int:
    """Run the steward in the foreground until Ctrl-C or SIGTERM; it does not exit when idle.

    For service managers and containers. Its log goes to standard error; RETINUE_LOG sets the
    level: debug, info or warning. Subagents continue when it is stopped.
    """
    from retinue.cli.service_commands import run_in_foreground

    return run_in_foreground(session)


@steward.command("status", example="retinue steward status --json")
@click.pass_obj
def show_steward_status(session: CliSession) -> None:
    """Show whether a steward is running. Does not start one. Always exits with 0."""
    held = connect_if_running(session.find_folder())
    if held is None:
        document: Any = {"running": False, "pid": None, "version": None, "subagents": {}}
    else:
        # The open connection keeps the steward from exiting for lack of clients.
        with held:
            document = session.call("steward.status") | {"client_version": VERSION}
            if document["version"] != VERSION:
                document["problem"] = (
                    f"the steward is retinue {document['version']} and this program is retinue "
                    f"{VERSION}, so it accepts no other command; {ANOTHER}"
                )
    session.answer(document, _format_steward)


@steward.command("stop", example="retinue steward stop --cancel")
@click.option("--cancel", is_flag=True, help="Cancel its subagents first; else they continue.")
@click.pass_obj
def stop_steward(session: CliSession, cancel: bool) -> None:
    """Stop the steward; the next command starts a new one.

    Its subagents continue and keep their deadlines. The next steward takes them over.
    """
    held = connect_if_running(session.find_folder())
    if held is None:
        document: Any = {"stopped": False, "running": False, "pid": None}
    else:
        with held:
            asked = select_given(cancel=cancel)
            document = stop(held, lambda: session.call("steward.stop", **asked))
    session.answer(document, lambda it: "stopped" if it["stopped"] else "no steward is running")


@click.command(
    cls=CliCommand,
    example="retinue doctor",
    exits="0 all checks passed\n1 a check failed; its line says what to do",
)
@click.pass_obj
def doctor(session: CliSession) -> int:
    """Check isolation, models and the root on this machine.

    Isolation is tested with a child process, models with a request to their providers. Needs
    no root and creates none.
    """
    document, rooted = ask_anywhere(session, "doctor")
    for check in document["checks"] if not rooted else ():
        if check["name"] == "root":
            check.update(_check_new_root(session.find_folder()))
    document["ok"] = all(check["ok"] for check in document["checks"])
    session.answer(document, _format_checks)
    return 0 if document["ok"] else 1


def _check_new_root(folder: Path) -> dict[str, Any]:
    """Return the check of a folder without a root: whether one can be created there."""
    from retinue.trust import can_be_used, make_untrusted_error

    if not can_be_used(folder, os.environ):
        refused = make_untrusted_error(folder)
        return {"ok": False, "detail": refused.message, "hint": refused.hint}
    if folder.is_dir():
        return {"detail": f"no task was ever created in {folder}: {NO_ROOT}"}
    place = next(filter(os.path.exists, folder.parents))
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        return {"detail": f"none here yet: {NO_ROOT}"}
    why = f"none here yet, and none can be created: {place} is not a folder that you can write to"
    return {"ok": False, "detail": why, "hint": "set another one with --root or RETINUE_ROOT"}


@click.command(
    cls=CliCommand,
    example="retinue verify\nretinue verify site-1a2b3c\nretinue verify --rebuild",
    exits="0 they agree\n6 they disagree; each problem is listed",
)
@click.argument("task", metavar="[TASK]", type=parse_task, required=False)
@click.option("--rebuild", is_flag=True, help="Rebuild the database from logs and folders.")
@click.pass_obj
def verify(session: CliSession, task: str | None, rebuild: bool) -> int:
    """Check that database, logs and folders agree, for one task or for all.

    Use --rebuild if the database is lost or damaged. It creates a new one from logs and folders,
    and keeps the old files beside it.
    """
    try:
        if rebuild:
            # In this process: a steward cannot start on a damaged database.
            from retinue.steward.maintenance import rebuild_root

            document = rebuild_root(session.find_folder())
        else:
            document = session.call("verify", **select_given(task=task))
    except IntegrityBroken as error:
        said = f"{error.message} ({error.hint})" if error.hint else error.message
        problem = {"kind": error.code, "where": str(session.find_folder()), "message": said}
        document = {"ok": False, "problems": [problem]}
    session.answer(document, _format_verification)
    return 0 if document["ok"] else IntegrityBroken.exit_code


def _format_steward(status: dict[str, Any]) -> str:
    if not status["running"]:
        return "no steward is running; the next command starts one"
    counts = ", ".join(f"{name} {number}" for name, number in status["subagents"].items())
    return render.format_facts(
        [
            ("steward", f"process {status['pid']}"),
            ("version", status["version"]),
            ("root", status.get("root")),
            ("subagents", counts),
            ("problem", status.get("problem")),
        ]
    )


def _format_checks(report: dict[str, Any]) -> str:
    checks = render.format_table(
        ("CHECK", "", "DETAIL"),
        [
            (each["name"], "ok" if each["ok"] else "failed", _format_detail(each))
            for each in report["checks"]
        ],
        paint=1,
        widest=1000,
    )
    isolation = render.format_facts(report["isolation"].items())
    return f"{checks}\n\nisolation\n{isolation}"


def _format_detail(check: dict[str, Any]) -> str:
    return f"{check['detail']} ({check['hint']})" if check.get("hint") else check["detail"]


def _format_verification(report: dict[str, Any]) -> str:
    lines = [
        f"{render.to_one_line(each['kind'])}  {render.to_one_line(each['where'])}\n"
        f"  {render.to_one_line(each['message'])}"
        for each in (*report.get("repaired", ()), *report["problems"])
    ]
    lines += [f"kept  {render.to_one_line(each)}" for each in report.get("kept", ())]
    if report["ok"]:
        lines.append("ok: database, logs and folders agree")
    return "\n".join(lines)
