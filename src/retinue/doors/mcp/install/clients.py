"""Where each client keeps its servers, and what this one's entry is there."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retinue.delegating.terms import Terms
from retinue.domain.errors import BadInput, StorageFailed
from retinue.doors.mcp.install import folders, jsontext, tomltext

NAME = "retinue"
MARGIN_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is to stand where."""

    file: Path
    path: tuple[str, ...]
    value: Mapping[str, Any]

    @property
    def is_toml(self) -> bool:
        return self.file.suffix == ".toml"


@dataclass(frozen=True, kw_only=True)
class Change:
    """A file as it is, and as it would be."""

    file: Path
    before: str | None  # None: there is no such file
    after: str | None  # None: there is none any more

    @property
    def needed(self) -> bool:
        return self.before != self.after

    @property
    def diff(self) -> str:
        old, new = (text.splitlines() if text else [] for text in (self.before, self.after))
        here, nowhere = str(self.file), os.devnull
        lines = difflib.unified_diff(
            old,
            new,
            nowhere if self.before is None else here,
            nowhere if self.after is None else here,
            lineterm="",
        )
        return "\n".join(lines)

    def carry_out(self) -> None:
        """The file is as it should be: whole, or as before. A folder made for it goes with it.

        Raises:
            StorageFailed: it could not be written.
        """
        try:
            if self.after is None:
                self.file.unlink(missing_ok=True)
                folders.clear(self.file.parent)
                return
            folders.make(self.file.parent)
            target = self.file.resolve()
            fresh = target.with_name(f".{target.name}.retinue-new")
            fresh.write_text(self.after, encoding="utf-8")
            if self.before is not None:
                fresh.chmod(target.stat().st_mode & 0o777)
            fresh.replace(target)
        except OSError as error:
            raise StorageFailed(f"{self.file}: {error.strerror or error}") from None


def entry_for(
    client: str,
    command: Sequence[str],
    terms: Terms,
    project: Path,
    environment: Mapping[str, str],
) -> Entry:
    """A client's entry: in the project's own file where the client has one."""
    first, *rest = command
    if client == "claude":
        value: dict[str, Any] = {"type": "stdio", "command": first, "args": rest}
        return Entry(file=project / ".mcp.json", path=("mcpServers", NAME), value=value)
    if client == "codex":
        home = environment.get("CODEX_HOME") or f"{environment.get('HOME', '')}/.codex"
        # Codex ends a call after this long, whatever progress it hears of.
        limit = math.ceil(terms.default_seconds + MARGIN_SECONDS)
        value = {"command": first, "args": rest, "tool_timeout_sec": limit}
        return Entry(file=Path(home) / "config.toml", path=("mcp_servers", NAME), value=value)
    if client == "gemini":
        limit_ms = math.ceil((terms.most_seconds + MARGIN_SECONDS) * 1000)
        value = {"command": first, "args": rest, "timeout": limit_ms}
        file = project / ".gemini" / "settings.json"
        return Entry(file=file, path=("mcpServers", NAME), value=value)
    value = {"type": "local", "command": [first, *rest], "enabled": True}
    return Entry(file=project / "opencode.json", path=("mcp", NAME), value=value)


def planned(entry: Entry, *, remove: bool) -> Change:
    """What has to change so that the entry stands there, or does not.

    Raises:
        BadInput: the file cannot be read, or not be changed safely.
    """
    before = _read(entry.file)
    where, text = str(entry.file), before or ""
    if remove:
        after: str | None = text
        if text.strip():
            taken = tomltext.take if entry.is_toml else jsontext.take
            after = taken(text, entry.path, where)
        emptied = after != text and (after or "").strip() in ("", "{}")
        gone = before is None or emptied
        return Change(file=entry.file, before=before, after=None if gone else after)
    if entry.is_toml:
        after = tomltext.put(text, entry.path, entry.value, where)
        if _same(text, after):
            after = text
    else:
        after = jsontext.put(text, entry.path, dict(entry.value), where)
    return Change(file=entry.file, before=before, after=after)


def _same(one: str, other: str) -> bool:
    """Whether two texts differ only in where empty lines are."""
    return sorted(filter(None, one.splitlines())) == sorted(filter(None, other.splitlines()))


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file}: {error}", code="bad_file") from None
