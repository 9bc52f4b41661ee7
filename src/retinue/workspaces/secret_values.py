"""Values of secrets, and the search for secrets in what a child changed.

Values are read when a child is launched and kept only in memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
import tempfile
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from retinue.core.command_variables import FILE, SecretSource
from retinue.core.errors import PYTHON, Refused
from retinue.core.join_result import POLICY, JoinFailed
from retinue.core.result import Evidence
from retinue.files import is_root_folder, open_without_links
from retinue.workspaces.contexts import LeadsOutside, is_below, resolve_links
from retinue.workspaces.git.git_command import Git, GitTarget
from retinue.workspaces.git.merge_rules import GITLINK, ChangedFile, format_path

MAX_SECRET_BYTES = 64 * 1024
MIN_REDACTED = 4  # shorter texts occur everywhere
WITHHELD = "[withheld: a secret to be redacted from it was changed or can no longer be read]"

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
        root: paths through it, or through another root, are refused: children write there.

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
    above = os.path.realpath(root)

    def is_outside(place: str) -> bool:
        return not is_below(place, above) and not is_root_folder(place)

    try:
        # Security: children write in roots. A link that one of them left there could name any
        # file of the user, so a path through a root is refused, wherever it leads.
        path = resolve_links(secret.place, is_outside, above)
        # Not blocked by a pipe without a writer.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
        descriptor = open_without_links(path, flags)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _no_secret(secret, f"{secret.place} is not a plain file")
            data = file.read(MAX_SECRET_BYTES + 1)
    except LeadsOutside:
        why = f"{secret.place} leads through a .retinue folder, where children write"
        raise _no_secret(secret, why) from None
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

    def __init__(self, values: Collection[tuple[str, str]] | None) -> None:
        """Args: values: names and values; None if some are not known: all text is withheld."""
        self._is_blind = values is None
        # Longest first: one value may be part of another.
        self._known = list_redacted(values or ())

    def redact(self, text: str) -> str:
        if self._is_blind:
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


def list_redacted(values: Collection[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return each value, longest first, with what stands in its place.

    Args:
        values: names and values; a name may have several.
    """
    ordered = sorted(values, key=lambda each: -len(each[1]))
    return tuple((value, mark(name)) for name, value in ordered)


MOST_KEPT = 256  # subagents whose values are in memory


class GivenSecrets:
    """Values that subagents with redaction got, which may differ from what their source has now.

    The values are in memory only. For the next steward, digests are kept: they tell it whether
    the values that it reads are those.
    """

    def __init__(self, make_digest: Callable[[str], str] | None) -> None:
        """Args: make_digest: with a key of the root, so that a reader of them cannot try values.

        Without it, no steward knows what an earlier one gave.
        """
        self._make_digest = make_digest
        self._values: dict[Hashable, frozenset[tuple[str, str]]] = {}

    def add(self, owner: Hashable, values: Mapping[str, str], earlier: bytes) -> bytes:
        """Note the values of a new attempt; return the digests to be kept.

        Args:
            earlier: what was kept at an earlier attempt, or nothing.
        """
        known = self._values.pop(owner, frozenset())
        self._values[owner] = known | values.items()
        if len(self._values) > MOST_KEPT:
            del self._values[next(iter(self._values))]
        digests = {*_parse_digests(earlier), *self._list_digests(values)}
        return json.dumps(sorted(digests)).encode()

    def find(
        self, owner: Hashable, kept: bytes, now: Mapping[str, str] | None
    ) -> Collection[tuple[str, str]] | None:
        """Return all names and values that the owner got; None if some are not known.

        Args:
            kept: the digests.
            now: what the sources have now; None if that cannot be read.
        """
        if owner in self._values:
            return self._values[owner]
        digests = _parse_digests(kept)
        if now is None or not digests or not digests <= self._list_digests(now):
            return None
        return now.items()

    def _list_digests(self, values: Mapping[str, str]) -> set[str]:
        make = self._make_digest
        return {make(f"{name}={value}") for name, value in values.items()} if make else {""}


def _parse_digests(kept: bytes) -> set[str]:
    try:
        found = json.loads(kept)
    except ValueError:
        return set()
    return {each for each in found if isinstance(each, str)} if isinstance(found, list) else set()


def mark(name: str) -> str:
    """Return what stands in the place of a secret's value."""
    return f"[{name} redacted]"


SHOWN = 20
AT_ONCE = 100
NOTHING = re.compile("0+")

