"""Secrets of a command: their names and where the steward reads them, never their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retinue.core.errors import BadInput
from retinue.core.variables import require_variable_names

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
