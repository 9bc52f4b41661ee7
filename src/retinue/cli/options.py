"""Option types, command classes and helpers that all commands share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from retinue.cli.steward_session import CliSession
from retinue.core.errors import BadInput, RetinueError
from retinue.core.ids import LAST, is_id, require_id

MAX_CONFIG_BYTES = 4 * 1024 * 1024
MAX_COMPLETIONS = 200
_NUMBER = r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?"


def missing_package(what: str, error: ModuleNotFoundError, *, extra: str) -> BadInput:
    """Return the error for a command whose optional package is not installed."""
    return BadInput(
        f"{what} needs {error.name}, which is not installed",
        code="missing_package",
        hint=f"pip install 'retinue[{extra}]'",
    )


def _set_root(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    if not value:
        raise BadInput(
            "--root is empty", code="bad_root", hint="give the path of a .retinue folder"
        )
    context.ensure_object(CliSession).root = value


def _set_json(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        context.ensure_object(CliSession).json = True


def _make_common_options() -> list[click.Parameter]:
    """Return `--root` and `--json`, which every command and group accepts."""
    return [
        click.Option(
            ["--root"],
            metavar="DIR",
            expose_value=False,
            is_eager=True,
            callback=_set_root,
            help="The .retinue folder. Default: the nearest one upwards.",
        ),
        click.Option(
            ["--json"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_set_json,
            help="Print JSON.",
        ),
    ]


class CliCommand(click.Command):
    """Command with the common options, exit codes and an example."""

    def __init__(self, *args: Any, example: str = "", exits: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _make_common_options()
        self.example = example
        self.exits = exits

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes and the example below the options."""
        if self.exits:
            exits = [line.partition(" ") for line in self.exits.splitlines()]
            with formatter.section("Exit codes"):
                formatter.write_dl([(code, says) for code, _, says in exits])
        if self.example:
            with formatter.section("Example"):
                for line in self.example.splitlines():
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


class CliGroup(CliCommand, click.Group):
    """Group of `CliCommand`s."""

    command_class = CliCommand

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"no_args_is_help": False} | kwargs)


