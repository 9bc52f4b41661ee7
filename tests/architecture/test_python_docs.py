"""The page of the Python API has every public name, with its options and its defaults."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

import retinue
from architecture.source import TOP
from retinue.core.result import Status, Summary
from retinue.steward.verbs.verb_table import KNOWN

TEXT = (TOP / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
VALUES = (
    retinue.Brief,
    retinue.Spawned,
    retinue.Settled,
    retinue.Result,
    retinue.TokenUsage,
    retinue.Batch,
)


def section(heading: str) -> str:
    assert f"\n## {heading}\n" in TEXT, f"there is no heading {heading}"
    return TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(heading: str) -> list[list[str]]:
    """The cells of each row that begins with something of the code."""
    lines = [line for line in section(heading).splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert all(all(row) for row in cells if heading != "Verbs"), "a cell is empty"
    return cells


def call(prefix: str, name: str, function: Callable[..., Any]) -> str:
    """A call as one would write it, with the options and their defaults."""
    signature = inspect.signature(function)
    given = [each for each in signature.parameters.values() if each.name != "self"]
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in given]
    awaited = "await " if inspect.iscoroutinefunction(function) else ""
    shown = str(inspect.Signature(bare)).replace("'", '"')
    return f"`{awaited}{prefix}.{name}{shown}`"


def calls(prefix: str, kind: type) -> list[str]:
    found = inspect.getmembers(kind, inspect.isfunction)
    return [call(prefix, name, each) for name, each in found if not name.startswith("_")]


def test_every_public_name_is_on_the_page() -> None:
    missing = [
        name
        for name in retinue.__all__
        if not re.search(rf"`(retinue\.)?{name}[`(]", TEXT) and name != "__version__"
    ]
    assert not missing
    assert "`retinue.__version__`" in TEXT


def test_every_call_is_there_with_its_options_and_defaults() -> None:
    names = ("open", "connect", "run_sync")
    opening = [call("retinue", name, getattr(retinue, name)) for name in names]
    assert [row[0] for row in rows("Opening a root")] == opening
    assert sorted(row[0] for row in rows("`Retinue`")) == sorted(calls("r", retinue.Retinue))
    assert sorted(row[0] for row in rows("`Task`")) == sorted(calls("task", retinue.Task))


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)
def test_every_field_is_there_with_its_default(kind: Any) -> None:
    wanted = {
        f"`{field.name}`": "required"
        if field.default is dataclasses.MISSING
        else f"`{field.default!r}`".replace("'", '"')
        for field in dataclasses.fields(kind)
    }
    for name, _ in inspect.getmembers(kind, lambda each: isinstance(each, property)):
        wanted[f"`{name}`"] = "read only"
    assert {name: default for name, default, _ in rows(f"`{kind.__name__}`")} == wanted


def test_every_status_and_count_is_named() -> None:
    assert all(f"`{status.name}`" in section("`Result`") for status in Status)
    counts = {field.name for field in dataclasses.fields(Summary)} - {"success"}
    assert all(f"`{count}`" in section("`Batch`") for count in counts)


def test_the_verbs_are_ones_that_can_be_called() -> None:
    assert {row[0].strip("`") for row in rows("Verbs")} <= set(KNOWN)


def test_every_field_has_a_docstring_for_editors() -> None:
    for kind in VALUES:
        (found,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(found, ast.ClassDef)
        told = {
            first.target.id
            for first, second in itertools.pairwise(found.body)
            if isinstance(first, ast.AnnAssign)
            and isinstance(first.target, ast.Name)
            and isinstance(second, ast.Expr)
            and isinstance(second.value, ast.Constant)
        }
        fields = {each.name for each in dataclasses.fields(kind)}
        assert fields <= told, (kind.__name__, fields - told)


def test_errors_are_named_as_callers_catch_them() -> None:
    public = {getattr(retinue, name) for name in retinue.__all__}
    errors = {each for each in public if isinstance(each, type) and issubclass(each, Exception)}
    assert {f"{each.__module__}.{each.__qualname__}" for each in errors} == {
        f"retinue.{each.__name__}" for each in errors
    }
    assert retinue.RetinueError in errors
