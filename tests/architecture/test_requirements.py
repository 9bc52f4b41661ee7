"""Every requirement that is due has a test, and every mark names a requirement."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from architecture.source import suite
from requirements import DUE, NOT_YET_DUE, NOT_YET_DUE_AT_MOST, REQUIREMENTS


def test_every_due_requirement_has_a_test() -> None:
    missing = in_order(DUE - marked().keys())
    lines = [f"{number}: {REQUIREMENTS[number]}" for number in missing]
    assert not missing, "\n".join([f"{len(missing)} due requirements have no test", *lines])


def test_every_mark_names_a_known_requirement() -> None:
    unknown = {number: where for number, where in marked().items() if number not in REQUIREMENTS}
    assert not unknown, f"not in tests/requirements.py: {unknown}"


def test_what_has_a_test_is_no_longer_listed_as_to_come() -> None:
    done = {number: where for number, where in marked().items() if number in NOT_YET_DUE}
    assert not done, f"take these off NOT_YET_DUE and lower its number: {done}"


def test_the_list_of_what_is_to_come_only_shrinks() -> None:
    assert len(NOT_YET_DUE) == NOT_YET_DUE_AT_MOST, "it may only fall, and the number with it"
    assert set(REQUIREMENTS) >= NOT_YET_DUE


def test_requirements_are_numbered_without_gaps_and_are_sentences() -> None:
    assert list(REQUIREMENTS) == [f"R{number}" for number in range(1, len(REQUIREMENTS) + 1)]
    odd = [number for number, text in REQUIREMENTS.items() if not text.endswith(".")]
    assert not odd


def test_marks_of_functions_classes_modules_and_parameters_are_found() -> None:
    tree = ast.parse(
        "pytestmark = [pytest.mark.requirement('R1')]\n"
        "@pytest.mark.requirement('R2', 'R3')\n"
        "class TestIt:\n"
        "    @pytest.mark.parametrize('n', [pytest.param(1, marks=mark.requirement('R4'))])\n"
        "    def test_it(self): ...\n"
    )
    assert sorted(marks(tree)) == ["R1", "R2", "R3", "R4"]


def marked() -> dict[str, str]:
    """Each marked requirement with the first file that marks it."""
    found: dict[str, str] = {}
    for module in suite():
        if module.path.rpartition("/")[2].startswith("test_"):
            for number in marks(module.tree):
                found.setdefault(number, module.path)
    return found


def marks(tree: ast.AST) -> Iterator[str]:
    """What is written as `….requirement("…", …)`, wherever it is written."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="requirement"), args=given):
                yield from (str(each.value) for each in given if isinstance(each, ast.Constant))


def in_order(numbers: Iterable[str]) -> list[str]:
    return sorted(numbers, key=lambda number: int(number[1:]))
