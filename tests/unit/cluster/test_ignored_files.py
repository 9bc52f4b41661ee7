"""What git ignores in a workspace on a node is sent up to a limit."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from retinue.cluster import ignored_files
from retinue.cluster.ignored_files import list_ignored_beyond
from retinue.files import make_folder
from retinue.workspaces.git.git_command import Git
from retinue.workspaces.git.task_repository import TrustedRepository

WHO = ("-c", "user.name=x", "-c", "user.email=x@example.invalid")
BASE = {
    ".gitignore": "*.bin\n",
    "deep/.gitignore": "made/\n",
    "replaced/.gitignore": "kept\n",
    "tracked.bin": "in the base\n" * 20,
}


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(ignored_files, "MOST_IGNORED", 100)
    return 100


def write(top: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_text(text)


def make_base(tmp_path: Path) -> tuple[TrustedRepository, str]:
    """Return a node's repository that has a commit, and the commit."""
    source = tmp_path / "source"
    source.mkdir()
    write(source, BASE)
    for words in (("init", "-q"), ("add", "-Af"), ("commit", "-qm", "base")):
        subprocess.run(["git", *WHO, *words], cwd=source, check=True)
    said = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=source, check=True, capture_output=True, text=True
    )
    folder = tmp_path / "root" / "repositories" / "git" / "one"
    make_folder(folder.parent.parent.parent)
    make_folder(folder.parent.parent)
    make_folder(folder.parent)
    ours = TrustedRepository(Git(), folder)
    ours.make(source / ".git" / "objects")
    return ours, said.stdout.strip()


def list_unsent(tmp_path: Path, workspace: Path, *, layered: bool) -> list[str]:
    ours, commit = make_base(tmp_path)
    found = asyncio.run(list_ignored_beyond(Git(), ours, commit, workspace, layered=layered))
    assert not list(ours.folder.glob("tmp*"))
    return found


CHANGES = {
    "tracked.bin": "x" * 500,
    "new.txt": "x" * 500,
    "large.bin": "x" * 300,
    "small.bin": "x" * 60,
    "deep/made/inside": "x" * 200,
    "replaced/kept": "x" * 400,
    "own/.gitignore": "log\n",
    "own/log": "x" * 250,
    "own/:(glob)*\n.bin": "x" * 150,
}


@pytest.mark.parametrize("layered", [True, False])
def test_the_largest_ignored_files_stay(tmp_path: Path, limit: int, layered: bool) -> None:
    workspace = tmp_path / "workspace"
    write(workspace, CHANGES if layered else BASE | CHANGES)
    if layered:
        os.setxattr(workspace / "replaced", "user.overlay.opaque", b"y")
    else:
        (workspace / "replaced" / ".gitignore").unlink()

    unsent = list_unsent(tmp_path, workspace, layered=layered)

    assert unsent == ["large.bin", "own/log", "deep/made/inside", "own/:(glob)*\n.bin"]


def test_a_child_s_own_git_folder_and_links_decide_nothing(tmp_path: Path, limit: int) -> None:
    outside = tmp_path / "outside"
    outside.write_text("*\n")
    workspace = tmp_path / "workspace"
    hostile = f"[core]\n\tfsmonitor = touch {tmp_path}/run\n\texcludesFile = {outside}\n"
    write(workspace, BASE | {"new.txt": "x" * 500, ".git/config": hostile})
    (workspace / ".git" / "info").mkdir()
    (workspace / ".git" / "info" / "exclude").write_text("*\n")
    (workspace / ".gitignore").unlink()
    (workspace / ".gitignore").symlink_to(outside)
    (workspace / "large.bin").write_text("x" * 300)

    assert list_unsent(tmp_path, workspace, layered=False) == []
    assert not (tmp_path / "run").exists()
    assert outside.read_text() == "*\n"
