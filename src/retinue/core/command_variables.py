"""Environment variables and secrets of a command: names and limits, never the values of secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from retinue.core.errors import BadInput
from retinue.core.safe_text import clean_text

MAX_VARIABLES = 256
MAX_TOTAL = 256 * 1024  # characters of all names and values; the kernel limits one to 128 KiB
MAX_VALUE = 120 * 1024

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
# The dynamic loader and the C library run or load what these name before the command starts.
_LOADER = ("LD_", "DYLD_")
_REFUSED = frozenset({"GCONV_PATH", "GLIBC_TUNABLES", "MALLOC_TRACE", "NLSPATH", "LOCPATH"})
_OURS = "RETINUE_"


def require_variable_names(names: Iterable[str], where: str) -> None:
    """Check the names of variables.

    Raises:
        BadInput: one is no name of a variable, or is reserved.
    """
    for name in names:
        if not _NAME.fullmatch(name):
            raise BadInput(
                f"{where}: {name[:40]!a} is not the name of a variable",
                code="invalid_variable",
                hint="letters, digits and _, not starting with a digit",
            )
        if name.startswith(_OURS):
            raise BadInput(
                f"{where}: {name[:40]} is reserved: Retinue sets the variables RETINUE_*",
                code="reserved_variable",
                hint="choose another name",
            )
        if name.startswith(_LOADER) or name in _REFUSED:
            raise BadInput(
                f"{where}: {name[:40]} would change how the command's program is loaded",
                code="reserved_variable",
                hint="set it in the command itself: -- env NAME=VALUE PROGRAM",
            )


def require_variables(variables: Mapping[str, str], where: str) -> None:
    """Check names and values of variables.

    Raises:
        BadInput: a name or value cannot be passed on, or there are too many.
    """
    require_variable_names(variables, where)
    for name, value in variables.items():
        if "\0" in value or clean_text(value) != value:
            raise BadInput(
                f"{where}: the value of {name} holds NUL or is not Unicode text",
                code="invalid_variable",
                hint="put such bytes in a file of context_files",
            )
    total = sum(len(name) + len(value) for name, value in variables.items())
    longest = max(map(len, variables.values()), default=0)
    if len(variables) > MAX_VARIABLES or total > MAX_TOTAL or longest > MAX_VALUE:
        raise BadInput(
            f"{where}: at most {MAX_VARIABLES} variables of {MAX_VALUE} characters, and "
            f"{MAX_TOTAL} characters in all",
            code="invalid_variable",
            hint="put long text in a file of context_files, or give it as stdin",
        )


ENV, FILE = "env", "file"
MAX_SECRETS = 64


@dataclass(frozen=True, kw_only=True)
class SecretSource:
    """A secret that a command gets as a variable."""

    name: str  # of the variable
    kind: str  # env: a variable of the steward; file: a file
    place: str  # name of that variable, or path


def parse_secrets(
    texts: Sequence[str], variables: Mapping[str, str], where: str
) -> tuple[SecretSource, ...]:
    """Parse NAME, NAME=env:VARIABLE or NAME=file:PATH.

    Args:
        variables: further variables of the command, which must have other names.

    Raises:
        BadInput: one has another form, or a name that is taken or reserved.
    """
    found = tuple(_parse_secret(text, where) for text in texts)
    names = [secret.name for secret in found]
    require_variable_names(names, where)
    twice = [name for name in names if names.count(name) > 1 or name in variables]
    if twice or len(names) > MAX_SECRETS:
        said = f"{twice[0]} is given twice" if twice else f"more than {MAX_SECRETS}"
        raise BadInput(f"{where}: {said}", code="invalid_secret")
    return found


def complete_paths(secrets: Sequence[SecretSource], base: PurePath) -> tuple[SecretSource, ...]:
    """Return the secrets with the paths of files made complete."""
    return tuple(
        replace(each, place=str(base / each.place)) if each.kind == FILE else each
        for each in secrets
    )


def format_secret(secret: SecretSource) -> str:
    return f"{secret.name}={secret.kind}:{secret.place}"


def _parse_secret(text: str, where: str) -> SecretSource:
    name, given, source = text.partition("=")
    kind, _, place = source.partition(":") if given else (ENV, "", name)
    # The text itself is not shown: it may be a value, given by mistake.
    if kind not in (ENV, FILE) or not place or "\0" in place:
        raise BadInput(
            f"{where}: a secret is NAME, NAME=env:VARIABLE or NAME=file:PATH",
            code="invalid_secret",
            hint="never give its value here: set a variable of the steward, or write a file",
        )
    return SecretSource(name=name, kind=kind, place=place)
