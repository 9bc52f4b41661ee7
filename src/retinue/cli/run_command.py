"""The `retinue run` command: a prompt for a team, or a plan, with live progress."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

import click

from retinue.cli import render, tables
from retinue.cli.entry import INTERRUPTED
from retinue.cli.options import CliCommand, counting, read_config, read_text, select_given
from retinue.cli.plan_commands import VARIABLES
from retinue.cli.spawn_command import InterruptHandler
from retinue.cli.steward_session import CliSession, connect, get_cwd
from retinue.cli.timeline_commands import EventFormatter
from retinue.core.default_models import KEY_VARIABLES
from retinue.core.errors import RetinueError, StewardUnavailable, add_hint_to_error
from retinue.core.join_result import NOT_CHOSEN

if TYPE_CHECKING:
    from retinue.client.blocking_client import Client


# For the elapsed times; all other changes are shown as they happen.
REFRESH_SECONDS = 1.0
MOST_ROWS = 12
ASKED = "gate.blocked"
HEADING = ("subagent", "status", "phase", "done", "tokens", "cost", "time")
WIDTHS = (18, 10, 14, 4, 7, 8, 6)
# Columns from this index on are numbers, aligned to the right.
RIGHT = 3
# Events that the table shows already, or that follow from others that are shown.
NOT_SHOWN = {
    *("task.created", "task.closed", "run.started", "run.ended"),
    *("agent.subagent_started", "agent.started", "agent.completed", "agent.subagent_attempt"),
    *("agent.subagent_waiting_for_merge", "agent.output_accepted"),
}


class LiveProgress:
    """Progress display on standard error; without a terminal, it prints only questions."""

    def __init__(self, session: CliSession, task: str, *, gates: bool) -> None:
        """`gates`: whether the run waits until its questions are answered."""
        self._session = session
        self._task = task
        self._gates = gates
        self._over = Event()
        self._painting = Lock()
        # Lines of the table that are on the screen now
        self._rows = 0
        self._shown = not session.json and sys.stderr is not None and sys.stderr.isatty()
        self._clients: list[Client] = []
        self._followers: list[Thread] = []

    def __enter__(self) -> LiveProgress:
        courses = [self._follow, self._refresh] if self._shown else []
        if self._shown:
            sys.stderr.write(f"{self._task}: Ctrl-C cancels, a second Ctrl-C kills\n")
        elif self._gates and sys.stderr is not None:
            courses = [self._listen]
        with suppress(RetinueError, OSError):
            # These clients print no notes: the one that waits for the run reports a lost steward.
            folder = self._session.find_folder()
            self._clients = [connect(folder, lambda text: None) for _ in courses]
            self._followers = [Thread(target=course, daemon=True) for course in courses]
        for follower in self._followers:
            follower.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the threads and print the final table."""
        self._over.set()
        if self._followers:
            # Shutting the connection down wakes the thread that blocks in a read on it.
            self._clients[0].shut_down()
            for follower in self._followers:
                follower.join(timeout=2.0)
        if self._followers and self._shown:
            self._render_screen()
        for client in self._clients:
            client.close()

    def note(self, text: str) -> None:
        """Print a note, above the table if there is one."""
        if self._followers and self._shown:
            self._render_screen(f"note: {render.to_one_line(text)}\n")
        else:
            render.note(text)

    def _follow(self) -> None:
        """Print each event as a line above the table."""
        condensed = EventFormatter(lanes=True, colour=True)
        with suppress(RetinueError, OSError, ValueError):
            for event in self._clients[0].stream("task.events", task=self._task, follow=True):
                shown = condensed.format_event(event)
                lines = [f"{render.cut_to_screen(line)}\n" for line in shown]
                if self._gates and event.get("type") == ASKED:
                    lines.append(_format_question(self._task, event))
                self._render_screen("" if event.get("type") in NOT_SHOWN else "".join(lines))

    def _listen(self) -> None:
        """Print each question as a line."""
        about: dict[str, Any] = {"task": self._task, "type_prefix": ASKED, "follow": True}
        with suppress(RetinueError, OSError, ValueError):
            for event in self._clients[0].stream("task.events", **about):
                sys.stderr.write(_format_question(self._task, event))
                sys.stderr.flush()

    def _refresh(self) -> None:
        while not self._over.wait(REFRESH_SECONDS):
            self._render_screen()

    def _render_screen(self, lines: str = "") -> None:
        """Replace the table on the screen with the lines and the current table."""
        # Two threads draw: without the lock their escape sequences would mix.
        with self._painting:
            table = self._build_table()
            # To the left first: the terminal has printed ^C where the cursor was.
            clear = f"\r\x1b[{self._rows}A\x1b[J" if self._rows else "\r\x1b[J"
            self._rows = len(table)
            sys.stderr.write(clear + lines + "".join(f"{line}\n" for line in table))
            sys.stderr.flush()

    def _build_table(self) -> list[str]:
        """Return the lines of the table; if not all fit, unfinished subagents come first."""
        try:
            rows = self._clients[1].call("subagent.list", task=self._task, limit=100)
        except (RetinueError, OSError, ValueError):
            return []
        # Half of the screen stays free for events.
        most = min(MOST_ROWS, max(1, shutil.get_terminal_size().lines // 2 - 2))
        first = sorted(rows, key=lambda row: row["status"] not in tables.AT_WORK)[:most]
        lines = [_format_line(HEADING), *(_format_row(row) for row in rows if row in first)]
        left = len(rows) - len(first)
        return [*lines, f"and {left} more"] if left else lines


def _format_question(task: str, event: dict[str, Any]) -> str:
    """Return the question and the command that answers it, not cut to the screen."""
    payload = event.get("payload") or {}
    line = tables.format_question(
        task,
        payload.get("gateId", "?"),
        event.get("agentInstance") or "?",
        payload.get("questions") or (),
        review=bool(payload.get("review")),
    )
    return f"{line}\n"


def _format_row(row: dict[str, Any]) -> str:
    texts = (
        render.to_one_line(row["agentInstance"]),
        render.to_one_line(row["status"]),
        *tables.format_progress(row),
        f"{row['elapsed_seconds']:.0f} s",
    )
    return _format_line(texts, status=row["status"])


def _format_line(texts: tuple[str, ...], status: str = "") -> str:
    """Return the cells as one line, cut to the screen: a wrapped row could not be overwritten."""
    cells = [
        render.fit_to_width(text, width, right=column >= RIGHT)
        for column, (text, width) in enumerate(zip(texts, WIDTHS, strict=True))
    ]
    whole = render.cut_to_screen("  ".join(cells))
    return whole.replace(cells[1], render.format_status(status, cells[1]), 1) if status else whole


# Printed if a run used the embedded model alone.
BY_RULE = (
    "the answer is put together from the parts by a rule: the embedded model cannot judge them"
)
REAL_WORK = (
    "for real work: set a key (ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY), let a coding "
    "agent delegate ('retinue mcp install claude'), or use a server such as Ollama ('retinue docs "
    "how-to/models')"
)
OF_REPOSITORIES = ("apply", "include_dirty")


@click.command(
    cls=CliCommand,
    example='retinue run --config @demo "Describe this folder in three files"\n'
    "retinue run --plan plan.yaml --apply --json\n"
    "retinue run --retry site-1a2b3c",
    exits="0 the run succeeded, with --apply also the update; with --background, it was started\n"
    "1 the run failed, or its team asks a question (a plan waits for the answers instead)\n"
    "130 interrupted; its subagents were cancelled",
)
@click.argument("prompt", required=False, default="", metavar="[PROMPT]")
@click.option("--plan", "plan", metavar="FILE", help="The plan to execute.")
@click.option(
    "--retry",
    metavar="TASK",
    help="Run the failed and unstarted steps of this task's plan again, on top of what it merged.",
)
@click.option("--config", metavar="FILE|@NAME", help="The configuration of its task.")
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="NAME",
    help="A coding agent of the team, such as claude. Can be repeated: several agents vote. See"
    " 'retinue agent list'.",
)
@click.option(
    "--max-concurrent",
    callback=counting,
    metavar="N",
    help="Maximum number of subagents that run at once.",
)
@click.option(
    "--verify",
    metavar="COMMAND",
    help="With --agent, in a git repository: each agent works on a copy of its own. This shell"
    " command checks each result, the agents vote among those that pass, and one is merged.",
)
@click.option(
    "--apply",
    is_flag=True,
    help="With --plan or --verify: fast-forward the checked-out branch.",
)
@click.option(
    "--include-dirty",
    is_flag=True,
    help="With --plan or --verify: include uncommitted changes.",
)
@VARIABLES
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME[=file:PATH|env:VAR]",
    help="With --plan: the source of a secret that its steps name in 'secrets'.",
)
@click.option(
    "--wait/--background", default=True, help="Wait for the outcome, or return and let it run."
)
@click.pass_context
def run(
    ctx: click.Context,
    /,
    prompt: str,
    plan: str | None,
    retry: str | None,
    wait: bool,
    **options: Any,
) -> int:
    """Give a PROMPT to a team that may delegate, or execute a plan and join its steps.

    The run is cancelled when this command is interrupted or killed; with --background it continues.
    """
    session: CliSession = ctx.obj
    if sum((bool(prompt.strip()), bool(plan), bool(retry))) != 1:
        if not plan and not retry and not session.json:
            from retinue.cli.overview import show_overview

            show_overview(session)
        raise click.UsageError("Give either a PROMPT or --plan (or --retry)", ctx)
    verify = options["verify"]
    lost = [name for name in OF_REPOSITORIES if options[name] and not plan and not verify]
    if plan and options["agents"]:
        raise click.UsageError("--agent is for a PROMPT; a plan names agents in its steps", ctx)
    if verify is not None and (not options["agents"] or not verify.strip()):
        raise click.UsageError("--verify needs a command, a PROMPT and one --agent or more", ctx)
    if lost:
        raise click.UsageError(f"--{lost[0].replace('_', '-')} needs --plan or --verify", ctx)
    if options["vars"] and not plan:
        raise click.UsageError("--var needs --plan", ctx)
    if options["secrets"] and not plan:
        raise click.UsageError("--secret needs --plan", ctx)
    if retry and (options["agents"] or options["config"]):
        raise click.UsageError("--retry takes the configuration of the earlier run", ctx)
    request = _build_request(prompt, plan, options)
    if retry:
        del request["prompt"]
        request["task"] = retry
    if wait:
        return _run_and_wait(session, request)
    started = session.call(
        "run.start" if plan else "run.retry" if retry else "run.begin", **request
    )
    _report_start(started)
    session.answer(started, _format_started)
    return 0


