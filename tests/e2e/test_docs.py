"""What the documents show happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.roots import held

TOP = Path(__file__).parents[2]
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "PYTHONPATH": str(TOP / "src"),
    "HOME": "/nonexistent",
    "XDG_STATE_HOME": os.environ["XDG_STATE_HOME"],
}


def first_example(page: str, folder: Path) -> list[str]:
    """What the first Python on the page prints, run in the folder."""
    example, *_ = re.findall(r"```python\n(.*?)```", (TOP / page).read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done
    return done.stdout.splitlines()


def test_the_example_of_the_readme_prints_what_it_says_beside_a_steward(tmp_path: Path) -> None:
    with held(tmp_path / ".retinue") as root:
        assert root.pid  # a steward, as whoever tried the line before it has one
        assert first_example("README.md", tmp_path) == [
            "completed hello",
            "completed_but_timeout draft",
        ]


def test_the_example_of_the_python_api_prints_what_it_says(tmp_path: Path) -> None:
    with held(tmp_path / ".retinue"):
        assert first_example("docs/reference/python.md", tmp_path) == ["completed hello"]


def test_the_generated_pages_are_what_the_code_says() -> None:
    done = subprocess.run(
        [sys.executable, str(TOP / "docs" / "generate.py"), "--check"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


PAGES = sorted(
    str(path.relative_to(TOP))
    for path in (TOP / "README.md", *(TOP / "docs").rglob("*.md"))
    if "```console\n" in path.read_text()
)


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_print_what_it_shows(page: str, tmp_path: Path) -> None:
    text = (TOP / page).read_text()
    # A block with a title is a file that the commands use.
    for name, content in re.findall(r'```\w+ title="([^"]+)"\n(.*?)```', text, re.DOTALL):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    commands = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", "".join(blocks), re.MULTILINE)
    assert commands
    programs = tmp_path.parent / f"{tmp_path.name}-programs"
    programs.mkdir()
    program = programs / "retinue"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m retinue "$@"\n')
    program.chmod(0o755)
    environment = ENVIRONMENT | {
        "COLUMNS": "100",
        "PATH": f"{programs}:{ENVIRONMENT['PATH']}",
        "HOME": str(programs),
        "GIT_CONFIG_GLOBAL": "/dev/null",
    }
    with held(tmp_path / ".retinue"):
        for command, shown in commands:
            done = subprocess.run(
                ["sh", "-c", command],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                timeout=60,
                check=False,
            )
            printed = done.stdout.replace(f"{tmp_path}/", "")
            shown = shown.replace("~/try/", "")
            assert _without_figures(printed) == _without_figures(shown), command


def _without_figures(text: str) -> str:
    """Sizes, durations, dates, hashes and the number of files depend on the machine."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "DATE", text)
    text = re.sub(r"\b[0-9a-f]{12}\b", "HASH", text)
    text = re.sub(r"-[0-9a-f]{6}\b", "-ID", text)
    text = re.sub(r"(?m)^ +\+\d+\.\d{3} ", "+TIME ", text)
    return re.sub(r"\d+(\.\d+)?( ?[KM]B| bytes|s\b| files)", "N", text)
