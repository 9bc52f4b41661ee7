"""Imports point inward; the core touches nothing; errors are caught where they are judged."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from architecture import exemptions
from architecture.source import Module, functions, package

# Small modules that every folder below the doors may use.
SHARED = {
    "clock",
    "connections",
    "files",
    "inotify",
    "processes",
    "settings",
    "sockets",
    "trust",
    "version",
}
INNER = {"core", "formats", "ports"}
ADAPTERS = {"gateway", "runtime", "store", "subagent_types", "workspaces"}
# What the command line, the MCP server and the page may use: the client, never the store.
DOOR = {
    "client",
    "clock",
    "core",
    "delegation",
    "formats",
    "listen_address",
    "settings",
    "trust",
    "version",
}
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "formats": {"core", "version"},
    "ports": {"core"},
    "clock": set(),
    "connections": set(),
    "files": {"core"},
    "inotify": set(),
    "listen_address": {"core"},
    "processes": {"connections"},
    "settings": {"core"},
    "sockets": set(),
    "trust": {"core", "files", "settings"},
    "version": set(),
    "configs": {"core"},
    "agents": {"core", "processes"},  # also runs in a team child
    "child": set(),  # runs before exec: standard library only
    **dict.fromkeys(ADAPTERS, INNER | SHARED),
    "runtime": INNER | SHARED | {"child"},  # the steward's end of what runs in the child
    "client": {"core", "formats"} | SHARED,
    "delegation": {"core", "formats"},
    "team": {"core", "formats"}
    | SHARED
    | {"agents", "child", "client", "delegation", "gateway.vendors"},
    "steward": INNER | SHARED | ADAPTERS | {"agents", "client"},
    # Both ends of what passes between machines: a node starts children like a steward.
    "cluster": INNER | SHARED | {"child", "runtime", "workspaces"},
    "telemetry": {"core", "steward", "version"},
    "api": {"client", "core", "formats", "settings", "steward", "trust"},
    "cli": DOOR
    | {"configs", "inotify", "mcp_server", "steward", "subagent_types", "web"}  # loaded lazily
    | {"acp_server", "cluster", "files"}  # loaded lazily
    | {"agents", "gateway.local_model", "gateway.providers"},  # what `retinue` alone looks for
    "mcp_server": DOOR | {"agents", "cli", "files", "gateway.local_model", "subagent_types"},
    "acp_server": DOOR | {"mcp_server"},
    "web": DOOR | {"inotify"},
    "__main__": {"cli"},
    "": {"api", "core", "version"},  # the package itself: the public names
}

LAZY = ("src/retinue/cli/", "src/retinue/__init__.py")  # a command pays for what it uses

# What the core may use of the standard library: nothing that knows disk, clock,
# process, environment or chance.
PURE = {
    "__future__",
    "abc",
    "bisect",
    "collections",
    "copy",
    "dataclasses",
    "enum",
    "fnmatch",
    "fractions",
    "functools",
    "graphlib",
    "hashlib",
    "itertools",
    "math",
    "operator",
    "re",
    "string",
    "textwrap",
    "types",
    "typing",
    "unicodedata",
}
PURE_PARTS = {  # modules of which only these names are pure
    "datetime": {"UTC", "datetime", "timedelta", "timezone"},
    "pathlib": {"PurePath", "PurePosixPath"},
    "signal": {"Signals"},
}
SMALL = 60  # lines
IMPURE_CALLS = {"open", "print", "input", "eval", "exec", "now", "utcnow", "today"}


@dataclass(frozen=True, kw_only=True)
class Import:
    line: int
    target: str  # a module of ours, or the first part of a foreign one
    names: tuple[str, ...] = ()
    at_top: bool = True

    @property
    def ours(self) -> bool:
        return self.target == "retinue" or self.target.startswith("retinue.")

    @property
    def room(self) -> str:
        return self.target.split(".")[1] if "." in self.target else ""

    @property
    def folder(self) -> str:
        """The first two parts below the package, for example gateway.vendors."""
        return ".".join(self.target.split(".")[1:3])


def test_rooms_import_only_what_the_table_allows() -> None:
    found = []
    for module in package():
        if module.room not in MAY_IMPORT:
            found.append(f"{module.path}: the room {module.room!r} is not in MAY_IMPORT")
            continue
        allowed = MAY_IMPORT[module.room] | {module.room}
        for each in imports(module):
            if each.ours and each.room not in allowed and each.folder not in allowed:
                found.append(f"{module.path}:{each.line}: may not import {each.target}")
    report(found)


def test_child_code_imports_the_standard_library_only() -> None:
    report(
        [
            f"{module.path}:{each.line}: imports {each.target}"
            for module in package()
            if module.room == "child"
            for each in imports(module)
            if not each.ours and each.target not in sys.stdlib_module_names
        ]
    )


def test_imports_sit_at_the_top_of_the_file() -> None:
    late = {place for module in package() for place in late_imports(module)}
    report([f"{place} imports late" for place in late - set(exemptions.LATE_IMPORTS)])
    report([f"{place} no longer does" for place in set(exemptions.LATE_IMPORTS) - late])
    assert all(exemptions.LATE_IMPORTS.values()), "each needs its reason"


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {
        module.name: {e.target for e in imports(module) if e.ours and e.at_top} - {module.name}
        for module in package()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_the_core_imports_only_what_is_pure() -> None:
    found = []
    for module in core():
        for each in imports(module):
            impure = set(each.names) - PURE_PARTS.get(each.target, set())
            if each.ours or each.target in PURE:
                continue
            if each.target not in PURE_PARTS:
                found.append(f"{module.path}:{each.line}: {each.target} is not pure")
            elif impure:
                found.append(f"{module.path}:{each.line}: {each.target}.{impure} is not pure")
    report(found)


def test_the_core_uses_only_the_pure_parts_of_modules_it_imports_whole() -> None:
    found = []
    for module in core():
        aliases = {
            alias.asname or alias.name: alias.name
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Import)
            for alias in node.names
            if alias.name in PURE_PARTS
        }
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                whole = aliases.get(node.value.id)
                if whole and node.attr not in PURE_PARTS[whole] and not is_signal_name(node.attr):
                    found.append(f"{module.path}:{node.lineno}: {whole}.{node.attr} is not pure")
    report(found)


def test_the_core_neither_opens_nor_prints_nor_asks_the_clock() -> None:
    report(
        [
            f"{module.path}:{node.lineno}: calls {called(node)}()"
            for module in core()
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Call) and called(node) in IMPURE_CALLS
        ]
    )


def test_core_formats_and_store_are_synchronous() -> None:
    report(
        [
            f"{module.path}:{node.lineno}: async def {name}"
            for module in package()
            if module.room in {"core", "formats", "store"}
            for name, node in functions(module.tree)
            if isinstance(node, ast.AsyncFunctionDef)
        ]
    )


def test_every_error_is_caught_in_named_places_only() -> None:
    places = {place for module in package() for place in broad_excepts(module)}
    report([f"{place} catches every error" for place in places - set(exemptions.BROAD_EXCEPTS)])
    report([f"{place} no longer does" for place in set(exemptions.BROAD_EXCEPTS) - places])
    assert all(exemptions.BROAD_EXCEPTS.values()), "each needs its reason"


def test_errors_come_as_values_in_named_places_only() -> None:
    places = {place for module in package() for place in gathered_errors(module)}
    report([f"{place} gathers errors" for place in places - set(exemptions.GATHERED_ERRORS)])
    report([f"{place} no longer does" for place in set(exemptions.GATHERED_ERRORS) - places])
    assert all(exemptions.GATHERED_ERRORS.values()), "each needs its reason"


def test_unix_sockets_are_served_the_same_way_on_every_python() -> None:
    """Since 3.13, what asyncio has for those removes files by names that are not ours by then."""
    report([module.path for module in package() if "unix_server(" in module.text])


def test_what_the_rules_forbid_is_seen() -> None:
    module = Module(
        path="src/retinue/store/odd.py",
        name="retinue.store.odd",
        is_package=False,
        text="",
        tree=ast.parse(
            "from ..cli import main\n"
            "def go():\n"
            "    import retinue.steward.app\n"
            "    try: go()\n"
            "    except (KeyError, Exception): pass\n"
            "def hush():\n"
            "    with suppress(Exception): go()\n"
            "def tidy():\n"
            "    try: go()\n"
            "    except BaseException:\n"
            "        go()\n"
            "        raise\n"
            "async def gone():\n"
            "    await gather(go(), return_exceptions=True)\n"
            "    await gather(go(), return_exceptions=False)\n"
        ),
    )
    first, second = imports(module)
    assert (first.room, first.at_top) == ("cli", True)
    assert (second.room, second.at_top) == ("steward", False)
    assert list(late_imports(module)) == [f"{module.path}::go"]
    assert sorted(broad_excepts(module)) == [f"{module.path}::go", f"{module.path}::hush"]
    assert list(gathered_errors(module)) == [f"{module.path}::gone"]


def core() -> Iterator[Module]:
    return (module for module in package() if module.room == "core")


def imports(module: Module) -> Iterator[Import]:
    """Every import of a module, a `from retinue.x import y` resolved to y where it is one."""
    inside = {id(n) for _, f in functions(module.tree) for n in ast.walk(f)}
    for node in ast.walk(module.tree):
        at_top = id(node) not in inside
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield _foreign_or_ours(alias.name, (), node.lineno, at_top)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(module, node)
            names = tuple(alias.name for alias in node.names)
            if not base.startswith("retinue"):
                yield _foreign_or_ours(base, names, node.lineno, at_top)
                continue
            for name in names:
                target = f"{base}.{name}" if f"{base}.{name}" in _known() else base
                yield _foreign_or_ours(target, (name,), node.lineno, at_top)


def late_imports(module: Module) -> Iterator[str]:
    """The functions that import something themselves."""
    if module.path.startswith(LAZY):
        return
    owner = {id(n): name for name, f in functions(module.tree) for n in ast.walk(f)}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and id(node) in owner:
            yield f"{module.path}::{owner[id(node)]}"


def _foreign_or_ours(target: str, names: tuple[str, ...], line: int, at_top: bool) -> Import:
    ours = target.partition(".")[0] == "retinue"
    short = target if ours else target.partition(".")[0]
    return Import(line=line, target=short, names=names, at_top=at_top)


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    keep = len(parts) - node.level + (1 if module.is_package else 0)
    return ".".join([*parts[:keep], *([node.module] if node.module else [])])


def _known() -> set[str]:
    return {module.name for module in package()}


def broad_excepts(module: Module) -> Iterator[str]:
    """Where every error ends: bare, Exception or BaseException, alone or in a tuple.

    One that cleans up and raises again ends nothing, and is no such place.
    """
    return _places(module, _ends_every_error)


def gathered_errors(module: Module) -> Iterator[str]:
    """Where `return_exceptions` makes a value of every error, which is another way to end it."""
    return _places(module, _gathers_errors)


def _places(module: Module, does: Callable[[ast.AST], bool]) -> Iterator[str]:
    owner = {id(n): name for name, f in functions(module.tree) for n in ast.walk(f)}
    for node in ast.walk(module.tree):
        if does(node):
            yield f"{module.path}::{owner.get(id(node), '')}"


def _gathers_errors(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.keyword)
        and node.arg == "return_exceptions"
        and not (isinstance(node.value, ast.Constant) and node.value.value is False)
    )


def _ends_every_error(node: ast.AST) -> bool:
    if isinstance(node, ast.ExceptHandler):
        return _is_broad(node.type) and not _raises_again(node.body[-1])
    return (
        isinstance(node, ast.Call)
        and called(node) == "suppress"
        and any(_is_broad(each) for each in node.args)
    )


def _is_broad(caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(isinstance(k, ast.Name) and k.id in {"Exception", "BaseException"} for k in kinds)


def _raises_again(last: ast.stmt) -> bool:
    return isinstance(last, ast.Raise) and last.exc is None


def is_signal_name(name: str) -> bool:
    return name.startswith("SIG") and name.isupper()


def called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def report(found: list[str]) -> None:
    assert not found, "\n".join(["", *sorted(found)])


def test_module_basenames_are_unique() -> None:
    """A traceback line or an editor tab says which module it is."""
    paths: dict[str, list[str]] = {}
    for module in package():
        stem = module.name.rpartition(".")[2]
        if not module.is_package and stem not in {"__main__", "base", "main"}:
            paths.setdefault(stem, []).append(module.path)
    report([" and ".join(found) for found in paths.values() if len(found) > 1])


def test_small_modules_have_more_than_one_importer_or_a_reason() -> None:
    importers: dict[str, set[str]] = {}
    for module in package():
        for each in imports(module):
            if each.ours and each.target != module.name:
                importers.setdefault(each.target, set()).add(module.name)
    small = set()
    for module in package():
        found = importers.get(module.name, set())
        if module.is_package or len(module.text.splitlines()) >= SMALL or len(found) != 1:
            continue
        if next(iter(found)).split(".")[1] == module.room:
            small.add(module.path)
    report(
        [f"{path}: merge it into its importer" for path in small - set(exemptions.SMALL_MODULES)]
    )
    report([f"{path} no longer is" for path in set(exemptions.SMALL_MODULES) - small])
