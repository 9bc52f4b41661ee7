"""Users of one machine, each with a home of their own, who type commands."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from support.roots import held
from support.scenes import User, user

BOUND_S = 60
CONFIG = """
orchestrator:
  coordination:
    subagent_min_timeout: 0.1
    subagent_max_concurrent: 2
    subagent_cancel_grace_seconds: [0.4, 0.3]
    subagent_runtime_mode: inherited
"""


class Person:
    """One user, at a shell."""

    def __init__(self, place: Path, who: User) -> None:
        self.place = place
        self.who = who
        self.home = self.folder("home")
        self.environment = {
            "PATH": os.defpath,
            "HOME": str(self.home),
            "PYTHONPATH": who.path,
            "RETINUE_IDLE_SECONDS": "30",
        }

    @property
    def trusted(self) -> Path:
        """The list of the roots that this user trusts."""
        return self.home / ".local" / "state" / "retinue" / "trusted"

    def folder(self, name: str) -> Path:
        path = self.place / name
        path.mkdir(mode=0o755)
        os.chown(path, self.who.uid, -1)
        return path

    def write(self, path: Path, text: str) -> Path:
        path.write_text(text)
        os.chown(path, self.who.uid, -1)
        return path

    def copy(self, project: Path, name: str) -> Path:
        """A copy of a whole project, made by this user while nobody writes in it."""
        self.run(project, "steward", "stop")
        target = self.place / name
        words = ["cp", "-a", str(project), str(target)]
        subprocess.run([*self.who.prefix, *words], check=True)
        return target

    def run(
        self,
        cwd: Path,
        *words: str,
        code: int | None = 0,
        environment: Mapping[str, str] | None = None,
    ) -> str:
        """What a command printed, once its exit code is known to be this one."""
        done = subprocess.run(
            [*self.who.prefix, self.who.python, "-P", "-m", "retinue", *words],
            cwd=cwd,
            env=self.environment if environment is None else environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BOUND_S,
        )
        assert code is None or done.returncode == code, (words, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout

    def json(self, cwd: Path, *words: str, **options: Any) -> Any:
        return json.loads(self.run(cwd, "--json", *words, **options))

    def refusal(self, cwd: Path, *words: str, code: int = 1, **options: Any) -> dict[str, str]:
        """The error that a command ends with."""
        error: dict[str, str] = self.json(cwd, *words, code=code, **options)["error"]
        return error


@contextlib.contextmanager
def person(name: str) -> Iterator[Person]:
    """A user in a place of their own; nothing that was started in it is left."""
    who = user(name)
    with tempfile.TemporaryDirectory(prefix="retinue-person-", ignore_cleanup_errors=True) as top:
        place = Path(top).resolve()
        place.chmod(0o755)
        os.chown(place, who.uid, -1)
        found = Person(place, who)
        try:
            yield found
        finally:
            for root in place.rglob(".retinue"):
                # A steward that was stopped has left its subagents running: the next one ends them.
                found.run(place, "--root", str(root), "task", "list", code=None)
                with held(root):
                    pass


def as_if_cloned(project: Path) -> None:
    """The copy of a project holds what a stranger's checkout would: no mark, and no sockets."""
    root = project / ".retinue"
    (root / "identity.json").unlink()
    for name in ("steward.sock", "desk"):
        shutil.rmtree(root / name, ignore_errors=True)
        (root / name).unlink(missing_ok=True)
