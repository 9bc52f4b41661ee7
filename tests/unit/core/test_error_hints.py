"""Hints fit their reader: a shell, an agent with tools, or Python."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import retinue
from retinue.core.errors import AGENT, KINDS, PYTHON, BadInput, LimitExceeded, NotFound
from retinue.formats.steward_protocol import error_from_json, error_to_json
from retinue.steward.in_process import hints_for_python

SOURCE = Path(retinue.__file__).parent
OTHERS = ("at a shell", "over MCP", "in Python", "docs/", "./dev")
SHELL_ONLY = ("--", "task list", "task show", "task join", "spawn --queue")
EITHER = LimitExceeded(
    "too many", hint="'spawn --queue' waits", hints={AGENT: "wait", PYTHON: "queue=True waits"}
)


def test_each_reader_gets_its_own_hint_across_the_socket() -> None:
    error = error_from_json(error_to_json(EITHER))
    assert error.hint == "'spawn --queue' waits"
    assert error.read_by(AGENT).hint == "wait"
    with pytest.raises(LimitExceeded) as raised, hints_for_python():
        raise error
    assert raised.value.hint == "queue=True waits"
    assert raised.value.__notes__ == ["[limit_exceeded] queue=True waits"]


def test_a_specific_hint_replaces_the_class_hints_for_all_readers() -> None:
    error = NotFound("no such thing", hint="look in the drawer")
    assert error.read_by(AGENT) is error and error.read_by(PYTHON) is error
    assert "list_subagents" in NotFound("no such thing").read_by(AGENT).hint


def test_additions_and_subject_reach_every_reader() -> None:
    error = EITHER.with_more("see c.yaml").about("step a")
    assert (error.message, error.hint) == ("step a: too many", "'spawn --queue' waits; see c.yaml")
    assert error.read_by(PYTHON).hint == "queue=True waits; see c.yaml"
    assert BadInput("x", hint="y").with_more("z").read_by(AGENT).hint == "y; z"


@pytest.mark.parametrize("reader", [AGENT, PYTHON])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_class_hints_name_no_shell_command_to_agents_or_python(
    kind: type[retinue.RetinueError], reader: str
) -> None:
    hint = kind("x").read_by(reader).hint
    assert not any(word in hint for word in SHELL_ONLY), hint


def test_no_hint_names_another_interface_or_a_file_that_is_not_installed() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{text.lineno}: {text.value}"
        for path in SOURCE.rglob("*.py")
        for hint in hints_in(ast.parse(path.read_text(encoding="utf-8")))
        for text in ast.walk(hint)
        if isinstance(text, ast.Constant) and isinstance(text.value, str)
        if any(word in text.value for word in OTHERS)
    ]
    assert not found


def hints_in(tree: ast.AST) -> list[ast.expr]:
    """Return what is given as a hint, or kept under a name that says so."""
    given = [
        word.value
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        for word in call.keywords
        if word.arg in ("hint", "hints")
    ]
    named = [
        each.value
        for each in ast.walk(tree)
        if isinstance(each, ast.Assign | ast.AnnAssign) and each.value is not None
        for target in (each.targets if isinstance(each, ast.Assign) else [each.target])
        if isinstance(target, ast.Name) and "hint" in target.id.lower()
    ]
    return [*given, *named]