def _report_start(started: dict[str, Any]) -> None:
    """Print warnings, and which team works where the command did not name one."""
    render.warn(started)
    if choice := started.get("team_choice"):
        render.note(f"{choice['name']} works on it: {choice['reason']}")


def _build_request(prompt: str, plan: str | None, options: dict[str, Any]) -> dict[str, Any]:
    # Only the names of the variables: the keys themselves stay in the environment.
    keys = [name for name in KEY_VARIABLES if os.environ.get(name, "").strip()]
    request = {"cwd": get_cwd(), "by": "user"}
    request |= select_given(max_concurrent=options["max_concurrent"], keys=keys)
    if options["config"]:
        request |= read_config(options["config"])
    request |= select_given(**{name: options[name] for name in (*OF_REPOSITORIES, "vars")})
    if not plan:
        verify = ["sh", "-c", options["verify"]] if options["verify"] else []
        request |= select_given(agents=list(options["agents"]), verify=verify)
        return request | {"prompt": prompt}
    return request | {
        "plan_text": read_text(plan, "plan"),
        "secrets": list(options["secrets"]),
        "plan_name": plan,
        "plan_folder": os.path.dirname(os.path.abspath(plan)),
    }


def _run_and_wait(session: CliSession, request: dict[str, Any]) -> int:
    """Start the run, print its outcome and return the exit code.

    Ctrl-C cancels the run. So does the end of this process: the steward cancels the run when
    this connection closes.
    """

    def stop(kill: bool) -> None:
        with suppress(RetinueError, OSError), session.open_client() as client:
            reason = "interrupted at the shell"
            client.call("task.cancel", task=task, by="user", reason=reason, kill=kill)

    planned = "prompt" not in request or "verify" in request
    verb = "run.attend" if "prompt" in request else "run.attend_plan"
    verb = "run.attend_retry" if "task" in request else verb
    with session.open_client(verb) as client:
        course = client.stream(verb, **request)
        started = next(course)
        _report_start(started)
        task = started["task_id"]
        progress = LiveProgress(session, task, gates=planned)
        with InterruptHandler(stop) as interruption, progress:
            client.tell = progress.note
            document = _wait_for_end(client, course, task)
    document |= {key: started[key] for key in ("team_choice",) if key in started}
    session.answer(document, _format_outcome)
    if interruption.count:
        return INTERRUPTED
    good = document["status"] == "completed" and document.get("applied") is not False
    return 0 if good else 1