class LazyGroup(CliGroup):
    """Group that imports the module of a command on first use."""

    def __init__(self, *args: Any, later: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # name -> (module, one-line help)
        self._later = later

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._later, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._later:
            return super().get_command(ctx, cmd_name)
        module = import_module(f"retinue.cli.{self._later[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Raises:
        UsageError: no such command. The message suggests a similar name.
        """
        name = args[0]
        known = self.list_commands(ctx)
        if name not in known and not name.startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(name, known, 1)
            meant = f" Did you mean {close[0]!r}?" if close else ""
            raise click.UsageError(f"No such command {name!r}.{meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, says) for name, (_, says) in self._later.items()]
        rows += [(name, each.get_short_help_str(70)) for name, each in self.commands.items()]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def parse_task_id(text: str) -> str:
    """Return a valid task id.

    Ids are checked here so that an invalid one never starts a steward.
    """
    return require_id(text, "task id")


def parse_task(text: str) -> str:
    """Return the id of an existing task, the beginning of one, or `@last`."""
    return text if text == LAST else require_id(text, "task id")


def parse_subagent(text: str) -> str:
    """Return the id of an existing subagent, the beginning of one, or `@last`."""
    return text if text == LAST else require_id(text, "subagent id")


def parse_subagent_id(text: str) -> str:
    return require_id(text, "subagent id")


def parse_gate_id(text: str) -> str:
    return require_id(text, "gate id")


def _parse_seconds(text: str) -> float:
    """Return a number of seconds above 0."""
    from retinue.core.task_config import DURATION, require_duration

    if not re.fullmatch(_NUMBER, text):
        raise BadInput(f"a time must be {DURATION}, not {text[:40]!a}", code="invalid_timeout")
    return require_duration(float(text), "a time")


def _parse_wait_seconds(text: str) -> float:
    """Return a number of seconds; 0 means do not wait."""
    from retinue.core.task_config import WAIT, require_wait

    if not re.fullmatch(_NUMBER, text):
        raise BadInput(f"a time must be {WAIT}, not {text[:40]!a}", code="invalid_timeout")
    return require_wait(float(text), "a time")


def _parse_whole(text: str) -> int:
    if not re.fullmatch("[0-9]{1,15}", text):
        raise BadInput(f"a whole number is needed, not {text[:40]!a}", code="invalid_number")
    return int(text)


def _parse_positive(text: str) -> int:
    if _parse_whole(text) == 0:
        raise BadInput("a whole number above 0 is needed, not 0", code="invalid_number")
    return int(text)


def _make_callback(read: Callable[[str], float]) -> Callable[..., float | None]:
    """Return an option callback that parses a number and names the option in errors."""

    def convert(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
        try:
            return None if text is None else read(text)
        except BadInput as error:
            hint = f"try '{ctx.command_path} --help'"
            raise BadInput(
                f"{param.opts[0]}: {error.message}", code=error.code, hint=hint
            ) from None

    return convert


seconds = _make_callback(_parse_seconds)
seconds_or_zero = _make_callback(_parse_wait_seconds)
whole = _make_callback(_parse_whole)
counting = _make_callback(_parse_positive)


def _complete_id(
    context: click.Context, argument: click.Parameter, text: str
) -> list[CompletionItem]:
    """Return the ids that start with `text`; start no steward."""
    from retinue.client.blocking_client import Client, connect_if_running

    try:
        root = context.ensure_object(CliSession).find_folder()
        task = "" if argument.name == "task" else str(context.params["task"])
        if (connection := connect_if_running(root)) is None:
            rows = [(name, "") for name in _list_folders(root, task)]
        else:
            connection.close()
            client = Client(root)
            if not task:
                rows = [(row["task_id"], row["title"]) for row in client.call("task.list")]
            else:
                found = client.call("subagent.list", task=task)
                rows = [(row["agentInstance"], row["task"]) for row in found]
            client.close()
    except (RetinueError, OSError, KeyError):
        return []
    matching = [row for row in rows if row[0].startswith(text)]
    return [CompletionItem(name, help=str(says)[:60] or None) for name, says in matching]


def _list_folders(root: Path, task: str) -> list[str]:
    """Return the ids of all tasks, or of the subagents of one, by their folders, newest first.

    Args:
        task: its id or the beginning of it; empty for all tasks.
    """
    folder = root / "tasks"
    if task:
        known = [each for each in folder.iterdir() if each.name.startswith(task)]
        chosen = [each for each in known if each.name == task] or known
        if len(chosen) != 1:  # a beginning that fits several tasks is no id
            return []
        folder = chosen[0] / "agents"
    found = [each for each in folder.iterdir() if is_id(each.name)]
    newest = sorted(found, key=lambda each: each.stat().st_mtime, reverse=True)
    return [each.name for each in newest[:MAX_COMPLETIONS]]


TASK = click.argument("task", metavar="TASK", type=parse_task, shell_complete=_complete_id)
SUBAGENT = click.argument(
    "subagent", metavar="ID", type=parse_subagent, shell_complete=_complete_id
)
LIMIT = click.option(
    "--limit", metavar="N", callback=counting, help="Show the newest N. Default: 50."
)


def read_text(path: str, what: str) -> str:
    """Return the content of a file that was named on the command line.

    Raises:
        BadInput: the file cannot be read, is too large or is not UTF-8.
    """
    try:
        # One byte over the limit shows that the file is too large without reading all of it.
        with open(path, "rb") as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadInput(
            f"{what} {path}: {why}",
            code="bad_file",
            hint=f"give a {what} file that exists and is readable",
        ) from None
    if len(content) > MAX_CONFIG_BYTES:
        raise BadInput(f"{what} {path}: longer than {MAX_CONFIG_BYTES} bytes", code="bad_file")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{what} {path}: {error.reason} at byte {error.start}", code="bad_file"
        ) from None


def read_config(named: str) -> dict[str, str]:
    """Return the request parameters for a configuration file or a shipped `@name`.

    Raises:
        BadInput: there is no such configuration.
    """
    if not named.startswith("@"):
        return {"config_text": read_text(named, "configuration"), "config_name": named}
    from retinue.configs import read_shipped

    return {"config_text": read_shipped(named), "config_name": named}


def select_given(**params: Any) -> dict[str, Any]:
    """Return the options that were given; the steward knows the defaults of the others.

    An option that was not given is None, False or empty.
    """
    # 0 was given; False was not. In Python `False == 0`, hence the second test.
    return {name: it for name, it in params.items() if it or (it == 0 and it is not False)}
