"""The package as text and syntax trees, read once for all architecture tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
SRC = TOP / "src"
TESTS = TOP / "tests"
NOT_OURS = {
    ".git",
    ".hypothesis",
    ".mypy_cache",
    ".pytest_cache",
    ".retinue",
    ".ruff_cache",
    ".tools",
    ".venv",
    "__pycache__",
    "build",
    "dist",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, kw_only=True)
class Module:
    path: str  # from the top of the repository
    name: str  # dotted, for example retinue.core.ids
    is_package: bool
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        """The first part below the package: domain, store, ports …; empty for the package."""
        return self.name.split(".")[1] if "." in self.name else ""


@cache
def package() -> tuple[Module, ...]:
    return tuple(_read(path, SRC) for path in sorted((SRC / "retinue").rglob("*.py")))


@cache
def suite() -> tuple[Module, ...]:
    return tuple(_read(path, TESTS) for path in sorted(TESTS.rglob("*.py")))


def project_files() -> Iterator[Path]:
    """Every file that is ours, not made by a tool."""
    folders = [TOP]
    while folders:
        for entry in sorted(folders.pop().iterdir()):
            if entry.name in NOT_OURS or entry.is_symlink():
                continue
            if entry.is_dir():
                folders.append(entry)
            elif entry.suffix != ".pyc":
                yield entry


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Every function with its qualified name, nested ones included."""
    for node in ast.iter_child_nodes(tree):
        name = prefix
        if isinstance(node, Function | ast.ClassDef):
            name = f"{prefix}{node.name}."
        if isinstance(node, Function):
            yield name[:-1], node
        yield from functions(node, name)


def _read(path: Path, base: Path) -> Module:
    parts = list(path.relative_to(base).with_suffix("").parts)
    is_package = parts[-1] == "__init__"
    text = path.read_text(encoding="utf-8")
    return Module(
        path=path.relative_to(TOP).as_posix(),
        name=".".join(parts[:-1] if is_package else parts),
        is_package=is_package,
        text=text,
        tree=ast.parse(text, filename=str(path)),
    )
