"""What every command shares: the two common options, the kinds of values, and how help looks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import click

from retinue.domain.errors import BadInput
from retinue.domain.ids import require_id
from retinue.doors.cli.session import Session

MAX_CONFIG_BYTES = 4 * 1024 * 1024
_NUMBER = r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?"


def _set_root(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    if not value:
        raise BadInput("--root is empty", code="bad_root", hint="name the .retinue folder itself")
    context.ensure_object(Session).root = value


def _set_json(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        context.ensure_object(Session).json = True


def _common() -> list[click.Parameter]:
    """The options that stand before the verb and after it alike."""
    return [
        click.Option(
            ["--root"],
            metavar="DIR",
            expose_value=False,
            is_eager=True,
            callback=_set_root,
            help="The .retinue folder; without it the nearest one upwards.",
        ),
        click.Option(
            ["--json"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_set_json,
            help="Answer as JSON.",
        ),
    ]


class Verb(click.Command):
    """A command with the common options and an example of its use."""

    def __init__(self, *args: Any, example: str = "", exits: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _common()
        self.example = example
        self.exits = exits

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What its exit codes mean, where they mean more than that it failed; its example."""
        if self.exits:
            exits = [line.partition(" ") for line in self.exits.splitlines()]
            with formatter.section("Exit codes"):
                formatter.write_dl([(code, says) for code, _, says in exits])
        if self.example:
            with formatter.section("Example"):
                for line in self.example.splitlines():
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


class Verbs(Verb, click.Group):
    """The same for a group."""

    command_class = Verb

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"no_args_is_help": False} | kwargs)


class Lazy(Verbs):
    """A group of which some commands are in modules that are imported when they are asked for."""

    def __init__(self, *args: Any, later: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._later = later  # name -> (module, what it does)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._later, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._later:
            return super().get_command(ctx, cmd_name)
        module = import_module(f"retinue.doors.cli.{self._later[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Raises:
        UsageError: no such command; it names one that was probably meant.
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


def task_id(text: str) -> str:
    """A name known to be safe before the steward is asked, or even started."""
    return require_id(text, "task id")


def subagent_id(text: str) -> str:
    return require_id(text, "subagent id")


def gate_id(text: str) -> str:
    return require_id(text, "gate id")


def _seconds(text: str) -> float:
    """Seconds above none, in plain digits."""
    from retinue.domain.policy import DURATION, require_duration

    if not re.fullmatch(_NUMBER, text):
        raise BadInput(f"a time must be {DURATION}, not {text[:40]!a}", code="invalid_timeout")
    return require_duration(float(text), "a time")


def _seconds_or_zero(text: str) -> float:
    """The same; none at all asks without waiting."""
    from retinue.domain.policy import WAIT, require_wait

    if not re.fullmatch(_NUMBER, text):
        raise BadInput(f"a time must be {WAIT}, not {text[:40]!a}", code="invalid_timeout")
    return require_wait(float(text), "a time")


def _whole(text: str) -> int:
    if not re.fullmatch("[0-9]{1,15}", text):
        raise BadInput(f"a whole number is needed, not {text[:40]!a}", code="invalid_number")
    return int(text)


def _counting(text: str) -> int:
    if _whole(text) == 0:
        raise BadInput("a whole number above 0 is needed, not 0", code="invalid_number")
    return int(text)


def _number(read: Callable[[str], float]) -> Callable[..., float | None]:
    """The callback of an option: its number, or what is wrong with it, said with its name."""

    def convert(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
        try:
            return None if text is None else read(text)
        except BadInput as error:
            hint = f"try '{ctx.command_path} --help'"
            raise BadInput(
                f"{param.opts[0]}: {error.message}", code=error.code, hint=hint
            ) from None

    return convert


seconds, seconds_or_zero = _number(_seconds), _number(_seconds_or_zero)
whole, counting = _number(_whole), _number(_counting)

TASK = click.argument("task", metavar="TASK", type=task_id)
SUBAGENT = click.argument("subagent", metavar="ID", type=subagent_id)
LIMIT = click.option("--limit", metavar="N", callback=counting, help="The newest N; 50 without it.")


def read_text(path: str, what: str) -> str:
    """The content of a file that a person named.

    Raises:
        BadInput: it cannot be read, is no text, or is beyond all reason.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadInput(
            f"{what} {path}: {why}",
            code="bad_file",
            hint=f"name a {what} that is there and can be read",
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
    """The configuration in a file, or a shipped one by `@name`, as the steward takes it.

    Raises:
        BadInput: there is none.
    """
    if not named.startswith("@"):
        return {"config_text": read_text(named, "configuration"), "config_name": named}
    from retinue.configs import shipped

    return {"config_text": shipped(named), "config_name": named}


def given(**params: Any) -> dict[str, Any]:
    """What was given of these: the steward knows the defaults of what was left out.

    An option that was left out is None, False or empty; 0 is a value like any other.
    """
    return {name: it for name, it in params.items() if it or (it == 0 and it is not False)}
