"""Shipped configurations, found by name such as `@demo`."""

from __future__ import annotations

from pathlib import Path

from retinue.core.errors import BadInput

# Other names for a shipped configuration.
ALSO = {"subagent_demo": "demo"}
_FOLDER = Path(__file__).parent


def list_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def read_shipped(named: str) -> str:
    """Return the text of a shipped configuration, by `@name` or a path that ends in its name.

    Raises:
        BadInput: the name is unknown; the hint lists the known ones.
    """
    last = named.removeprefix("@").rstrip("/").rpartition("/")[2]
    name = last.removesuffix(".yaml").removesuffix(".yml")
    name = ALSO.get(name, name)
    if name not in list_names():
        raise BadInput(
            f"no shipped configuration is called {named[:80]!a}",
            code="unknown_config",
            hint=f"known: {', '.join(f'@{each}' for each in list_names())}; "
            "a file is named without @",
        )
    return (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
