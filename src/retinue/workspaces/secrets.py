"""Secrets in what is about to be joined: found by their form, named by kind and place only."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO

from retinue.domain.join import POLICY, JoinFailed
from retinue.workspaces.git import Git, Where
from retinue.workspaces.intake import GITLINK, Changed, shown_path

SHOWN = 20
AT_ONCE = 100
NOTHING = re.compile("0+")

KINDS = {
    "private_key": rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----",
    "AWS_key": rb"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "GitHub_token": rb"\b(?:gh[pousr]_[0-9A-Za-z]{36,}|github_pat_[0-9A-Za-z_]{60,})",
    "GitLab_token": rb"\bglpat-[0-9A-Za-z_-]{20,}",
    "Slack_token": rb"\bxox[abeoprs]-[0-9A-Za-z-]{20,}",
    "Google_key": rb"\bAIza[0-9A-Za-z_-]{35}\b",
    "Anthropic_key": rb"\bsk-ant-[0-9A-Za-z_-]{24,}",
    "OpenAI_key": rb"\bsk-(?:proj-|svcacct-)?[0-9A-Za-z_-]{40,}",
    "Stripe_key": rb"\b[rs]k_live_[0-9A-Za-z]{20,}",
    "npm_token": rb"\bnpm_[0-9A-Za-z]{36}\b",
    "PyPI_token": rb"\bpypi-AgEI[0-9A-Za-z_-]{50,}",
    "Hugging_Face_token": rb"\bhf_[0-9A-Za-z]{34}\b",
}
_ANY = re.compile(b"|".join(b"(?P<%s>%s)" % (k.encode(), v) for k, v in KINDS.items()))


def first_secret(data: bytes, before: bytes = b"") -> str:
    """Of which kind and on which line a secret stands that was not there before; or nothing."""
    known = {found[0] for found in _ANY.finditer(before)}
    for found in _ANY.finditer(data):
        if found[0] not in known:
            kind = (found.lastgroup or "").replace("_", " ")
            line = data.count(b"\n", 0, found.start()) + 1
            return f"{kind} on line {line}"
    return ""


def refuse_secrets(places: Sequence[tuple[str, str]]) -> None:
    """Raises:
    JoinFailed: there are places with secrets; it names path, kind and line.
    """
    if places:
        shown = [f"{shown_path(path)} ({what})" for path, what in places[:SHOWN]]
        raise JoinFailed(
            f"it brings what looks like a secret: {', '.join(shown)}",
            reason=POLICY,
            files=tuple(shown_path(path) for path, _ in places[:SHOWN]),
        )


async def require_no_secrets(git: Git, where: Where, changed: Sequence[Changed]) -> None:
    """Nothing that was changed brings a secret which its file did not hold before.

    Raises:
        JoinFailed: something does.
    """
    new = [each for each in changed if each.new_mode != GITLINK and not _is_none(each.new_blob)]
    places: list[tuple[str, str]] = []
    for start in range(0, len(new), AT_ONCE):
        part = new[start : start + AT_ONCE]
        blobs = [_blobs(each) for each in part]
        asked = "".join(f"{name}\n" for pair in blobs for name in pair).encode()
        with tempfile.TemporaryFile(dir=where.git_dir) as said:
            await git.run(where, "cat-file", "--batch", stdin=asked, stdout=said.fileno())
            said.seek(0)
            places += await asyncio.to_thread(_scan, said, part, blobs)
    refuse_secrets(places)


def _scan(
    said: IO[bytes], part: Sequence[Changed], blobs: Sequence[list[str]]
) -> list[tuple[str, str]]:
    objects = _objects(said)
    found = []
    for each, names in zip(part, blobs, strict=True):
        data, *before = [next(objects) for _ in names]
        if what := first_secret(data, *before):
            found.append((each.path, what))
    return found


def _objects(said: IO[bytes]) -> Iterator[bytes]:
    """The contents, in the order in which they were asked for."""
    while line := said.readline():
        yield said.read(int(line.split()[2]))
        said.read(1)


def _blobs(each: Changed) -> list[str]:
    """The new content, and the old where there was one."""
    had = each.old_mode != GITLINK and not _is_none(each.old_blob)
    return [each.new_blob, *([each.old_blob] if had else [])]


def _is_none(blob: str) -> bool:
    return NOTHING.fullmatch(blob) is not None
