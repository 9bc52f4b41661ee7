"""The commands `retinue mcp` and `retinue mcp install`."""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from retinue.cli import render
from retinue.cli.options import CliCommand, LazyGroup, missing_package, parse_task_id, read_config
from retinue.cli.steward_session import CliSession, get_cwd
from retinue.core.errors import BadInput, NotFound, RetinueError, WaitTimedOut

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.delegation.task_session import Choice
    from retinue.mcp_server.install.client_configs import FileChange


OF_HTTP = {"host": "--host", "port": "--port", "names": "--allow-host"}


@click.group(
    cls=LazyGroup,
    later={
        "install": ("mcp_commands", "Add this server to an agent's configuration."),
        "news": ("mcp_commands", "Tell a hook of Claude Code which subagents ended."),
    },
    invoke_without_command=True,
    example="retinue mcp\nretinue mcp --http --port 8765\nretinue mcp install claude",
)
@click.option(
    "--task", type=parse_task_id, metavar="TASK", help="The task to work in. Default: 'mcp'."
)
@click.option(
    "--config",
    metavar="FILE|@NAME",
    help="Configuration for a new task; an open task keeps its own.",
)
@click.option(
    "--plain-names",
    is_flag=True,
    help="List the tools by short names, such as wait_for_subagent; both kinds can be called.",
)
@click.option(
    "--folder",
    metavar="DIR",
    help="Base of relative context paths. Default: the working folder.",
)
@click.option("--http", is_flag=True, help="Serve streamable HTTP, and print the address.")
@click.option(
    "--host",
    default="127.0.0.1",
    metavar="H",
    help="With --http: the address to listen on. Default: 127.0.0.1.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="With --http: the port to listen on. Default: a free one.",
)
@click.option(
    "--allow-host",
    "names",
    multiple=True,
    metavar="NAME",
    help="With --http: a further host name to accept requests for.",
)
@click.pass_context
def mcp(
    ctx: click.Context,
    /,
    task: str | None,
    config: str | None,
    plain_names: bool,
    folder: str | None,
    http: bool,
    host: str,
    port: int,
    names: tuple[str, ...],
) -> int:
    """Serve subagents as MCP tools to other agents, over standard input and output or HTTP.

    All servers of a root share one task until it is closed. The task keeps the configuration
    it was created with. To change that, edit its task.yaml, or close the task: the next spawn
    creates a new one.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    session: CliSession = ctx.obj
    from pathlib import Path

    from retinue.delegation.task_session import Choice

    if not http:
        _require_none_of_http(ctx)
    given = read_config(config) if config else {}
    choice = Choice(
        folder=Path(get_cwd(), folder or ""),
        task=task or "",
        config_text=given.get("config_text", ""),
        config_name=given.get("config_name", ""),
        plain_names=plain_names,
    )
    try:
        if http:
            _serve_http(session, choice, host, port, names)
        else:
            _serve_stdio(session, choice)
    except ModuleNotFoundError as error:
        raise missing_package("the server", error, extra="mcp") from None
    return 0


def _require_none_of_http(ctx: click.Context) -> None:
    for name, option in OF_HTTP.items():
        if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"{option} needs --http", ctx)


def _serve_stdio(session: CliSession, choice: Choice) -> None:
    from retinue.mcp_server.sdk_server import run

    if sys.__stdin__ is None or sys.__stdout__ is None:
        raise BadInput(
            "standard input or output is closed; MCP over stdio needs both",
            code="no_pipe",
            hint="let a client start it ('retinue mcp install'), or use --http",
        )
    if sys.stdin.isatty():
        sys.stderr.write("waiting for an MCP client; see 'retinue mcp install --help'\n")
    run(session.find_folder(), choice)


def _serve_http(
    session: CliSession, choice: Choice, host: str, port: int, names: tuple[str, ...]
) -> None:
    from retinue.mcp_server.http_transport import ListenAddress, run_http

    def print_address(url: str, token: Path) -> None:
        document = {"url": url, "token_file": str(token)}
        session.answer(
            document, lambda it: f"{it['url']}\ntoken: {render.escape_text(it['token_file'])}"
        )
        render.flush()

    run_http(
        session.find_folder(),
        choice,
        ListenAddress(host=host, port=port, names=names),
        print_address,
    )


CLIENTS = ("claude", "codex", "gemini", "opencode", "cursor", "vscode", "zed", "claude-desktop")


@click.command(
    cls=CliCommand,
    example="retinue mcp install claude\nretinue mcp install claude --subagents codex\n"
    "retinue mcp install --subagents codex\nretinue mcp install codex --yes --remove",
)
@click.argument("client", type=click.Choice(CLIENTS), required=False)
@click.option(
    "--subagents",
    metavar="NAME",
    help="What subagents are, for a root without a configuration: a coding agent (codex), a "
    "provider (@openai) or a model server (ollama). Without it, those found here are listed.",
)
@click.option("--plain-names", is_flag=True, help="List the tools by short names.")
@click.option(
    "--hooks",
    is_flag=True,
    help="Claude Code only: also add hooks that tell it when background subagents end.",
)
@click.option("--yes", is_flag=True, help="Write without asking.")
@click.option("--remove", is_flag=True, help="Remove the entry, and the hooks.")
@click.pass_obj
def install(
    session: CliSession,
    client: str | None,
    subagents: str | None,
    plain_names: bool,
    hooks: bool,
    yes: bool,
    remove: bool,
) -> None:
    """Add this server to a client's configuration, after showing the diff.

    Nothing else of the file changes. The configuration of subagents (.retinue/config.yaml) is only
    written where there is none, and stays when the entry is removed. With --subagents and no
    client, only that is written.
    """
    from pathlib import Path

    from retinue.delegation.task_session import Choice
    from retinue.mcp_server.effective_limits import read_current_limits

    if hooks and client != "claude":
        raise click.UsageError("--hooks is for claude only")
    if client is None and (subagents is None or remove):
        raise click.UsageError(f"name a client: {', '.join(CLIENTS)}")
    folder = session.find_folder()
    here = Path(get_cwd())
    try:
        from retinue.mcp_server.install.client_configs import (
            WITHOUT_PROJECT,
            build_entry,
            build_hook_changes,
            find_kept,
            plan_changes,
        )
    except ModuleNotFoundError as error:
        raise missing_package("mcp install", error, extra="mcp") from None
    changes = []
    document: dict[str, Any] = {"changed": False}
    if client is not None:
        terms = read_current_limits(folder, Choice(folder=here))
        words = [*find_own_command()]
        if session.root is not None or client in WITHOUT_PROJECT:
            words += ["--root", str(folder)]
        words.append("mcp")
        words += ["--folder", str(here)] if client in WITHOUT_PROJECT else []
        words += ["--plain-names"] if plain_names else []
        entry = build_entry(client, words, terms, here, os.environ)
        changes.append(plan_changes(entry, remove=remove))
        if not remove and (kept := find_kept(entry)):
            text = render.escape_text(json.dumps(kept))
            render.note(f"{entry.file} already has this in the entry, which stays: {text}")
        document = {"client": client, "file": str(entry.file), **document}
        if client == "claude" and (hooks or remove):
            told = [*words[: words.index("mcp") + 1], "news"]
            changes.append(build_hook_changes(here, told, remove=remove))
    if not remove:
        document |= _offer_subagents(folder, subagents, changes)
    needed = [each for each in changes if each.needed]
    if needed:
        diff = "\n".join(each.diff for each in needed)
        if not session.json:
            render.print_line(render.escape_text(diff))
            render.flush()
        if not yes:
            _ask(" and ".join(str(each.file) for each in needed))
        if any(each.file.parent == folder for each in needed):
            # A root that this command makes is the user's own, and trusted.
            from retinue.trust import make_root

            make_root(folder, os.environ)
        for each in needed:
            each.require_unchanged()
        for each in needed:
            each.carry_out()
        files = {str(each.file): _name_change(each) for each in needed}
        document |= {"changed": True, "files": files, "diff": diff}
    session.answer(document, _format_changes)


def _offer_subagents(folder: Path, chosen: str | None, changes: list[Any]) -> dict[str, Any]:
    """Add the configuration of the chosen subagents to the changes; return what to report."""
    from retinue.mcp_server.install.client_configs import FileChange
    from retinue.mcp_server.install.subagent_choices import find_choices, require_choice

    file = folder / "config.yaml"
    if file.exists():
        if chosen is not None:
            raise BadInput(
                f"{file} already configures subagents",
                code="exists",
                hint="edit that file, or remove it first",
            )
        return {"config": str(file)}
    choices = find_choices(os.environ, folder.parent)
    if chosen is not None:
        text = require_choice(chosen, choices).config
        changes.append(FileChange(file=file, before=None, after=text))
        return {"config": str(file)}
    rows = [{"name": each.name, "found": each.found, "ready": each.ready} for each in choices]
    return {"subagents": rows}


MOST_INPUT = 1 << 20  # bytes of a hook's input
MOST_NEWS = 10
HOOK_CONSUMER = "hooks"


@click.command(cls=CliCommand, example="retinue mcp news")
@click.pass_obj
def news(session: CliSession) -> None:
    """Tell a hook of Claude Code which background subagents ended.

    Reads the hook's JSON from standard input and prints the answer for it. Names each subagent
    once, while its result waits to be read, and delivers no result. If the agent is about to stop
    while a result waits, the answer asks it to read that result first.
    """
    event = _read_hook()
    # A hook that fails would disturb the agent, and this one is only a convenience.
    with suppress(RetinueError):
        sentence = _find_news(session, once=event.get("hook_event_name") != "Stop")
        if sentence:
            render.print_line(_format_hook_answer(event, sentence))


def _read_hook() -> dict[str, Any]:
    if sys.stdin is None or sys.stdin.isatty():
        return {}
    try:
        event = json.loads(sys.stdin.read(MOST_INPUT))
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _find_news(session: CliSession, *, once: bool) -> str:
    """Return a sentence about ended subagents whose results were not read; empty if none."""
    if not (session.find_folder() / "tasks").is_dir():
        return ""
    with session.open_client("task.list") as client:
        tasks = [
            row["task_id"]
            for row in client.call("task.list")
            if row["state"] == "open" and row["task_id"].partition("-")[0] == "mcp"
        ]
        names: list[str] = []
        for task in tasks:
            asked = {"task": task, "timeout_seconds": 0}
            with suppress(NotFound, WaitTimedOut):
                first = client.call("subagent.wait_any", consumer="mcp", peek=True, **asked)
                names.append(f"{first['agentInstance']} ({first['status']})")
            # The consumer of the hooks hears of each end once; what was read is not news.
            unread = bool(names)
            names = [] if once else names
            with suppress(NotFound, WaitTimedOut):
                while once and len(names) < MOST_NEWS:
                    told = client.call("subagent.wait_any", consumer=HOOK_CONSUMER, **asked)
                    names.append(f"{told['agentInstance']} ({told['status']})")
            if unread and names:
                return (
                    f"Background subagents ended or ask: {', '.join(names)}. Their results come "
                    "with your next call of a retinue tool, such as list_subagents."
                )
    return ""


def _format_hook_answer(event: dict[str, Any], sentence: str) -> str:
    name = event.get("hook_event_name")
    if name == "Stop":
        # Asked once: otherwise an agent that does not follow could never stop.
        again = event.get("stop_hook_active")
        return "{}" if again else json.dumps({"decision": "block", "reason": sentence})
    if name in ("UserPromptSubmit", "PostToolUse"):
        told = {"hookEventName": name, "additionalContext": sentence}
        return json.dumps({"hookSpecificOutput": told})
    return sentence


def _ask(file: str) -> None:
    """Ask for confirmation at the terminal.

    Raises:
        BadInput: the answer is not yes, or there is no terminal.
    """
    if sys.stdin is not None and sys.stdin.isatty():
        sys.stderr.write(f"Change {render.to_one_line(file)}? [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return
    raise BadInput("nothing was changed", code="not_confirmed", hint="repeat it with --yes")


def find_own_command() -> list[str]:
    """Return the command with which a client starts this installation."""
    found = shutil.which("retinue")
    mine = os.path.realpath(sys.argv[0])
    # The bin folder of a virtual environment is on the PATH of this shell, not of the client.
    lasting = found and not os.path.exists(os.path.join(os.path.dirname(found), "../pyvenv.cfg"))
    if found and lasting and os.path.realpath(found) == mine:
        return ["retinue"]
    if os.path.basename(mine) == "retinue" and os.access(mine, os.X_OK):
        return [os.path.abspath(sys.argv[0])]
    # -P: the client starts it in a project, and must not import a retinue.py from there.
    return [sys.executable, "-P", "-m", "retinue"]


def _name_change(change: FileChange) -> str:
    if change.before is None:
        return "created"
    return "removed" if change.after is None else "changed"


def _format_changes(document: dict[str, Any]) -> str:
    changed = document.get("files", {})
    lines = [f"{file} was {what}" for file, what in changed.items()]
    lines = lines or [f"{document['file']} needs no change"]
    if "subagents" in document:
        found = document["subagents"]
        lines += [f"subagents can be: {each['name']} ({each['found']})" for each in found]
        ready = [each["name"] for each in found if each["ready"]]
        lines.append(
            f"choose with: retinue mcp install --subagents {ready[0]}"
            if ready
            else "nothing that can be a subagent is ready: set the key of a provider, or see "
            "'retinue model install --help'"
        )
    return render.escape_text("\n".join(lines))
