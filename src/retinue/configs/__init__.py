"""Configurations that are shipped, and found by name: @demo."""

from __future__ import annotations

from pathlib import Path

from retinue.domain.errors import BadInput

ALSO = {"subagent_demo": "demo"}  # what others call the same
_FOLDER = Path(__file__).parent


def names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def shipped(named: str) -> str:
    """The text of a shipped configuration, by `@name` or a longer path that ends in its name.

    Raises:
        BadInput: none is called so; the hint lists those there are.
    """
    last = named.removeprefix("@").rstrip("/").rpartition("/")[2]
    name = last.removesuffix(".yaml").removesuffix(".yml")
    name = ALSO.get(name, name)
    if name not in names():
        raise BadInput(
            f"no shipped configuration is called {named[:80]!a}",
            code="unknown_config",
            hint=f"known: {', '.join(f'@{each}' for each in names())}; a file is named without @",
        )
    return (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
