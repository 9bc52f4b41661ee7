"""The `retinue subagent spawn` command, and the handling of Ctrl-C during a wait."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Thread
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from retinue.cli import render, tables
from retinue.cli.entry import INTERRUPTED
from retinue.cli.options import (
    TASK,
    CliCommand,
    parse_subagent_id,
    seconds,
    select_given,
    whole,
)
from retinue.cli.steward_session import CliSession, get_cwd
from retinue.core.errors import BadInput, RetinueError, StewardUnavailable

if TYPE_CHECKING:
    from retinue.client.blocking_client import Client

COMMAND = "retinue.command"
TERMS = (
    *("subagent_id", "title", "subagent_type", "integration", "report_path_pattern"),
    *("timeout_seconds", "max_retries", "retry_on_timeout", "max_delegation_depth"),
    *("agent", "model", "access", "answer_schema", "turns", "env", "stdin", "limits", "redact"),
)
PYTHON_SECONDS = 10.0
LIMITS = ("memory_mb", "processes", "file_mb", "open_files", "cpus")
MAX_STDIN_BYTES = 4 * 1024 * 1024  # the steward counts characters, and refuses more than 1 Mi
LISTS = ("context_files", "allowed_tools", "success_criteria", "owns", "on", "secrets")
FILES_GIVEN = ("context_paths", "context_files", "integration")  # options that give it files
NO_FILES = (
    "this gives the agent no files: --integration merge gives it a copy of the repository, "
    "--context-path . lends it this folder to read"
)
NEXT = "wait for the next result with: retinue subagent wait-any"


def read_schema(ctx: click.Context, option: click.Parameter, value: str | None) -> object:
    """Return the JSON schema in a file."""
    if value is None:
        return None
    try:
        with open(value, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise click.BadParameter(f"{value}: {error.strerror}", ctx, option) from None
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"{value} is not JSON: {error}", ctx, option) from None


def split_variables(
    ctx: click.Context, option: click.Parameter, value: tuple[str, ...]
) -> dict[str, str]:
    """Return the variables of --env; NAME alone takes the value of this shell."""
    found: dict[str, str] = {}
    for each in value:
        name, given, text = each.partition("=")
        if not given and name not in os.environ:
            raise click.BadParameter(f"{name}: not set in this shell; give NAME=VALUE", ctx, option)
        found[name] = text if given else os.environ[name]
    return found


def split_limits(
    ctx: click.Context, option: click.Parameter, value: tuple[str, ...]
) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in value:
        name, _, number = each.partition("=")
        try:
            found[name] = float(number) if name == "cpus" else int(number)
        except ValueError:
            known = ", ".join(LIMITS)
            raise click.BadParameter(
                f"{each}: not NAME=NUMBER with NAME of {known}", ctx, option
            ) from None
    return found


def read_stdin(ctx: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Return the text of a file, or of this command's own standard input for `-`."""
    if value is None:
        return None
    try:
        with open(0 if value == "-" else value, "rb", closefd=value != "-") as file:
            data = file.read(MAX_STDIN_BYTES + 1)
    except OSError as error:
        raise click.BadParameter(f"{value}: {error.strerror}", ctx, option) from None
    if len(data) > MAX_STDIN_BYTES:
        raise click.BadParameter(
            f"{value}: larger than {MAX_STDIN_BYTES} bytes; give it as --context-file", ctx, option
        )
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise click.BadParameter(
            f"{value}: not UTF-8 text; give it as --context-file", ctx, option
        ) from None


