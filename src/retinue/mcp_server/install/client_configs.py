"""Configuration file of each MCP client, and the entry for this server in it."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retinue.core.errors import BadInput, StorageFailed
from retinue.delegation.tool_schemas import ToolLimits
from retinue.mcp_server.install import json_edit, toml_edit

# Extended attribute of folders that we created, so that only those are removed again.
MARK = "user.retinue.made"


def make(folder: Path) -> None:
    """Create the folder with its parents, and mark those that were missing.

    Raises:
        OSError: a folder could not be created.
    """
    for each in (*reversed(folder.parents), folder):
        if each.is_dir():
            continue
        each.mkdir()
        # Without extended attributes the folder stays unmarked and is never removed.
        with suppress(OSError):
            os.setxattr(each, MARK, b"1")


def clear(folder: Path) -> None:
    """Remove the folder and its parents while they are empty and marked as ours."""
    for each in (folder, *folder.parents):
        try:
            os.getxattr(each, MARK)
            each.rmdir()
        except OSError:
            # Not created by us, or not empty.
            return


NAME = "retinue"
# Added to the subagents' time limit so that the client's timeout comes later.
MARGIN_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class ConfigEntry:
    """Value at a path inside a configuration file."""

    file: Path
    path: tuple[str, ...]
    value: Mapping[str, Any]

    @property
    def is_toml(self) -> bool:
        return self.file.suffix == ".toml"


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """Content of a file before and after the change."""

    file: Path
    before: str | None  # None: the file does not exist
    after: str | None  # None: the file is removed

    @property
    def needed(self) -> bool:
        return self.before != self.after

    @property
    def diff(self) -> str:
        old, new = (text.splitlines() if text else [] for text in (self.before, self.after))
        here = str(self.file)
        nowhere = os.devnull
        lines = difflib.unified_diff(
            old,
            new,
            nowhere if self.before is None else here,
            nowhere if self.after is None else here,
            lineterm="",
        )
        return "\n".join(lines)

    def carry_out(self) -> None:
        """Write or remove the file, atomically. Folders created for it are removed with it.

        Raises:
            StorageFailed: it could not be written.
        """
        try:
            if self.after is None:
                self.file.unlink(missing_ok=True)
                clear(self.file.parent)
                return
            make(self.file.parent)
            # Write beside the target and rename: a link stays a link, a reader sees whole files.
            target = self.file.resolve()
            fresh = target.with_name(f".{target.name}.retinue-new")
            fresh.write_text(self.after, encoding="utf-8")
            if self.before is not None:
                fresh.chmod(target.stat().st_mode & 0o777)
            fresh.replace(target)
        except OSError as error:
            raise StorageFailed(f"{self.file}: {error.strerror or error}") from None


def build_entry(
    client: str,
    command: Sequence[str],
    terms: ToolLimits,
    project: Path,
    environment: Mapping[str, str],
) -> ConfigEntry:
    """Return the entry for a client, in the project's own file where the client has one."""
    first, *rest = command
    if client == "claude":
        value: dict[str, Any] = {"type": "stdio", "command": first, "args": rest}
        return ConfigEntry(file=project / ".mcp.json", path=("mcpServers", NAME), value=value)
    if client == "codex":
        home = environment.get("CODEX_HOME") or f"{environment.get('HOME', '')}/.codex"
        # Codex ends a call after this time even while progress is reported.
        limit = math.ceil(terms.default_seconds + MARGIN_SECONDS)
        value = {"command": first, "args": rest, "tool_timeout_sec": limit}
        return ConfigEntry(file=Path(home) / "config.toml", path=("mcp_servers", NAME), value=value)
    if client == "gemini":
        limit_ms = math.ceil((terms.most_seconds + MARGIN_SECONDS) * 1000)
        value = {"command": first, "args": rest, "timeout": limit_ms}
        file = project / ".gemini" / "settings.json"
        return ConfigEntry(file=file, path=("mcpServers", NAME), value=value)
    value = {"type": "local", "command": [first, *rest], "enabled": True}
    return ConfigEntry(file=project / "opencode.json", path=("mcp", NAME), value=value)


def plan_changes(entry: ConfigEntry, *, remove: bool) -> FileChange:
    """Return the change that adds or removes the entry.

    Raises:
        BadInput: the file cannot be read or changed safely.
    """
    before = _read(entry.file)
    where = str(entry.file)
    text = before or ""
    if remove:
        after: str | None = text
        if text.strip():
            taken = toml_edit.take if entry.is_toml else json_edit.take
            after = taken(text, entry.path, where)
        # A file that held nothing else is removed.
        emptied = after != text and (after or "").strip() in ("", "{}")
        gone = before is None or emptied
        return FileChange(file=entry.file, before=before, after=None if gone else after)
    if entry.is_toml:
        after = toml_edit.put(text, entry.path, entry.value, where)
        # put() moves the table to the end; do not report that as a change.
        if _is_same_text(text, after):
            after = text
    else:
        after = json_edit.put(text, entry.path, dict(entry.value), where)
    return FileChange(file=entry.file, before=before, after=after)


def _is_same_text(one: str, other: str) -> bool:
    """Return whether two texts have the same lines, ignoring order and empty lines."""
    return sorted(filter(None, one.splitlines())) == sorted(filter(None, other.splitlines()))


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file}: {error}", code="bad_file") from None
