"""Values of secrets, read when a child is launched and kept only in memory."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from retinue.core.errors import PYTHON, Refused
from retinue.core.result import Evidence
from retinue.core.secret_source import FILE, SecretSource

MAX_SECRET_BYTES = 64 * 1024
MIN_REDACTED = 4  # shorter texts occur everywhere
WITHHELD = "[withheld: a secret to be redacted from it can no longer be read]"

_FROM_SHELL = (
    "the steward may have been started with another environment than yours: stop it with "
    "'retinue steward stop' and call again from a shell that has the variable, or give "
    "--secret NAME=file:PATH"
)
_FROM_PYTHON = (
    "with connect(), the steward may have been started with another environment than this "
    "program: stop it, or give secrets=['NAME=file:PATH']"
)


def read_secrets(
    secrets: Sequence[SecretSource], environment: Mapping[str, str], root: Path
) -> dict[str, str]:
    """Return the values of secrets by their names.

    Args:
        environment: of the steward.
        root: files below it are refused, because children write there.

    Raises:
        Refused: one is missing or cannot be passed on, code `no_secret`.
    """
    return {each.name: _read_secret(each, environment, root) for each in secrets}


def require_secrets(
    secrets: Sequence[SecretSource], environment: Mapping[str, str], root: Path, *, redact: bool
) -> None:
    """Check that all secrets can be read now.

    Raises:
        Refused: one is missing, or too short to be redacted.
    """
    for name, value in read_secrets(secrets, environment, root).items():
        if redact and len(value) < MIN_REDACTED:
            raise Refused(
                f"the secret {name} is too short to be redacted from output",
                code="no_secret",
                hint=f"redaction needs at least {MIN_REDACTED} characters",
            )


def _read_secret(secret: SecretSource, environment: Mapping[str, str], root: Path) -> str:
    if secret.kind == FILE:
        value = _read_file(secret, root)
    else:
        value = environment.get(secret.place, "")
        if not value:
            raise _no_secret(secret, f"the variable {secret.place} is not set in the steward")
    if not value or "\0" in value:
        raise _no_secret(secret, "it is empty, or holds NUL")
    return value


def _read_file(secret: SecretSource, root: Path) -> str:
    path = os.path.realpath(secret.place)
    if Path(path).is_relative_to(root):
        raise _no_secret(secret, f"{secret.place} lies in the folder that children write to")
    try:
        # Not blocked by a pipe without a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _no_secret(secret, f"{secret.place} is not a plain file")
            data = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise _no_secret(secret, f"{secret.place}: {error.strerror}") from None
    if len(data) > MAX_SECRET_BYTES:
        raise _no_secret(secret, f"{secret.place} is larger than {MAX_SECRET_BYTES} bytes")
    try:
        # Most programs that write such a file end it with a line end.
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise _no_secret(secret, f"{secret.place} is not UTF-8 text") from None


def _no_secret(secret: SecretSource, why: str) -> Refused:
    message = f"the secret {secret.name} cannot be read: {why}"
    if secret.kind == FILE:
        hint = "the steward reads it as its own user, when the subagent starts"
        return Refused(message, code="no_secret", hint=hint)
    return Refused(message, code="no_secret", hint=_FROM_SHELL, hints={PYTHON: _FROM_PYTHON})


class Redactor:
    """Replaces the values of secrets in what a child said."""

    def __init__(self, values: Mapping[str, str] | None) -> None:
        """Args: values: by name; None if they can no longer be read: all text is withheld."""
        self._values = values
        # Longest first: one value may be part of another.
        self._known = list_redacted(values or {})

    def redact(self, text: str) -> str:
        if self._values is None:
            return WITHHELD if text else ""
        for value, instead in self._known:
            text = text.replace(value, instead)
        return text

    def redact_evidence(self, evidence: Evidence) -> Evidence:
        """Return the evidence of a command with its texts redacted."""
        said = evidence.declaration
        if said is not None:
            questions = tuple(map(self.redact, said.questions))
            said = replace(said, summary=self.redact(said.summary), questions=questions)
        # The init has redacted the output already, but cut lines may hold parts of a line end.
        return replace(
            evidence,
            declaration=said,
            final_answer=self._redact_optional(evidence.final_answer),
            stdout=self._redact_optional(evidence.stdout),
            last_words=self.redact(evidence.last_words),
            output=self.redact(evidence.output),
            answers={name: self.redact(text) for name, text in evidence.answers.items()},
            testimony=None,
        )

    def _redact_optional(self, text: str | None) -> str | None:
        return None if text is None else self.redact(text)


def list_redacted(values: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return each value, longest first, with what stands in its place."""
    ordered = sorted(values.items(), key=lambda each: -len(each[1]))
    return tuple((value, mark(name)) for name, value in ordered)


def mark(name: str) -> str:
    """Return what stands in the place of a secret's value."""
    return f"[{name} redacted]"
