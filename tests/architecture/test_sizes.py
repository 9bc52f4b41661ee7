"""Nothing grows beyond what can be read in a minute."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from architecture import exemptions
from architecture.source import Function, functions, package, suite

MODULE_LINES = 300
FUNCTION_LINES = 40
CONSTRUCTOR_PARAMETERS = 6
PUBLIC_METHODS = 10
TEST_FILE_LINES = 500

Sizes = Mapping[str, int]


def test_modules_stay_within_300_lines() -> None:
    sizes = {module.path: module.lines for module in package()}
    assert_within(sizes, MODULE_LINES, exemptions.LONG_MODULES, "lines")


def test_functions_stay_within_40_lines() -> None:
    sizes = {
        f"{module.path}::{name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for module in (*package(), *suite())
        for name, node in functions(module.tree)
    }
    assert_within(sizes, FUNCTION_LINES, exemptions.LONG_FUNCTIONS, "lines")


def test_constructors_take_at_most_six_parameters() -> None:
    """Written ones; a frozen dataclass may have as many fields as its value has."""
    sizes = {
        f"{path}::{cls.name}": parameters(method)
        for path, cls in classes()
        for method in cls.body
        if isinstance(method, Function) and method.name == "__init__"
    }
    assert_within(sizes, CONSTRUCTOR_PARAMETERS, exemptions.WIDE_CONSTRUCTORS, "parameters")


def test_classes_have_at_most_ten_public_methods() -> None:
    sizes = {f"{path}::{cls.name}": len(public_methods(cls)) for path, cls in classes()}
    assert_within(sizes, PUBLIC_METHODS, exemptions.WIDE_CLASSES, "public methods")


def test_test_files_stay_within_500_lines() -> None:
    sizes = {module.path: module.lines for module in suite()}
    assert_within(sizes, TEST_FILE_LINES, exemptions.LONG_TEST_FILES, "lines")


def test_a_size_over_the_limit_is_reported() -> None:
    assert problems({"a": 41, "b": 40}, 40, {}, "lines") == ["a has 41 lines, the limit is 40"]


def test_an_exempted_size_may_not_grow() -> None:
    assert problems({"a": 52}, 40, {"a": (51, "why")}, "lines")
    assert not problems({"a": 51}, 40, {"a": (51, "why")}, "lines")


def test_an_exemption_that_is_larger_than_needed_is_reported() -> None:
    assert problems({"a": 50}, 40, {"a": (51, "why")}, "lines")
    assert problems({"a": 40}, 40, {"a": (51, "why")}, "lines")
    assert problems({}, 40, {"a": (51, "why")}, "lines")


def assert_within(
    sizes: Sizes, limit: int, exempt: Mapping[str, tuple[int, str]], unit: str
) -> None:
    found = problems(sizes, limit, exempt, unit)
    assert not found, "\n".join(["", *found])


def problems(
    sizes: Sizes, limit: int, exempt: Mapping[str, tuple[int, str]], unit: str
) -> list[str]:
    """What is over its limit, and which exemptions are wider than what they exempt."""
    found = []
    for place, size in sizes.items():
        allowed = exempt[place][0] if place in exempt else limit
        if size > allowed:
            found.append(f"{place} has {size} {unit}, the limit is {allowed}")
    for place, (allowed, reason) in exempt.items():
        size = sizes.get(place, 0)
        if size <= limit:
            found.append(f"{place} needs no exemption any more: take it out")
        elif size < allowed:
            found.append(f"{place} fell to {size} {unit}: lower its exemption from {allowed}")
        if not reason:
            found.append(f"{place} is exempted without a reason")
    return found


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for module in package():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                yield module.path, node


def parameters(method: Function) -> int:
    """How many a caller can give: without self, a bare * and **."""
    given = method.args
    return len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs) - 1


def public_methods(cls: ast.ClassDef) -> set[str]:
    """Properties are values, and overloads are one method."""
    return {
        node.name
        for node in cls.body
        if isinstance(node, Function)
        and not node.name.startswith("_")
        and not any(is_property(decorator) for decorator in node.decorator_list)
    }


def is_property(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Name) and decorator.id in {"property", "cached_property"}
