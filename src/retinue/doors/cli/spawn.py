"""Spawning from the shell, and what Ctrl-C means while its result is awaited."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from retinue.domain.errors import RetinueError
from retinue.doors.cli import render, views
from retinue.doors.cli.options import (
    TASK,
    Verb,
    given,
    seconds,
    subagent_id,
    whole,
)
from retinue.doors.cli.run import INTERRUPTED
from retinue.doors.cli.session import Session, here

if TYPE_CHECKING:
    from retinue.steward.client import Client

COMMAND = "retinue.command"
TERMS = (
    *("subagent_id", "title", "subagent_type", "integration", "report_path_pattern"),
    *("timeout_seconds", "max_retries", "retry_on_timeout", "max_delegation_depth"),
)
LISTS = ("context_files", "allowed_tools", "success_criteria")
NEXT = "wait for the next end with: retinue subagent wait-any"


class Spawn(Verb):
    """Everything after the first `--` is the command, whatever it looks like."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[COMMAND] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- ARGV...]"]


@click.command(
    cls=Spawn,
    example="retinue subagent spawn site-1a2b3c --id date --wait -- date\n"
    'retinue subagent spawn site-1a2b3c --context-path ./docs "Summarise the docs"\n'
    'retinue subagent spawn site-1a2b3c --context-path ./mine.sh -- "$PWD/mine.sh"',
    exits="0 it began; with --wait, it succeeded\n1 with --wait: it did not\n"
    "5 as many work as may: nothing was begun\n7 it cannot be isolated here: nothing was begun",
)
@TASK
@click.argument("brief", metavar="[BRIEF]", required=False, default="")
@click.option(
    "--id", "subagent_id", type=subagent_id, metavar="ID", help="Its id; else one is made."
)
@click.option("--title", metavar="T", help="What lists call it.")
@click.option("--type", "subagent_type", metavar="NAME", help="The subagent type to use.")
@click.option(
    "--context-path", "context_paths", multiple=True, metavar="P", help="It may read this."
)
@click.option(
    "--context-file", "context_files", multiple=True, metavar="F", help="It is given this."
)
@click.option(
    "--timeout-seconds", callback=seconds, metavar="S", help="How long an attempt may take."
)
@click.option(
    "--tool", "allowed_tools", multiple=True, metavar="NAME", help="A tool that it may use."
)
@click.option(
    "--success-criterion", "success_criteria", multiple=True, metavar="C", help="Done when."
)
@click.option("--no-refine", is_flag=True, help="Take the first answer; a command gives only one.")
@click.option(
    "--retries", "max_retries", callback=whole, metavar="N", help="Further attempts; 1 without."
)
@click.option("--retry-on-timeout", is_flag=True, help="A time-out is tried again, too.")
@click.option(
    "--integration", type=click.Choice(["merge", "copy", "none"]), help="How it is joined."
)
@click.option(
    "--report-path",
    "report_path_pattern",
    metavar="PATTERN",
    help="Where in its workspace it leaves its report; <idx> is its number.",
)
@click.option("--keep-open", is_flag=True, help="Leave it for me to close.")
@click.option(
    "--allow-children",
    "max_delegation_depth",
    type=click.IntRange(0, 8),
    metavar="DEPTH",
    help="Let it have subagents of its own, so many levels deep.",
)
@click.option("--queue", is_flag=True, help="Over the limit, wait for a slot instead of refusing.")
@click.option("--key", default="", metavar="K", help="The same key again gives the same subagent.")
@click.option("--wait", is_flag=True, help="Wait for its result; Ctrl-C cancels it.")
@click.pass_context
def spawn(
    ctx: click.Context, /, task: str, queue: bool, key: str, wait: bool, **options: Any
) -> int:
    """Give work to a new subagent: a BRIEF, a command after --, or both."""
    from retinue.steward.client import is_parents

    session: Session = ctx.obj
    request = given(queue=queue, key=key) | {
        "task": task,
        "tasks": [_brief(ctx, options)],
        "cwd": here(),
        "by": "user",
    }
    if wait:
        return _and_wait(session, request)
    document = session.call("subagent.spawn", **request)
    render.warn(document)
    # A subagent has no such verb.
    further = [] if is_parents(session.folder()) else [f"{NEXT} {task}"]
    session.answer(document, lambda it: "\n".join([*map(views.spawned, it["subagents"]), *further]))
    return 0


def _brief(ctx: click.Context, options: dict[str, Any]) -> dict[str, Any]:
    """What the steward is told of the one subagent."""
    argv = ctx.meta.get(COMMAND)
    if argv == [] or (argv is None and not options["brief"].strip()):
        raise click.UsageError("Nothing to do: give a BRIEF, or a command after '--'", ctx)
    brief = given(**{name: options[name] for name in TERMS})
    brief |= given(**{name: list(options[name]) for name in LISTS})
    if options["no_refine"]:
        brief["refine"] = False
    if options["keep_open"]:
        brief["close_on_completion"] = False
    return brief | {
        "task": options["brief"],
        "argv": argv or [],
        "context_paths": list(options["context_paths"]),
    }


def _and_wait(session: Session, request: dict[str, Any]) -> int:
    """The result is shown, also when it had to be cancelled.

    With a key of its own the same request can be sent once more: that is how a second
    connection learns which subagent the first one waits for.
    """
    request = request | {"key": request.get("key") or f"cli-{os.urandom(8).hex()}"}
    _say_how_to_end_it()

    def stop(kill: bool) -> None:
        with suppress(RetinueError, OSError), session.client() as client:
            for each in client.call("subagent.spawn", **request, handle=True)["subagents"]:
                _cancel(client, request["task"], each["subagent_id"], kill)

    with session.client() as client, Interruption(stop) as interruption:
        document = client.call("subagent.spawn", **request, wait=True)
    render.warn(document)
    session.answer(document, lambda it: "\n\n".join(map(views.result, it["results"])))
    if interruption.count:
        return INTERRUPTED
    return 0 if document["success"] else 1


def continue_and_wait(session: Session, request: dict[str, Any]) -> int:
    """The result of one that goes on is shown, also when it had to be cancelled."""

    def stop(kill: bool) -> None:
        with suppress(RetinueError, OSError), session.client() as client:
            _cancel(client, request["task"], begun["subagent_id"], kill)

    with session.client("subagent.continue") as client:
        course = client.stream("subagent.attend_continued", **request)
        begun = next(course)
        _say_how_to_end_it()
        with Interruption(stop) as interruption:
            document = next(course)
    render.warn(document)
    session.answer(document, views.result)
    if interruption.count:
        return INTERRUPTED
    return 0 if document["success"] else 1


def _say_how_to_end_it() -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write("waiting; Ctrl-C cancels, twice kills\n")


def _cancel(client: Client, task: str, subagent: str, kill: bool) -> None:
    why = "interrupted at the shell"
    client.call("subagent.cancel", task=task, subagent=subagent, by="user", reason=why, kill=kill)


class Interruption:
    """Ctrl-C while a result is awaited: once asks for the end, twice forces it, thrice leaves.

    The wait itself goes on, so that what the subagent had earned can still be shown.
    """

    def __init__(self, stop: Callable[[bool], None]) -> None:
        self.count = 0
        self._stop = stop
        self._before: Any = None

    def __enter__(self) -> Interruption:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            self._before = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 2:
            raise KeyboardInterrupt
        Thread(target=self._stop, args=(self.count > 1,), daemon=True).start()