def _wait_for_end(client: Client, course: Iterator[Any], task: str) -> Any:
    """Return the outcome of the run; if the steward is lost, ask the next one."""
    from retinue.client.repeatable_calls import LOST, LossCounter

    losses = LossCounter()
    while True:
        try:
            return next(course)
        except StewardUnavailable as error:
            if error.code != LOST:
                raise
            # Raises when stewards are lost too often: the cause is then not a single crash.
            losses.add(time.monotonic())
        client.reconnect()
        # The first item repeats what `run.attend` sent at the start.
        course = islice(client.stream("run.attend_again", task=task), 1, None)


def _format_started(started: dict[str, Any]) -> str:
    task = started["task_id"]
    return f"{task}  running\nshow it with: retinue task show {task}"


def _format_outcome(document: dict[str, Any]) -> str:
    lines = []
    root = document.get("root")
    parts = {part["subagent_id"]: part for part in document.get("parts", ())}
    for result in document["results"]:
        joined = result.get("integration") or {}
        agent = (result.get("agent") or {}).get("name")
        by = f" ({render.to_one_line(agent)})" if agent else ""
        lines.append(
            f"{result['subagent_id']}{by}  result: {render.format_status(result['status'])}  "
            f"{tables.format_join_outcome(joined)}".rstrip()
        )
        if result.get("error"):
            lines.append(f"  {render.to_one_line(add_hint_to_error(result['error']))}")
        lines += [f"  {line}" for line in tables.format_output(result)]
        warning = result.get("warning")
        # The warning of the root team is printed below.
        if warning and warning != (root or {}).get("warning"):
            lines.append(f"  warning: {render.to_one_line(warning)}")
        lines += _format_part(parts.get(result["subagent_id"], {}))
        if root is None and (said := (result.get("answer") or "").strip()):
            lines.append(f"  answer: {render.format_cell(said.splitlines()[0])}")
        if (not result["success"] or joined.get("reason") == NOT_CHOSEN) and not root:
            if joined.get("patch"):
                lines.append(f"  patch: {render.to_one_line(joined['patch'])}")
            lines += [f"  {line}" for line in tables.format_files_left(result)]
    lines += tables.format_not_started(document)
    lines += _format_choices(document)
    if root is not None:
        lines += _format_root(root, document)
    spent = tables.format_spent(document["metrics"]["totals"])
    cost = f"  ({spent})" if spent else ""
    lines.append(f"run of {document['task_id']}: {document['outcome']}{cost}")
    if root is None and document["outcome"] == "failed":
        lines.append(f"repeat what failed with: retinue run --retry {document['task_id']}")
    if document.get("branch"):
        where = _format_git_option(document.get("repository") or ".")
        lines.append(f"show the changes with: git{where} log --stat {document['branch']}")
    if document.get("applied"):
        lines.append("applied to the checked-out branch")
    elif document.get("apply_error"):
        lines.append(render.to_one_line(document["apply_error"]))
        lines.append("nothing was moved: your branch, index and files are as they were")
    return "\n".join(lines)


