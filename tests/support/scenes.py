"""A project with secrets around it, whose steward is root or an ordinary user.

As root, both are played: an ordinary user is played by becoming one, with an interpreter and a
copy of the package that anybody may read. As an ordinary user, there is only that user.
"""

from __future__ import annotations

import compileall
import contextlib
import functools
import json
import os
import secrets
import select
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from retinue.child.namespaces import lacks_mount_right
from support.roots import BOUND_S, Root, held

NOBODY = 65534
SOURCE = Path(__file__).parents[2] / "src"
ATTACKER = Path(__file__).with_name("attacker.py")
PYTHON = "/usr/bin/python3"  # what a child sees of Python, wherever ours is
USERS = ("root", "ordinary") if os.geteuid() == 0 else ("ordinary",)

CONFIG = """
orchestrator:
  coordination:
    subagent_default_timeout: 30
    subagent_min_timeout: 0.1
    subagent_max_concurrent: {limit}
    subagent_cancel_grace_seconds: [0.4, 0.3]
"""

needs_mounts = pytest.mark.skipif(
    lacks_mount_right(), reason="root lacks CAP_SYS_ADMIN, which this needs"
)
needs_python = pytest.mark.skipif(not Path(PYTHON).exists(), reason=f"children need {PYTHON}")


@dataclass(frozen=True, kw_only=True)
class User:
    """Who a steward is, and how one becomes that."""

    name: str
    uid: int
    prefix: tuple[str, ...]
    python: str
    path: str  # of the package and what it needs


@functools.cache
def user(name: str) -> User:
    if name == "root" or os.geteuid() != 0:
        path = os.pathsep.join([str(SOURCE), *filter(None, sys.path)])
        return User(name=name, uid=os.geteuid(), prefix=(), python=sys.executable, path=path)
    words = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    # What setpriv itself executes, it still finds as root.
    become = (*words, "sh", "-c", 'exec "$0" "$@"')
    path = os.pathsep.join([package(), libraries()])
    for python in (sys.executable, PYTHON):
        tried = [
            *become,
            python,
            "-c",
            "import retinue.steward.__main__, retinue.formats.schemas.config_schema",
        ]
        environment = {"PYTHONPATH": path, "PATH": os.defpath}
        if not subprocess.run(tried, env=environment, capture_output=True).returncode:
            return User(name=name, uid=NOBODY, prefix=become, python=python, path=path)
    pytest.skip("no Python here that an ordinary user may run has what the package needs")


@functools.cache
def package() -> str:
    """A copy of the package that everybody may read, and tests may touch."""
    return _copied(SOURCE)


@functools.cache
def libraries() -> str:
    """What the package needs, where everybody may read it."""
    installed = Path(sysconfig.get_path("purelib"))
    closed = [path for path in (installed, *installed.parents) if not path.stat().st_mode & 0o001]
    return _copied(installed) if closed else str(installed)


def _copied(source: Path) -> str:
    folder = Path(tempfile.mkdtemp(prefix="retinue-copy-"))
    _removed_at_the_end.callback(shutil.rmtree, folder, ignore_errors=True)
    compiled = shutil.ignore_patterns("__pycache__")  # often for their maker's eyes only
    shutil.copytree(source, folder, ignore=compiled, dirs_exist_ok=True)
    compileall.compile_dir(folder, quiet=2)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return str(folder)


_removed_at_the_end = contextlib.ExitStack()


def pytest_sessionfinish() -> None:
    _removed_at_the_end.close()


