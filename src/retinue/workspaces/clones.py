"""The git folder that a child finds in its workspace: its own, and never looked into by us."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from retinue.files import storage_failures
from retinue.workspaces.removal import remove_tree

EXCLUDE = b"/.retinue/\n"  # of a child's own use
ATTRIBUTES = b"* -text -filter -ident -working-tree-encoding\n"
GIT, NEW = ".git", ".workspace.new"
# Through a workspace, a file has another owner and another age of its entry than the index knows.
SEEN_THROUGH = "[core]\n\tcheckStat = minimal\n\ttrustctime = false\n"


def give_history(tree: Path, base: str, index: Path) -> None:
    """The part of a git folder that is the same for all who start from this commit."""
    inner = tree / GIT
    with storage_failures(inner):
        for folder in ("refs/heads", "refs/tags", "info", "objects/pack"):
            (inner / folder).mkdir(parents=True, exist_ok=True)
        for path, data in (
            ("refs/heads/work", f"{base}\n".encode()),
            ("info/attributes", ATTRIBUTES),
            ("info/exclude", EXCLUDE),
            ("HEAD", b"ref: refs/heads/work\n"),
        ):
            (inner / path).write_bytes(data)
        shutil.copyfile(index, inner / "index")


def give_identity(ours: Path, workspace: Path, name: str, *, settings: str) -> None:
    """The part of a git folder that is the workspace's own: who commits, and where it reads.

    Args:
        ours: the repository whose objects it reads.
    """
    inner, objects = workspace / GIT, ours / "objects"
    identity = f"[user]\n\tname = {name}\n\temail = {name}@retinue.invalid\n"
    with storage_failures(inner):
        for folder in ("", "objects", "objects/info"):
            (inner / folder).mkdir(exist_ok=True)
        config = (ours / "config").read_text().replace("bare = true", "bare = false")
        (inner / "config").write_bytes((config + settings + identity).encode())
        read = f"{objects}\n".encode() + alternates(objects)
        (inner / "objects/info/alternates").write_bytes(read)


def give_overlaid(ours: Path, workspace: Path, uid: int | None) -> None:
    """A workspace that is over a base has its own part of a git folder, and nothing else."""
    making = workspace.with_name(NEW)
    make_empty(making, uid)
    give_identity(ours, making, workspace.parent.name, settings=SEEN_THROUGH)
    if uid is not None:
        give(making / GIT, uid)
    put_in_place(making, workspace)


def make_empty(folder: Path, uid: int | None) -> None:
    """An empty folder of that user's stands here."""
    with storage_failures(folder):
        if os.path.lexists(folder):
            remove_tree(folder)
        folder.mkdir(mode=0o755)
        if uid is not None:
            os.chown(folder, uid, uid)


def put_in_place(making: Path, workspace: Path) -> None:
    with storage_failures(workspace):
        if workspace.is_dir() and not any(workspace.iterdir()):
            workspace.rmdir()
        making.rename(workspace)


def alternates(objects: Path) -> bytes:
    """Every folder of objects that is read besides this one, in lines.

    By where they really are: a child is shown these, and no link that leads there.
    """
    found: list[bytes] = []
    waiting = [objects]
    while waiting and len(found) < 16:
        here = waiting.pop()
        try:
            lines = (here / "info" / "alternates").read_bytes().splitlines()
        except OSError:
            continue
        for line in lines:
            path = Path(os.path.realpath(here / os.fsdecode(line)))
            if line and not line.startswith(b"#") and os.fsencode(path) not in found:
                found.append(os.fsencode(path))
                waiting.append(path)
    return b"".join(path + b"\n" for path in found)


def give(top: Path, uid: int) -> None:
    """Everything here is that user's; links are given away themselves, never what they name."""
    with storage_failures(top):
        os.chown(top, uid, uid, follow_symlinks=False)
        for folder, folders, files in os.walk(top):
            for name in (*folders, *files):
                os.chown(os.path.join(folder, name), uid, uid, follow_symlinks=False)
