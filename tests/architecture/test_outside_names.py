"""Project files name no place outside the project."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from architecture.source import TOP, project_files

# Written in pieces, so that this file does not hold what it forbids.
ELSEWHERE = re.compile(
    "|".join(
        [
            r"(?<![\w.~}])/(work|root)" + r"/",
            r"\.librar" + r"y\b",
            r"py" + r"pi\.org",
            r"python" + r"hosted",
        ]
    )
)
NUMBERS = re.compile(r"\b[RD][1-9]\d{0,2}\b(?!\.\w)")


def test_no_file_names_a_place_outside_the_project() -> None:
    report(
        f"{where}: {found.group()}"
        for path in project_files()
        for where, line in lines_of(path)
        for found in ELSEWHERE.finditer(line)
    )


def test_requirement_and_decision_numbers_stay_in_the_tests() -> None:
    report(
        f"{where}: {found.group()}"
        for path in project_files()
        if path.suffix in {".md", ".py", ".sql"} and "tests" not in path.relative_to(TOP).parts
        for where, line in lines_of(path)
        for found in NUMBERS.finditer(line)
    )


def lines_of(path: Path) -> Iterator[tuple[str, str]]:
    """Each line with where it is; nothing for what is no text."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    for number, line in enumerate(text.splitlines(), 1):
        yield f"{path.relative_to(TOP)}:{number}", line


def report(found: Iterator[str]) -> None:
    problems = list(found)
    assert not problems, "\n".join(["", *problems])
