"""The commands `retinue steward`, `doctor`, `verify`, `gc`, `backup` and `restore`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click

from retinue.cli import render
from retinue.cli.options import CliCommand, CliGroup, parse_task, select_given, whole
from retinue.cli.steward_session import CliSession, get_cwd
from retinue.cli.temporary_root import ask_anywhere, stop
from retinue.client.blocking_client import connect_if_running
from retinue.core.errors import BadInput, IntegrityBroken
from retinue.formats.steward_protocol import REPLACE_STEWARD
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
                    f"{VERSION}, so it accepts no other command; {REPLACE_STEWARD}"
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


UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def _parse_age(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """Return the seconds of a duration such as `30d` or `12h`."""
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]{1,6})([smhdw])", text)
    if not found:
        raise BadInput(
            f"{param.opts[0]}: a duration such as 12h or 30d is needed, not {text[:40]!a}",
            code="invalid_timeout",
            hint="a whole number and s, m, h, d or w",
        )
    return float(int(found[1]) * UNITS[found[2]])


@click.command(
    cls=CliCommand,
    example="retinue gc --dry-run\nretinue gc --older-than 30d --keep 20 --tasks",
)
@click.option("--force", is_flag=True, help="Also remove work that was never joined.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed; remove nothing.")
@click.option(
    "--older-than",
    "older_than_seconds",
    metavar="AGE",
    callback=_parse_age,
    help="Only tasks without a change for this long: 90m, 12h, 30d, 4w.",
)
@click.option("--keep", metavar="N", callback=whole, help="Leave the newest N tasks alone.")
@click.option("--tasks", is_flag=True, help="Delete whole tasks, as 'task delete' does.")
@click.pass_obj
def gc(session: CliSession, /, force: bool, **options: Any) -> None:
    """Remove files that closed tasks no longer need, and say what that frees.

    These are copies of context paths, and workspaces that are empty or whose output was
    joined; with --force, all workspaces. Also removes unfinished files of a killed steward.
    Results, logs and events stay, unless --tasks deletes whole tasks.
    """
    report = session.call("gc", **select_given(force=force, **options))
    session.answer(report, lambda it: _format_gc(it, force))


@click.command(cls=CliCommand, example="retinue backup ~/site-backup.tar.gz")
@click.argument("file", metavar="FILE")
@click.pass_obj
def backup(session: CliSession, file: str) -> None:
    """Write a backup of the root to a new FILE, also while subagents work.

    It is a compressed tar archive: the database as of one moment, and the files of all tasks.
    Keys, tokens and sockets are left out.
    """
    target = os.path.join(get_cwd(), os.path.expanduser(file))
    report = session.call("backup", path=os.path.normpath(target))
    session.answer(report, _format_backup)


@click.command(cls=CliCommand, example="retinue restore ~/site-backup.tar.gz --root .retinue")
@click.argument("file", metavar="FILE")
@click.pass_obj
def restore(session: CliSession, file: str) -> None:
    """Make a new root from a backup FILE; the root must not exist.

    The new root has its own identity and adopts no process of the original. It is read-only
    until 'retinue trust' allows work in it, because a backup may come from elsewhere.
    """
    from retinue.steward.backup import restore_backup

    root = session.find_folder()
    if session.root is None and "RETINUE_ROOT" not in os.environ:
        # A root further up is not the one to restore.
        root = Path(get_cwd()) / root.name
    report = restore_backup(Path(os.path.expanduser(file)), root)
    session.answer(report, _format_restored)


def _format_gc(report: dict[str, Any], force: bool) -> str:
    dry = report["dry_run"]
    verb = "would remove" if dry else "removed"
    lines = [
        f"{verb}  {render.to_one_line(each['path'])}  ({render.format_bytes(each['bytes'])})"
        for each in report["removed"]
    ]
    lines += [
        f"{'kept':<{len(verb)}}  {render.to_one_line(each['path'])}"
        f"  ({render.to_one_line(each['reason'])})"
        for each in report["kept"]
    ]
    if report["kept"] and not force:
        lines.append("--force also removes work that was never joined")
    if not lines:
        return "nothing to remove"
    total = render.format_bytes(report["bytes"])
    return "\n".join([*lines, f"{'would free' if dry else 'freed'} {total}"])


def _format_backup(report: dict[str, Any]) -> str:
    size = render.format_bytes(report["bytes"])
    skipped = report["skipped"]
    left = f"; {skipped} files vanished or could not be read" if skipped else ""
    tasks = f"{report['tasks']} task{'' if report['tasks'] == 1 else 's'}"
    return f"{render.to_one_line(report['path'])}: {tasks}, {report['files']} files, {size}{left}"


def _format_restored(report: dict[str, Any]) -> str:
    root = render.to_one_line(report["root"])
    tasks = f"{report['tasks']} task{'' if report['tasks'] == 1 else 's'}"
    return (
        f"{root}: {tasks}, as of {render.to_one_line(report['created_at'])}\n"
        f"it is read-only; to work in it: retinue trust --root {root}"
    )
