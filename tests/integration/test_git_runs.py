"""git, run by a steward: it does not outlive who runs it where that would be in the way."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from retinue.workspaces.git.git_command import Git, GitFailed, GitTarget, update_ref
from support.repositories import Repository
from support.roots import until

ASKED = """
import asyncio, sys
from pathlib import Path
from retinue.workspaces.git.git_command import Git, GitTarget
dies = sys.argv[3] == "dies"
where = GitTarget(git_dir=Path(sys.argv[1]), tree=Path(sys.argv[2]), dies_with_steward=dies)
asyncio.run(Git().run(where, "hash-object", "--stdin", stdin=0))
"""
BOUND_S = 20


@pytest.mark.parametrize("kind", ["dies", "kept"])
def test_no_git_process_is_left_in_our_trees(tmp_path: Path, kind: str) -> None:
    repository, tree = tmp_path / "repo.git", tmp_path / "tree"
    subprocess.run(["git", "init", "-q", "--bare", str(repository)], check=True)
    tree.mkdir()
    argv = [sys.executable, "-c", ASKED, str(repository), str(tree), kind]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as asking:
        git = _git_below(asking)
        asking.kill()
        asking.wait()
        assert bool(select.select([git], [], [], BOUND_S if kind == "dies" else 0)[0]) == (
            kind == "dies"
        )
        assert asking.stdin is not None
        asking.stdin.close()  # what it waited for has come to its end
        assert select.select([git], [], [], BOUND_S)[0]
        os.close(git)


def test_a_git_that_cannot_be_watched_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def refuse(pid: int) -> int:
        started.append(pid)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    reading, writing = os.pipe()
    with pytest.raises(GitFailed, match="git cannot be watched: Too many open files"):
        asyncio.run(Git().run(tmp_path, "hash-object", "--stdin", stdin=reading))
    assert not Path(f"/proc/{started[0]}").exists()
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("stale", [True, False])
def test_a_lock_that_an_interrupted_git_left_on_our_ref_holds_nothing_up(
    tmp_path: Path, stale: bool
) -> None:
    repository = Repository(tmp_path / "project")
    where = GitTarget(git_dir=repository.path / ".git")
    ref = "refs/heads/retinue/task"
    lock = where.git_dir / f"{ref}.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()

    async def move() -> None:
        if not stale:  # held by a git that is about to let go
            asyncio.get_running_loop().call_later(0.1, lock.unlink)
        await update_ref(Git(), where, ref, "HEAD", ref=ref)

    asyncio.run(move())
    assert repository.git("rev-parse", ref) == repository.git("rev-parse", "HEAD")
    assert not lock.exists()


def test_a_ref_that_git_does_not_move_for_another_reason_is_refused(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "project")
    where = GitTarget(git_dir=repository.path / ".git")
    ref = "refs/heads/retinue/task"
    with pytest.raises(GitFailed, match="nonsense"):
        asyncio.run(update_ref(Git(), where, ref, "nonsense", ref=ref))


def _git_below(asking: subprocess.Popen[bytes]) -> int:
    """A descriptor of the git that waits for more to read."""
    children = Path(f"/proc/{asking.pid}/task/{asking.pid}/children")

    def gits() -> list[str]:
        below = children.read_text().split()
        return [pid for pid in below if Path(f"/proc/{pid}/comm").read_text() == "git\n"]

    (pid,) = until(gits)
    return os.pidfd_open(int(pid))
