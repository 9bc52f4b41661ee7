"""Git repositories for tests, and plans that are carried out on them by a real steward."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import StewardUnavailable
from support.reader import Reader
from support.roots import CONFIG, Root, held, until
from support.traces import is_over

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{who}_NAME": "Someone" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "someone@example.org" for who in ("AUTHOR", "COMMITTER")},
}
ISOLATED = CONFIG.replace("inherited", "isolated")

Step = dict[str, Any]


class Repository:
    """A repository of a user's, with a first commit; `new=False`: one that is there."""

    def __init__(
        self, path: Path, files: dict[str, str] | None = None, *, new: bool = True
    ) -> None:
        self.path = path
        if not new:
            return
        path.mkdir(exist_ok=True, parents=True)
        self.git("init", "-q", "-b", "main")
        self.write(files or {"a.txt": "one\ntwo\nthree\n"})
        self.commit("base")

    def git(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(["git", *words], cwd=self.path, env=ENVIRONMENT, capture_output=True)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return os.fsdecode(done.stdout).rstrip("\n")

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def commit(self, message: str) -> str:
        self.git("add", "-A", "--", ".", ":(exclude).retinue")
        self.git("commit", "-q", "-m", message)
        return self.git("rev-parse", "HEAD")

    def files(self, ref: str) -> dict[str, str]:
        names = self.git("ls-tree", "-r", "--name-only", "-z", ref).split("\0")
        return {name: self.git("show", f"{ref}:{name}") for name in names if name}

    def untouched(self) -> tuple[Any, ...]:
        """What belongs to the user alone: HEAD, its branches, index, stash and files."""
        files = {
            str(path.relative_to(self.path)): (path.stat().st_mtime_ns, path.read_bytes())
            for path in sorted(self.path.rglob("*"))
            if path.is_file() and not {".git", ".retinue"} & set(path.parts)
        }
        index = (self.path / ".git" / "index").read_bytes()
        heads = self.git("for-each-ref", "--format=%(refname) %(objectname)").splitlines()
        theirs = [line for line in heads if "retinue" not in line]
        return self.git("rev-parse", "HEAD"), self.git("stash", "list"), theirs, index, files

    def joined(self, branch: str) -> list[str]:
        """Whose work is on the branch, oldest first."""
        words = ("log", "--reverse", "--format=%(trailers:key=Sub-Agent-Id,valueonly)")
        return self.git(*words, f"main..{branch}").split()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "project")


@pytest.fixture
def root(repository: Repository) -> Iterator[Root]:
    """A root in the repository, of which a reader that trusts nothing finds no fault."""
    with held(repository.path / ".retinue") as root:
        yield root
        Reader(root.path).check(finished=False)


def step(name: str, script: str, **more: Any) -> Step:
    """A step that runs a shell script, without a second try."""
    known = {"id": name, "title": f"Do {name}", "command": ["sh", "-c", script], "retries": 0}
    return known | {"timeout_seconds": 20} | more


def plan(*steps: Step, **more: Any) -> str:
    """JSON is YAML."""
    document = {"goal": "Build it", "base": {"repository": "."}, "steps": list(steps)} | more
    return json.dumps({key: value for key, value in document.items() if value is not None})


def start(root: Root, text: str, config: str = CONFIG, limit: int = 8, **more: Any) -> str:
    """The task of a run that is under way."""
    answer = root.call("run.start", plan_text=text, config_text=config.format(limit=limit), **more)
    return str(answer["task_id"])


def carry_out(root: Root, text: str, **more: Any) -> dict[str, Any]:
    """What a whole run came to."""
    end: dict[str, Any] = root.call("run.wait", task=start(root, text, **more))
    return end


def die_at(root: Root, monkeypatch: pytest.MonkeyPatch, point: str, text: str, **more: Any) -> None:
    """A steward died at that point of the plan, and nobody has the root since."""
    monkeypatch.setenv("RETINUE_FAILPOINT", point)
    with suppress(StewardUnavailable):
        carry_out(root, text, **more)
        pytest.fail(f"no steward came to {point}")
    monkeypatch.delenv("RETINUE_FAILPOINT")
    steward = int((root.path / "steward.lock").read_text())
    until(lambda: is_over(steward))
    root.release()


def reasons(end: dict[str, Any]) -> dict[str, str]:
    """How each step's output was joined, or why not."""
    return {
        result["subagent_id"]: (result.get("integration") or {}).get("reason", "")
        for result in end["results"]
    }
