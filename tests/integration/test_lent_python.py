"""A Python of the user's own, lent to a command with the packages of its environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from retinue.core.errors import BadInput
from retinue.workspaces.python_environment import find_interpreter
from support.roots import CONFIG, Root, root

__all__ = ["root"]
ISOLATED = CONFIG.replace("inherited", "isolated").format(limit=5)
SEES = "import mine, sys; print(mine.WORD, sys.prefix)"


@pytest.fixture
def environment(root: Root) -> Path:
    """A virtual environment of the project with a module of its own."""
    folder = root.path.parent / "env"
    base = os.path.realpath(sys.executable)
    subprocess.run([base, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (packages / "mine.py").write_text("WORD = 'seen'\n")
    return folder


@pytest.fixture
def task(root: Root) -> str:
    return str(root.call("task.create", title="t", config_text=ISOLATED)["task_id"])


def brief(argv: list[str], **terms: object) -> dict[str, object]:
    return {"task": "", "argv": argv, "context_paths": [], "timeout_seconds": 60} | terms


def test_a_command_has_the_python_and_the_packages_of_an_environment(
    root: Root, task: str, environment: Path
) -> None:
    program = str(environment / "bin" / "python")
    (result,) = root.run(task, brief(["python3", "-c", SEES], python=program))
    assert result["status"] == "completed", result
    assert result["answer"].strip() == f"seen {environment}", result
    writes = "import mine; open(mine.__file__, 'a')"
    (refused,) = root.run(task, brief(["python3", "-c", writes], python=program))
    assert "Read-only file system" in refused["error_output"], refused


def test_without_it_the_packages_are_not_there(root: Root, task: str, environment: Path) -> None:
    (result,) = root.run(task, brief(["python3", "-c", SEES]))
    assert "No module named 'mine'" in result["error_output"], result


def test_a_command_that_is_not_visible_names_the_option(
    root: Root, task: str, environment: Path
) -> None:
    program = str(environment / "bin" / "python")
    (result,) = root.run(task, brief([program, "-c", "print(1)"]))
    assert "--with-python" in result["error"], result


def test_what_belongs_to_no_python_is_refused(root: Root, task: str, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "python3"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for path in (str(program), "python3", str(tmp_path)):
        refusal = root.refusal("subagent.spawn", task=task, tasks=[brief(["date"], python=path)])
        assert refusal.code == "no_python", refusal
    assert root.rows(task) == {}


def test_a_home_folder_is_not_lent_for_a_python_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib" / "python3.11").mkdir(parents=True)
    (tmp_path / "lib" / "python3.11" / "os.py").touch()
    program = tmp_path / "bin" / "python3"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_interpreter(str(program)).lent == (str(tmp_path),)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(BadInput, match="which has other files"):
        find_interpreter(str(program))


def test_a_folder_with_packages_alone_is_not_lent_as_an_installation(tmp_path: Path) -> None:
    # An environment made by ~/.local/bin/python3, a link to another installation: ~/.local has
    # packages of the user's, and keys.
    local, environment = tmp_path / ".local", tmp_path / "env"
    (local / "bin").mkdir(parents=True)
    (local / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    (local / "bin" / "python3").symlink_to("/usr/bin/python3")
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").symlink_to(local / "bin" / "python3")
    (environment / "pyvenv.cfg").write_text(f"home = {local / 'bin'}\n")
    with pytest.raises(BadInput) as refused:
        find_interpreter(str(environment / "bin" / "python"))
    assert refused.value.code == "no_python"


def test_the_python_of_the_system_needs_nothing_lent() -> None:
    found = find_interpreter("/usr/bin/python3")
    assert (found.environment, found.lent) == ("", ())