def _format_choices(document: dict[str, Any]) -> list[str]:
    """Return which candidates passed, which one was merged, and why."""
    lines = []
    for name, choice in (document.get("choices") or {}).items():
        agents = choice["candidates"]

        def say(each: str, agents: dict[str, str] = agents) -> str:
            return f"{each} ({agents[each]})" if agents.get(each) else each

        passed = ", ".join(map(say, choice["passed"])) or "none"
        lines.append(render.to_one_line(f"{name}: {passed} of {len(agents)} passed"))
        winner = f"{say(choice['winner'])} was merged" if choice["winner"] else "none was merged"
        lines.append(render.to_one_line(f"{name}: {winner}: {choice['reason']}"))
    return lines


def _format_git_option(repository: str) -> str:
    """Return the `-C` option that git needs outside of the repository; empty inside."""
    place = os.path.relpath(repository)
    inside = all(part == ".." for part in place.split(os.sep)) or place == "."
    return "" if inside else f" -C {shlex.quote(place)}"


def _format_part(part: dict[str, Any]) -> list[str]:
    """Return what a part of a team run was asked, the first line of its answer and its files."""
    if not part:
        return []
    lines = [f"  asked: {render.format_cell(part['brief'])}"]
    if part["first_line"]:
        lines.append(f"  wrote: {render.format_cell(part['first_line'])}")
    if part["files"]:
        lines.append(f"  files: {render.format_cell(', '.join(part['files']))}")
    return lines


def _format_root(root: dict[str, Any], document: dict[str, Any]) -> list[str]:
    """Return the lines about the root team; its answer comes last, where it is easy to find."""
    task = document["task_id"]
    lines = []
    for name in ("warning", "error"):
        if root.get(name):
            lines.append(f"{name}: {render.to_one_line(root[name])}")
    lines += [f"question: {render.to_one_line(each)}" for each in root.get("questions") or ()]
    if root["status"] == "blocked":
        lines.append(tables.format_how_to_answer(task))
    by_rule = document.get("answer_by") == "rule"
    if by_rule:
        lines.append(BY_RULE)
    lines += ["", render.escape_text(document["answer"] or "no answer"), ""]
    if root.get("agent"):
        lines.append(f"agent: {tables.format_agent(root['agent'])}")
    lines.append(f"files: {render.to_one_line(root['workspace'])}")
    folder = os.path.dirname(os.path.dirname(root["workspace"]))
    lines.append(f"see it all with: retinue ui; each part's files are below {folder}")
    return [*lines, REAL_WORK] if by_rule else lines
