"""`artifacts/changes.patch`: what a subagent changed, for whoever joins it by hand."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from retinue.files import storage_failures
from retinue.workspaces.git import Git, Where
from retinue.workspaces.own import own_folder

PATCH = "changes.patch"


async def write_patch(git: Git, ours: Where, artifacts: Path, commit: str) -> None:
    own_folder(artifacts)
    new = artifacts / f".{PATCH}.new"
    words = ("diff-tree", "-p", "--binary", "--full-index", "--no-ext-diff", "--no-textconv",
             "--no-commit-id", f"{commit}^", commit)  # fmt: skip
    with storage_failures(new), _created(new) as file:
        await git.run(ours, *words, stdout=file.fileno())
        new.replace(artifacts / PATCH)


def _created(path: Path) -> BinaryIO:
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return open(os.open(path, flags, 0o600), "wb")