class Scene:
    """One user's home and project, with things in them that no child may ever see."""

    def __init__(self, place: Path, who: User) -> None:
        self.who = who
        self.place = place
        self.home, self.project = place / "home", place / "project"
        self.canary = place / "canary"
        self.root = Root(self.project / ".retinue")
        self.secrets = {name: f"hunter2-{secrets.token_hex(8)}" for name in ("env", "argv", "file")}
        for folder in (self.home / ".ssh", self.project / "src", self.canary, self.root.path):
            folder.mkdir(parents=True)
        self.home.chmod(0o700)
        self.write(self.home / ".ssh" / "id_ed25519", self.secrets["file"])
        self.write(self.canary / "canary.txt", self.secrets["file"])
        self.write(self.project / "src" / "main.py", "print('project')\n", mode=0o644)
        shutil.copy(ATTACKER, self.project / "attacker.py")
        for path in (place, *place.rglob("*")):
            os.chown(path, who.uid, -1)
        self.root.path.chmod(0o700)

    def write(self, path: Path, text: str, mode: int = 0o600) -> Path:
        path.write_text(text)
        path.chmod(mode)
        os.chown(path, self.who.uid, -1)
        return path

    def start(
        self, *, wrapper: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> str:
        """A steward of this scene's user is ready, with a secret in each place of its own."""
        ours, theirs = os.pipe()
        own = {"PATH": os.defpath, "HOME": str(self.home), "PYTHONPATH": self.who.path}
        own |= {"SECRET_KEY": self.secrets["env"], "LANG": "C.UTF-8", **(environment or {})}
        argv = [*self.who.prefix, *wrapper, self.who.python, "-P", "-m", "retinue.steward"]
        with open(self.root.path / "steward.log", "ab") as log:
            subprocess.Popen(
                [*argv, str(self.root.path), str(theirs), self.secrets["argv"]],
                env=own,
                cwd=self.root.path,
                pass_fds=[theirs],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        os.close(theirs)
        with open(ours, "rb") as said:
            assert select.select([said], [], [], BOUND_S)[0], "no steward in time"
            return said.readline().decode()

    def task(self, more: str = "", *, limit: int = 20) -> str:
        """A task of its own; `more` are lines below `coordination`."""
        text = CONFIG.format(limit=limit) + more
        return str(self.root.call("task.create", title="t", config_text=text)["task_id"])

    def attack(self, task: str, *groups: str, **terms: Any) -> Attack:
        """What a child could do that tries these groups; `targets` says on what."""
        targets = {"groups": groups, "root": str(self.root.path), **terms.pop("targets", {})}
        script = f'exec {PYTHON} -I -S "$RETINUE_CONTEXT/files/attacker.py" "$1"'
        brief = {
            "argv": ["sh", "-c", script, "sh", json.dumps(targets)],
            "context_paths": [],
            "context_files": ["attacker.py"],
            "max_retries": 0,
        }
        (result,) = self.root.run(task, brief | terms, cwd=str(self.project))
        assert result["status"] == "completed", result
        path = Path(result["workspace"], "report.json")
        return Attack(result=result, tries=json.loads(path.read_text()))


@dataclass(frozen=True, kw_only=True)
class Attack:
    result: dict[str, Any]
    tries: dict[str, dict[str, Any]]

    @property
    def folder(self) -> Path:
        """The subagent's own folder."""
        return Path(self.result["workspace"]).parent

    def value(self, name: str) -> Any:
        found = self.tries[name]
        assert found["ok"], f"{name}: {found}"
        return found["value"]

    def error(self, name: str) -> str:
        assert not self.tries[name]["ok"], f"{name} worked: {self.tries[name]}"
        return str(self.tries[name]["error"])

    def worked(self, *prefixes: str) -> dict[str, Any]:
        """The tries that succeeded, by their name, with what they gave; some were made."""
        tried = {name: each for name, each in self.tries.items() if name.startswith(prefixes)}
        assert tried, f"nothing was tried of {prefixes}"
        return {name: each["value"] for name, each in tried.items() if each["ok"]}


@contextlib.contextmanager
def staged(name: str, where: str | None = None) -> Iterator[Scene]:
    """A scene without a steward yet; whatever ran in it is gone at the end, and so is it."""
    who = user(name)
    with tempfile.TemporaryDirectory(
        prefix="retinue-scene-", dir=where, ignore_cleanup_errors=True
    ) as folder:
        place = Path(folder).resolve()
        place.chmod(0o755)
        made = Scene(place, who)
        with held(made.root.path) as root:
            made.root = root
            yield made


@pytest.fixture(scope="module", params=USERS)
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """One scene for all tests of a module, with its steward."""
    with staged(request.param) as made:
        assert json.loads(made.start())["ready"]
        yield made
