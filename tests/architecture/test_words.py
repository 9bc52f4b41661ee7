"""One word, one meaning; and the project speaks of itself alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from architecture.source import SRC, TOP, project_files

FORBIDDEN = {
    "canceled": "cancelled",
    "handler": "what it does",
    "helper": "what it does",
    "manager": "what it does",
    "util": "what it does",
    "worker": "child or subagent",
}
FOREIGN = re.compile(  # names that Python and its libraries gave
    r"Abstract(Async)?ContextManager|importlib\.util|(add|remove)_signal_handler"
    r"|(set|get|call)_exception_handler|checkout\.workers|handler_cancellation|ast\.ExceptHandler|logging\.\w*Handler|addHandler|add_request_handler"
    r"|web_protocol import RequestHandler as"
)
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

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


def test_the_source_uses_none_of_the_forbidden_words() -> None:
    report(
        f"{where}: {word!r}, say {FORBIDDEN[word]}"
        for path in sources()
        for where, line in lines_of(path)
        for word in forbidden_in(line)
    )


def test_no_file_of_the_source_has_a_forbidden_name() -> None:
    report(
        f"{path.relative_to(TOP)}: {word!r}, say {FORBIDDEN[word]}"
        for path in sources()
        for word in forbidden_in(path.relative_to(SRC).as_posix())
    )


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


def test_forbidden_words_are_seen_inside_names_and_in_the_plural() -> None:
    assert list(forbidden_in("class TaskManager: run_handlers(HTTPHelper)")) == [
        "manager",
        "handler",
        "helper",
    ]


def test_names_that_python_gave_and_longer_words_are_let_pass() -> None:
    line = "loop.add_signal_handler(x); AbstractAsyncContextManager; utility; cancelled"
    assert not list(forbidden_in(line))


def sources() -> Iterator[Path]:
    return (path for path in project_files() if SRC in path.parents)


def lines_of(path: Path) -> Iterator[tuple[str, str]]:
    """Each line with where it is; nothing for what is no text."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    for number, line in enumerate(text.splitlines(), 1):
        yield f"{path.relative_to(TOP)}:{number}", line


def forbidden_in(line: str) -> Iterator[str]:
    for found in WORD.findall(FOREIGN.sub("", line)):
        word = found.lower()
        for each in (word, word.removesuffix("s")):
            if each in FORBIDDEN:
                yield each
                break


def report(found: Iterator[str]) -> None:
    problems = list(found)
    assert not problems, "\n".join(["", *problems])
