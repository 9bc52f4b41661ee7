"""Modules that lie in the folder where somebody is are not taken for those of the system."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "retinue"
PLANTED = "import pathlib; pathlib.Path(__file__).with_name('executed').touch()\n"


def plant(folder: Path, package: str) -> Path:
    """A package that leaves a mark when it is executed: that mark."""
    (folder / package).mkdir()
    for name in ("__init__.py", "__main__.py"):
        (folder / package / name).write_text(PLANTED)
    return folder / package / "executed"


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "retinue", *words],
        cwd=folder,
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_installing_the_model_runs_no_pip_of_the_current_folder(tmp_path: Path) -> None:
    mark = plant(tmp_path, "pip")
    found = run(
        tmp_path,
        *("model", "install"),
        PIP_NO_INDEX="1",
        RETINUE_MODELS=str(tmp_path / "models"),
        XDG_CACHE_HOME=str(tmp_path / "cache"),
        XDG_DATA_HOME=str(tmp_path / "data"),
    )
    assert found.returncode == 1 and "error[not_fetched]" in found.stderr, found
    assert not mark.exists()


def test_a_client_that_starts_the_server_runs_no_module_of_its_project(tmp_path: Path) -> None:
    mark = plant(tmp_path, "retinue")
    assert run(tmp_path, "mcp", "install", "claude", "--yes").returncode == 0
    entry = json.loads((tmp_path / ".mcp.json").read_text())["mcpServers"]["retinue"]
    words = [entry["command"], *entry["args"]]
    subprocess.run(
        words, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True
    )
    assert not mark.exists()


def test_a_change_of_a_client_s_file_follows_no_link_that_came_with_the_project(
    tmp_path: Path,
) -> None:
    own = tmp_path / "own.sh"
    own.write_text("echo mine\n")
    project = tmp_path / "project"
    project.mkdir()
    (project / ".mcp.json").write_text('{\n  "note": "$(touch executed)"\n}\n')
    for name in (".mcp.json.new", "..mcp.json.new", "..mcp.json.retinue-new"):
        (project / name).symlink_to(own)
    assert run(project, "mcp", "install", "claude", "--yes").returncode == 0
    assert own.read_text() == "echo mine\n"
    assert "retinue" in json.loads((project / ".mcp.json").read_text())["mcpServers"]


def test_a_change_names_the_file_that_a_link_in_the_project_leads_to(tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    own.write_text("{}\n")
    project = tmp_path / "project"
    project.mkdir()
    (project / ".mcp.json").symlink_to(own)
    found = run(project, "mcp", "install", "claude", "--yes")
    assert found.returncode == 0 and f"a link to {own}" in found.stdout + found.stderr, found


def test_what_a_project_s_own_entry_adds_to_ours_is_shown(tmp_path: Path) -> None:
    entry = {"command": "x", "env": {"PYTHONPATH": "./planted"}}
    text = json.dumps({"mcpServers": {"retinue": entry}}, indent=1)
    (tmp_path / ".mcp.json").write_text(text)
    found = run(tmp_path, "mcp", "install", "claude", "--yes")
    assert found.returncode == 0 and '{"env": {"PYTHONPATH": "./planted"}}' in found.stderr, found


def test_every_module_is_started_without_the_current_folder() -> None:
    """Wherever the package starts `python -m`, `-P` or `-I` goes before it."""
    found = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.List):
                continue
            words = [each.value for each in node.elts if isinstance(each, ast.Constant)]
            starts = any(ast.unparse(each) == "sys.executable" for each in node.elts)
            if starts and "-m" in words and not {"-P", "-I"} & set(words):
                found.append(f"{path}:{node.lineno}")
    assert not found
