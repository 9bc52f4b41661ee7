"""Search for secrets in output before it is joined; reports name only kind and place."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO

from retinue.core.join_result import POLICY, JoinFailed
from retinue.workspaces.git.git_command import Git, GitTarget
from retinue.workspaces.git.import_tree import GITLINK, ChangedFile, format_path

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
