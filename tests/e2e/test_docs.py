"""What the documents show happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

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


def test_the_commands_of_the_readme_print_what_it_shows(tmp_path: Path) -> None:
    block, *_ = re.findall(r"```console\n(.*?)```", (TOP / "README.md").read_text(), re.DOTALL)
    commands = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    assert len(commands) == 3
    retinue = f"{sys.executable} -P -m retinue"
    environment = ENVIRONMENT | {"COLUMNS": "100"}
    with held(tmp_path / ".retinue"):
        for command, shown in commands:
            done = subprocess.run(
                ["sh", "-c", command.replace("retinue ", f"{retinue} ", 1)],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                timeout=60,
                check=False,
            )
            # Only times and the folder of the test differ from what the page shows.
            printed = done.stdout.replace(f"{tmp_path}/", "")
            assert re.sub(r"\d\.\ds", "0.0s", printed) == shown, command


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


def test_the_commands_of_the_operations_page_print_what_it_shows(tmp_path: Path) -> None:
    page = (TOP / "docs" / "how-to" / "operate.md").read_text()
    blocks = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    commands = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", "".join(blocks), re.MULTILINE)
    assert len(commands) == 9
    retinue = f"{sys.executable} -P -m retinue"
    with held(tmp_path / ".retinue"):
        for command, shown in commands:
            done = subprocess.run(
                ["sh", "-c", command.replace("retinue ", f"{retinue} ", 1)],
                cwd=tmp_path,
                env=ENVIRONMENT | {"COLUMNS": "100"},
                stdout=subprocess.PIPE,
                text=True,
                timeout=60,
                check=False,
            )
            printed = done.stdout.replace(f"{tmp_path}/", "")
            assert _without_figures(printed) == _without_figures(shown), command


def _without_figures(text: str) -> str:
    """Sizes, durations, dates and the number of files depend on the machine."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "DATE", text)
    return re.sub(r"\d+(\.\d+)?( ?[KM]B| bytes|s\b| files)", "N", text)
