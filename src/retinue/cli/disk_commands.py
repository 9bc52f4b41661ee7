"""The commands `retinue gc`, `backup` and `restore`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click

from retinue.cli import render
from retinue.cli.options import CliCommand, select_given, whole
from retinue.cli.steward_session import CliSession, get_cwd
from retinue.core.errors import BadInput

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
