"""The `retinue trust` command: review a root, then allow it to run its content."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from retinue.cli import render
from retinue.cli.options import CliCommand
from retinue.cli.steward_session import CliSession, connect, get_cwd
from retinue.core.errors import BadInput, IntegrityBroken, NotFound

NOTHING: dict[str, Any] = {
    "subagents": [],
    "steps": [],
    "named": {"variables": [], "addresses": [], "commands": []},
}


@click.command(
    cls=CliCommand,
    example="retinue trust\nretinue trust --show ~/src/cloned-project\nretinue trust --remove",
)
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option("--show", is_flag=True, help="Only show what the root would run.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--remove", is_flag=True, help="Stop trusting the root.")
@click.pass_obj
def trust(session: CliSession, folder: Path | None, show: bool, yes: bool, remove: bool) -> None:
    """Trust a root that was cloned, unpacked, copied or restored.

    DIR is a .retinue folder, or a project with one; default: the nearest one upwards. Roots
    that you create are trusted. In any other root, only commands that read work: nothing is
    started or resumed, and its configuration is not used. Before it asks, this command shows
    which commands the root would run, and which variables and addresses its configuration names.

    The list of trusted roots is ~/.local/state/retinue/trusted. In a container or in CI, set
    RETINUE_TRUST=DIR:DIR to roots, or to folders that contain them, instead.
    """
    from retinue.trust import distrust_root, is_copy, is_trusted, trust_root

    root = _find_root(session, folder)
    document: dict[str, Any] = {
        "root": str(root),
        "trusted": is_trusted(root, os.environ),
        "copied": is_copy(root),
    }
    if remove:
        document["removed"] = distrust_root(root, os.environ)
        document["trusted"] = is_trusted(root, os.environ)
        session.answer(document, _format_removed)
        return
    # The review is printed before the question, and before anything is changed.
    document |= _inspect_root(root)
    if not session.json:
        render.print_line(_format_review(document))
        render.flush()
    if not show:
        if not (yes or session.json):
            _ask(root)
        trust_root(root, os.environ, document["named"]["variables"])
        document["trusted"] = True
    if session.json:
        render.print_json(document)
    elif not show:
        render.print_line(f"trusted: {render.escape_text(str(root))}")


def _find_root(session: CliSession, folder: Path | None) -> Path:
    """Raises:
    NotFound: there is no such root.
    """
    from retinue.settings import FOLDER, require_usable

    root = session.find_folder()
    if folder is not None:
        given = Path(os.path.normpath(Path(get_cwd()) / folder))
        root = given / FOLDER if (given / FOLDER).is_dir() else given
    if not root.is_dir():
        hint = "give a .retinue folder, or a project that contains one"
        raise NotFound(f"{root} does not exist", code="unknown_root", hint=hint)
    require_usable(root)
    return root


def _inspect_root(root: Path) -> dict[str, Any]:
    """Return what the root would run and read; `problem` says why a part is unreadable."""
    from retinue.formats.config_document import NamedResources
    from retinue.steward.trust_review import review_config

    configured, problem = review_config(root)
    found = NOTHING
    if (root / "retinue.db").is_file():
        try:
            client = connect(root)
            try:
                found = client.call("root.review")
            finally:
                client.close()
        except IntegrityBroken as error:
            problem = problem or f"{error.message} ({error.hint})"
    named = configured | NamedResources.of(found["named"])
    return found | {"named": named.to_json()} | ({"problem": problem} if problem else {})


def _ask(root: Path) -> None:
    """Ask for confirmation if there is a terminal.

    Raises:
        BadInput: the answer is not yes.
    """
    # Without a terminal the command is part of a script, whose author has decided.
    if sys.stdin is None or not sys.stdin.isatty():
        return
    sys.stderr.write(f"Trust {render.to_one_line(str(root))}? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise BadInput("nothing was changed", code="not_confirmed", hint="repeat it with --yes")


def _format_review(document: dict[str, Any]) -> str:
    named = document["named"]
    lines = [render.format_strong(render.to_one_line(document["root"]))]
    for each in document["subagents"]:
        who = f"{each['task_id']}/{each['subagent_id']} ({each['status']}, {each['runtime_mode']})"
        lost = document["copied"] and each["status"] == "running"
        # A copied root does not own the processes of the original.
        says = "belongs to the original; would fail here" if lost else "would continue"
        lines += _format_block(f"{says}: {who}", each)
    for each in document["steps"]:
        lines += _format_block(f"step of a plan: {each['task_id']}/{each['step']}", each)
    lines += [f"configuration runs: {_format_command(words)}" for words in named["commands"]]
    lines += [
        f"configuration connects to: {render.to_one_line(each)}" for each in named["addresses"]
    ]
    lines += [f"configuration reads: ${render.to_one_line(each)}" for each in named["variables"]]
    if document.get("problem"):
        lines.append(f"cannot be read: {render.to_one_line(document['problem'])}")
    if len(lines) == 1:
        lines.append("it would run nothing, and names no variables or addresses")
    return "\n".join(lines)


def _format_block(heading: str, each: dict[str, Any]) -> list[str]:
    return [
        render.to_one_line(heading),
        *(f"  $ {_format_command(words)}" for words in each["commands"]),
    ]


def _format_command(words: list[str]) -> str:
    return render.to_one_line(shlex.join(map(str, words)))


def _format_removed(document: dict[str, Any]) -> str:
    if not document["removed"]:
        return "the root was not on the list"
    still = "; RETINUE_TRUST still lists it" if document["trusted"] else ""
    return f"no longer trusted: {render.escape_text(document['root'])}{still}"