# Prefixes and full pattern of each kind. The pattern is tried only where a prefix occurs.
KINDS = {
    "private key": (["-----BEGIN "], r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"),
    "AWS key": (["AKIA", "ASIA"], r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "GitHub token": (
        ["ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"],
        r"\b(?:gh[pousr]_[0-9A-Za-z]{36,}|github_pat_[0-9A-Za-z_]{60,})",
    ),
    "GitLab token": (["glpat-"], r"\bglpat-[0-9A-Za-z_-]{20,}"),
    "Slack token": (["xox"], r"\bxox[abeoprs]-[0-9A-Za-z-]{20,}"),
    "Google key": (["AIza"], r"\bAIza[0-9A-Za-z_-]{35}\b"),
    "Anthropic key": (["sk-ant-"], r"\bsk-ant-[0-9A-Za-z_-]{24,}"),
    "OpenAI key": (["sk-"], r"\bsk-(?:proj-|svcacct-)?[0-9A-Za-z_-]{40,}"),
    "Stripe key": (["rk_live_", "sk_live_"], r"\b[rs]k_live_[0-9A-Za-z]{20,}"),
    "npm token": (["npm_"], r"\bnpm_[0-9A-Za-z]{36}\b"),
    "PyPI token": (["pypi-AgEI"], r"\bpypi-AgEI[0-9A-Za-z_-]{50,}"),
    "Hugging Face token": (["hf_"], r"\bhf_[0-9A-Za-z]{34}\b"),
}
_FORMS = [
    (kind, beginning.encode(), re.compile(form.encode()))
    for kind, (beginnings, form) in KINDS.items()
    for beginning in beginnings
]


def find_first_secret(data: bytes, before: bytes = b"") -> str:
    """Return kind and line of the first secret in `data` that is not in `before`; else ""."""
    known = {secret for _, _, secret in _find_secrets(before)}
    new = [(at, kind) for at, kind, secret in _find_secrets(data) if secret not in known]
    if not new:
        return ""
    at, kind = min(new)
    line = data.count(b"\n", 0, at) + 1
    return f"{kind} on line {line}"


def _find_secrets(data: bytes) -> Iterator[tuple[int, str, bytes]]:
    """Yield position, kind and text of each secret.

    Searching for prefixes first is twenty times faster than trying every pattern at every byte.
    A regular expression holds the interpreter lock all the time.
    """
    for kind, beginning, form in _FORMS:
        at = data.find(beginning)
        while at >= 0:
            found = form.match(data, at)
            if found:
                yield at, kind, found[0]
            at = data.find(beginning, found.end() if found else at + 1)


def refuse_secrets(places: Sequence[tuple[str, str]]) -> None:
    """Refuse output if there are places with secrets.

    Raises:
        JoinFailed: there are; it names path, kind and line.
    """
    if places:
        shown = [f"{format_path(path)} ({what})" for path, what in places[:SHOWN]]
        raise JoinFailed(
            f"it brings what looks like a secret: {', '.join(shown)}",
            reason=POLICY,
            files=tuple(format_path(path) for path, _ in places[:SHOWN]),
        )


async def require_no_secrets(git: Git, where: GitTarget, changed: Sequence[ChangedFile]) -> None:
    """Require that no changed file contains a secret that it did not contain before.

    Raises:
        JoinFailed: one does.
    """
    new = [each for each in changed if each.new_mode != GITLINK and not _is_none(each.new_blob)]
    places: list[tuple[str, str]] = []
    # In portions, to bound the temporary file.
    for start in range(0, len(new), AT_ONCE):
        part = new[start : start + AT_ONCE]
        blobs = [_list_blobs(each) for each in part]
        asked = "".join(f"{name}\n" for pair in blobs for name in pair).encode()
        with tempfile.TemporaryFile(dir=where.git_dir) as said:
            await git.run(where, "cat-file", "--batch", stdin=asked, stdout=said.fileno())
            said.seek(0)
            places += await asyncio.to_thread(_scan, said, part, blobs)
    refuse_secrets(places)


def _scan(
    said: IO[bytes], part: Sequence[ChangedFile], blobs: Sequence[list[str]]
) -> list[tuple[str, str]]:
    objects = _read_objects(said)
    found = []
    for each, names in zip(part, blobs, strict=True):
        data, *before = [next(objects) for _ in names]
        if what := find_first_secret(data, *before):
            found.append((each.path, what))
    return found


def _read_objects(said: IO[bytes]) -> Iterator[bytes]:
    """Yield the contents in the order of the request."""
    while line := said.readline():
        yield said.read(int(line.split()[2]))
        said.read(1)


def _list_blobs(each: ChangedFile) -> list[str]:
    """Return the new content's id, and the old one's if there was one."""
    had = each.old_mode != GITLINK and not _is_none(each.old_blob)
    return [each.new_blob, *([each.old_blob] if had else [])]


def _is_none(blob: str) -> bool:
    return NOTHING.fullmatch(blob) is not None
