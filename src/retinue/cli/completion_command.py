"""The `retinue completion` command: shell scripts that complete commands, options and ids."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from retinue.cli import render
from retinue.cli.options import CliCommand

SHELLS = ("bash", "zsh", "fish")


@click.command(
    cls=CliCommand,
    example="retinue completion bash >> ~/.bashrc\nretinue completion fish | source",
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script that completes commands, options and ids in a shell.

    Ids are completed while a steward runs; completion never starts one.
    """
    from retinue.cli.command_table import commands

    kind = get_completion_class(shell)
    assert kind is not None, "click knows these shells"
    render.print_line(kind(commands, {}, "retinue", "_RETINUE_COMPLETE").source().rstrip("\n"))