class SpawnCommand(CliCommand):
    """Command that takes all words after the first `--` as the subagent's argv."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Cut the argv off first: click would parse options in it as options of spawn.
        if "--" in args:
            at = args.index("--")
            ctx.meta[COMMAND] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- ARGV...]"]


@click.command(
    cls=SpawnCommand,
    example="retinue subagent spawn site-1a2b3c --id date --wait -- date\n"
    'retinue subagent spawn site-1a2b3c --context-path ./docs "Summarise the docs"\n'
    'retinue subagent spawn site-1a2b3c --agent codex --integration merge "Fix the failing test"\n'
    'retinue subagent spawn site-1a2b3c --context-path ./mine.sh -- "$PWD/mine.sh"',
    exits="0 the subagent was started; with --wait, it succeeded\n"
    "1 with --wait: it did not succeed\n"
    "5 concurrency limit reached; nothing was started\n"
    "7 the requested isolation is not available here; nothing was started",
)
@TASK
@click.argument("brief", metavar="[BRIEF]", required=False, default="")
@click.option(
    "--id", "subagent_id", type=parse_subagent_id, metavar="ID", help="Its id. Default: generated."
)
@click.option("--title", metavar="T", help="Title in lists.")
@click.option(
    "--type",
    "subagent_type",
    metavar="NAME",
    help="Its type, a role with instructions. See 'retinue types list'.",
)
@click.option(
    "--context-path",
    "context_paths",
    multiple=True,
    metavar="P",
    help="A path that it may read. Can be repeated.",
)
@click.option(
    "--context-file",
    "context_files",
    multiple=True,
    metavar="F",
    help="A file that is copied for it to read.",
)
@click.option(
    "--timeout-seconds", callback=seconds, metavar="S", help="Time limit for each attempt."
)
@click.option(
    "--tool",
    "allowed_tools",
    multiple=True,
    metavar="NAME",
    help="A tool that its team or coding agent may use. Default: the usual ones. See"
    " 'retinue docs member-tools'.",
)
@click.option(
    "--success-criterion",
    "success_criteria",
    multiple=True,
    metavar="C",
    help="A condition for success.",
)
@click.option(
    "--no-refine", is_flag=True, help="Take a team's first answer. Commands give one anyway."
)
@click.option(
    "--retries",
    "max_retries",
    callback=whole,
    metavar="N",
    help="Further attempts after an error. Default: 1 for a team, 0 for a command.",
)
@click.option("--retry-on-timeout", is_flag=True, help="Also retry after a timeout.")
@click.option(
    "--integration",
    type=click.Choice(["merge", "copy", "none"]),
    help="Merge its output into git, copy it to a folder, or leave it in the workspace. Default:"
    " none.",
)
@click.option(
    "--owns",
    multiple=True,
    metavar="GLOB",
    help="Files it may change when its output is merged or copied. It waits for subagents that"
    " may merge changes to the same files.",
)
@click.option(
    "--report-path",
    "report_path_pattern",
    metavar="PATTERN",
    help="Path of its report in the workspace; <idx> is its number.",
)
@click.option(
    "--on",
    multiple=True,
    metavar="LABEL|host=NAME",
    help="Run it on a node with this label, or on the node of this name.",
)
@click.option("--keep-open", is_flag=True, help="Do not close it when it completes.")
@click.option(
    "--allow-children",
    "max_delegation_depth",
    type=click.IntRange(0, 8),
    metavar="DEPTH",
    help="Let it spawn subagents of its own, up to this many levels deep.",
)
@click.option(
    "--agent",
    metavar="NAME",
    help="A coding agent to do the work: claude, codex, gemini, opencode, goose, copilot, or one"
    " of the configuration. See 'retinue agent list'.",
)
@click.option("--model", metavar="M", help="The model of the coding agent.")
@click.option(
    "--access",
    type=click.Choice(["read", "write"]),
    help="read: it cannot change its workspace. Default: write.",
)
@click.option(
    "--answer-schema",
    callback=read_schema,
    metavar="FILE",
    help="JSON schema that its answer must fit.",
)
@click.option("--turns", callback=whole, metavar="N", help="Maximum number of model requests.")
@click.option(
    "--env",
    multiple=True,
    callback=split_variables,
    metavar="NAME[=VALUE]",
    help="A variable of its command; without a value, that of this shell. The contract records it.",
)
@click.option(
    "--stdin",
    callback=read_stdin,
    metavar="FILE",
    help="A file for the standard input of its command; - passes on that of this command.",
)
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME[=file:PATH|env:VAR]",
    help="A secret that its command gets as the variable NAME. The steward reads it from its own"
    " environment or from a file; only the name and the source are recorded.",
)
@click.option(
    "--with-python",
    is_flag=True,
    help="Lend the python3 of this shell with its packages, such as an active virtual environment;"
    " it is the first on the PATH of the subagent.",
)
@click.option(
    "--redact", is_flag=True, help="Replace the values of its secrets in its output and answer."
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    callback=split_limits,
    metavar="NAME=N",
    help="Lower a limit of the configuration: memory_mb, processes, file_mb, open_files or cpus.",
)
@click.option("--queue", is_flag=True, help="At the limit, wait for a slot instead of failing.")
@click.option(
    "--key", default="", metavar="K", help="Idempotency key: the same key gives the same subagent."
)
@click.option("--wait", is_flag=True, help="Wait for its result; Ctrl-C cancels it.")
@click.pass_context
def spawn(
    ctx: click.Context, /, task: str, queue: bool, key: str, wait: bool, **options: Any
) -> int:
    """Give work to a new subagent: a BRIEF, a command after --, or both."""
    from retinue.client.blocking_client import is_inside_subagent

    session: CliSession = ctx.obj
    if options["agent"] and not any(options[name] for name in FILES_GIVEN):
        render.note(NO_FILES)
    request = select_given(queue=queue, key=key) | {
        "task": task,
        "tasks": [_build_brief(ctx, options)],
        "cwd": get_cwd(),
        "by": "user",
    }
    if wait:
        return _spawn_and_wait(session, request)
    document = session.call("subagent.spawn", **request)
    render.warn(document)
    # A subagent that spawns may not call wait-any, so it gets no hint to do so.
    further = [] if is_inside_subagent(session.find_folder()) else [f"{NEXT} {task}"]
    session.answer(
        document, lambda it: "\n".join([*map(tables.format_spawned, it["subagents"]), *further])
    )
    return 0


def _build_brief(ctx: click.Context, options: dict[str, Any]) -> dict[str, Any]:
    """Return the brief of the subagent as the steward expects it.

    Raises:
        UsageError: there is neither a brief nor a command.
    """
    argv = ctx.meta.get(COMMAND)
    if argv == [] or (argv is None and not options["brief"].strip()):
        raise click.UsageError("Nothing to do: give a BRIEF, or a command after '--'", ctx)
    brief = select_given(**{name: options[name] for name in TERMS})
    brief |= select_given(**{name: list(options[name]) for name in LISTS})
    if options["no_refine"]:
        brief["refine"] = False
    if options["keep_open"]:
        brief["close_on_completion"] = False
    if options["with_python"]:
        brief["python"] = _find_python()
    return brief | {
        "task": options["brief"],
        "argv": argv or [],
        "context_paths": list(options["context_paths"]),
    }


def _find_python() -> str:
    """Return the path of this shell's Python.

    It is asked itself: what is on the PATH may be a script that selects one.

    Raises:
        BadInput: there is none.
    """
    import subprocess

    words = ["python3", "-I", "-c", "import sys; print(sys.executable)"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=PYTHON_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        done = None
    if done is None or done.returncode != 0 or not done.stdout.strip():
        raise BadInput(
            "there is no python3 on the PATH of this shell",
            code="no_python",
            hint="activate the virtual environment, then call again",
        )
    return done.stdout.strip()


def _spawn_and_wait(session: CliSession, request: dict[str, Any]) -> int:
    """Spawn the subagent, print its result (also if cancelled) and return the exit code."""
    # With a key, the same request can be sent twice: after Ctrl-C, a second connection repeats
    # it to learn the id of the subagent that the first connection waits for.
    request = request | {"key": request.get("key") or f"cli-{os.urandom(8).hex()}"}
    _print_interrupt_hint()

    def stop(kill: bool) -> None:
        with suppress(RetinueError, OSError), session.open_client() as client:
            for each in client.call("subagent.spawn", **request, handle=True)["subagents"]:
                _cancel(client, request["task"], each["subagent_id"], kill)

    with session.open_client() as client, InterruptHandler(stop) as interruption:
        document = client.call("subagent.spawn", **request, wait=True)
    render.warn(document)
    session.answer(document, partial(_format_results, request))
    if interruption.count:
        return INTERRUPTED
    return 0 if document["success"] else 1


def _format_results(request: dict[str, Any], document: dict[str, Any]) -> str:
    joins = request["tasks"][0].get("integration") in ("merge", "copy")
    texts = []
    for result in document["results"]:
        text = tables.format_result(result)
        if joins and result["success"] and not result.get("integration"):
            command = f"retinue subagent integrate {request['task']} {result['subagent_id']}"
            text += f"\njoin its output with: {command}"
        texts.append(text)
    return "\n\n".join(texts)


def continue_and_wait(session: CliSession, request: dict[str, Any]) -> int:
    """Continue a subagent, print its result (also if cancelled) and return the exit code."""

    def stop(kill: bool) -> None:
        with suppress(RetinueError, OSError), session.open_client() as client:
            _cancel(client, request["task"], begun["subagent_id"], kill)

    with session.open_client("subagent.continue") as client:
        course = client.stream("subagent.attend_continued", **request)
        begun = next(course)
        _print_interrupt_hint()
        with InterruptHandler(stop) as interruption:
            try:
                document = next(course)
            except StewardUnavailable as error:
                if error.code != "steward_lost":
                    raise
                # The subagent survives its steward: ask the next one for the result.
                client.reconnect()
                name = begun["subagent_id"]
                document = client.call("subagent.attend", task=request["task"], subagent=name)
    render.warn(document)
    session.answer(document, tables.format_result)
    if interruption.count:
        return INTERRUPTED
    return 0 if document["success"] else 1


def _print_interrupt_hint() -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write("waiting; Ctrl-C cancels, a second Ctrl-C kills\n")


def _cancel(client: Client, task: str, subagent: str, kill: bool) -> None:
    why = "interrupted at the shell"
    client.call("subagent.cancel", task=task, subagent=subagent, by="user", reason=why, kill=kill)


class InterruptHandler:
    """Ctrl-C handler for a wait: the first cancels, the second kills, the third exits.

    After a cancellation the wait continues, so that the recovered result can be printed.
    """

    def __init__(self, stop: Callable[[bool], None]) -> None:
        self.count = 0
        self._stop = stop
        self._before: Any = None

    def __enter__(self) -> InterruptHandler:
        # In a background job of a shell SIGINT is ignored, and stays ignored.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            self._before = signal.signal(signal.SIGINT, self._handle_interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _handle_interrupt(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 2:
            raise KeyboardInterrupt
        # In a thread: the interrupted main thread is in the middle of a read on its connection.
        Thread(target=self._stop, args=(self.count > 1,), daemon=True).start()
