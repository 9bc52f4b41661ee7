"""Configuration file of each MCP client, and the entry for this server in it.

We do not call the clients' own `mcp add` commands. None shows the change before it is made, and
four of the eight clients have none. Claude's refuses to replace an entry. Codex' knows no
`tool_timeout_sec` and removes it with every other key of the entry, as Gemini's does with
`timeout`. opencode's writes for all projects. They take 0.2 to 2 s of CPU time; this takes 0.2 s
with the start of Python.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from retinue.core.default_models import KEY_VARIABLES
from retinue.core.errors import BadInput, StorageFailed
from retinue.delegation.tool_schemas import ToolLimits
from retinue.files import write_atomic
from retinue.mcp_server.install.jsonc import (
    append_element,
    parse_document,
    remove_value,
    set_value,
)

NAME = "retinue"
# Added to the subagents' time limit so that the client's timeout comes later.
MARGIN_SECONDS = 60
# Clients with one configuration for all projects: they start the server in a folder of their own.
WITHOUT_PROJECT = ("zed", "claude-desktop")
CLIENTS = ("claude", "codex", "gemini", "opencode", "cursor", "vscode", *WITHOUT_PROJECT)
# Variables that a server needs and that Codex does not pass on by itself.
FORWARDED = ("XDG_STATE_HOME", "XDG_DATA_HOME", "RETINUE_TRUST", *KEY_VARIABLES)

# Claude Code runs our hook when the user says something, after each tool, and before it stops.
HOOK_EVENTS = ("UserPromptSubmit", "PostToolUse", "Stop")
HOOK_MARK = "mcp news"


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
        # A link may have come with the project, and what is changed is its target.
        if self.file.is_symlink() or self.file.parent.is_symlink():
            here += f" (a link to {self.file.resolve()})"
        nowhere = os.devnull
        lines = difflib.unified_diff(
            old,
            new,
            nowhere if self.before is None else here,
            nowhere if self.after is None else here,
            lineterm="",
        )
        return "\n".join(lines)

    def require_unchanged(self) -> None:
        """Check that the file is as it was when the change was made.

        Raises:
            BadInput: another program wrote it since, whose changes would be lost.
        """
        if _read(self.file) != self.before:
            raise BadInput(
                f"{self.file} was changed by another program meanwhile; nothing was written to it",
                code="bad_file",
                hint="repeat the command, which shows what it would change now",
            )

    def carry_out(self) -> None:
        """Write or remove the file, atomically. An emptied folder of the client goes with it.

        Raises:
            BadInput: another program wrote it meanwhile.
            StorageFailed: it could not be written.
        """
        self.require_unchanged()
        try:
            if self.after is None:
                self.file.unlink(missing_ok=True)
                # A folder such as .gemini, unless something else is in it.
                if self.file.parent.name.startswith("."):
                    with suppress(OSError):
                        self.file.parent.rmdir()
                return
            self.file.parent.mkdir(parents=True, exist_ok=True)
            # A link stays a link, but none is followed on the way to the new content: the project
            # may hold one in the place of the temporary file.
            target = self.file.resolve()
            kept = target.stat().st_mode & 0o777 if self.before is not None else _usual_mode()
            write_atomic(target, self.after.encode(), kept, synced=True)
        except OSError as error:
            raise StorageFailed(f"{self.file}: {error.strerror or error}") from None


def _usual_mode() -> int:
    """Return the mode of a new file, as the user's umask says."""
    umask = os.umask(0o077)
    os.umask(umask)
    return 0o666 & ~umask


def build_entry(
    client: str,
    command: Sequence[str],
    terms: ToolLimits,
    project: Path,
    environment: Mapping[str, str],
) -> ConfigEntry:
    """Return the entry for a client, in the project's own file where the client has one."""
    first, *rest = command
    home = Path(environment.get("HOME", ""))
    value: dict[str, Any] = {"command": first, "args": rest}
    path: tuple[str, ...] = ("mcpServers", NAME)
    match client:
        case "claude":
            value = {"type": "stdio", **value}
            file = project / ".mcp.json"
        case "codex":
            file = Path(environment.get("CODEX_HOME") or home / ".codex") / "config.toml"
            path = ("mcp_servers", NAME)
            # Codex starts servers with few variables; the steward needs its keys and folders.
            value["env_vars"] = list(FORWARDED)
            # Codex ends a call after this time even while progress is reported.
            value["tool_timeout_sec"] = math.ceil(terms.default_seconds + MARGIN_SECONDS)
        case "gemini":
            file = project / ".gemini" / "settings.json"
            value["timeout"] = math.ceil((terms.most_seconds + MARGIN_SECONDS) * 1000)
        case "opencode":
            file = project / "opencode.json"
            if not file.exists() and file.with_suffix(".jsonc").exists():
                file = file.with_suffix(".jsonc")
            path = ("mcp", NAME)
            value = {"type": "local", "command": [first, *rest], "enabled": True}
        case "cursor":
            file = project / ".cursor" / "mcp.json"
        case "vscode":
            file = project / ".vscode" / "mcp.json"
            path = ("servers", NAME)
            value = {"type": "stdio", **value}
        case "zed":
            config = environment.get("XDG_CONFIG_HOME") or home / ".config"
            file = Path(config) / "zed" / "settings.json"
            path = ("context_servers", NAME)
        case _:
            config = environment.get("XDG_CONFIG_HOME") or home / ".config"
            mac = home / "Library" / "Application Support"
            folder = mac if mac.is_dir() else Path(config)
            file = folder / "Claude" / "claude_desktop_config.json"
    return ConfigEntry(file=file, path=path, value=value)


def plan_changes(entry: ConfigEntry, *, remove: bool) -> FileChange:
    """Return the change that adds or removes the entry.

    Raises:
        BadInput: the file cannot be read or changed safely.
    """
    before = _read(entry.file)
    edit = _edit_toml if entry.is_toml else _edit_json
    after = _keep_line_ends(before or "", lambda text: edit(text, entry, remove=remove))
    return _make_change(entry.file, before, after, remove=remove)


def find_kept(entry: ConfigEntry) -> Mapping[str, Any]:
    """Return what an entry of this name has beside ours, and keeps.

    A file that came with a project may hold such an entry. Its variables decide what our command
    does, and nothing of them is in the diff.
    """
    text = _read(entry.file) or ""
    found: Any = tomlkit.parse(text).unwrap() if entry.is_toml else _parse_json(text, entry)
    for key in entry.path:
        found = found.get(key) if isinstance(found, dict) else None
    if not _is_local(found):
        return {}
    return {key: value for key, value in found.items() if key not in entry.value}


def build_hook_changes(project: Path, command: Sequence[str], *, remove: bool) -> FileChange:
    """Return the change that adds or removes the hooks of Claude Code.

    Raises:
        BadInput: the file cannot be read or changed safely.
    """
    file = project / ".claude" / "settings.json"
    entry = ConfigEntry(file=file, path=("hooks", NAME), value={})
    before = _read(file)

    def edit(text: str) -> str:
        hooks = _parse_json(text, entry).get("hooks", {})
        if not isinstance(hooks, dict):
            raise _make_error(entry, "hooks is not an object")
        for event in HOOK_EVENTS:
            listed = hooks.get(event, [])
            if not isinstance(listed, list):
                raise _make_error(entry, f"{event} is not a list")
            text = _edit_hooks(text, event, listed, [] if remove else command)
        return text

    after = _keep_line_ends(before or "", edit)
    return _make_change(file, before, after, remove=remove)


def _edit_hooks(text: str, event: str, groups: Sequence[Any], command: Sequence[str]) -> str:
    """Return the text with our hook of an event, or without it if there is no command."""
    words = shlex.join(command)
    mine = {"hooks": [{"type": "command", "command": words, "timeout": 20}]}
    ours = [[at for at, hook in enumerate(_list_hooks(each)) if _is_ours(hook)] for each in groups]
    if command and mine in groups and sum(map(len, ours)) == 1:
        return text
    removed = 0
    for number in reversed(range(len(groups))):
        group = ("hooks", event, number)
        if ours[number] and len(ours[number]) == len(_list_hooks(groups[number])):
            text = remove_value(text, group)
            removed += 1
            continue
        # The user's own hooks in the same group stay.
        for at in reversed(ours[number]):
            text = remove_value(text, (*group, "hooks", at))
    if not command:
        return text
    path = ("hooks", event)
    alone = removed == len(groups)
    return set_value(text, path, [mine]) if alone else append_element(text, path, mine)


def _list_hooks(group: object) -> list[Any]:
    listed = group.get("hooks") if isinstance(group, dict) else None
    return listed if isinstance(listed, list) else []


def _is_ours(hook: object) -> bool:
    """Return whether a hook is ours, by its last words: an older command is replaced, too."""
    command = hook.get("command") if isinstance(hook, dict) else None
    return isinstance(command, str) and command.rstrip().endswith(f" {HOOK_MARK}")


def _make_change(file: Path, before: str | None, after: str, *, remove: bool) -> FileChange:
    # A file that held nothing else is removed.
    if remove and (before is None or (after != before and after.strip() in ("", "{}"))):
        return FileChange(file=file, before=before, after=None)
    return FileChange(file=file, before=before, after=after)


def _parse_json(text: str, entry: ConfigEntry) -> dict[str, Any]:
    try:
        document = parse_document(text).value
    except (ValueError, RecursionError) as error:
        raise _make_error(entry, str(error)) from None
    if not isinstance(document, dict):
        raise _make_error(entry, "it is not a JSON object")
    return document


def _edit_json(text: str, entry: ConfigEntry, *, remove: bool) -> str:
    table: Any = _parse_json(text, entry)
    *outer, last = entry.path
    for key in outer:
        table = table.get(key, {})
        if not isinstance(table, dict):
            raise _make_error(entry, f"{key} is not a table of servers")
    if remove:
        return remove_value(text, entry.path)
    found = table.get(last)
    if not _is_local(found):
        return set_value(text, entry.path, dict(entry.value))
    for key, value in _select_changed(entry, found).items():
        text = set_value(text, (*entry.path, key), value)
    return text


def _is_local(found: object) -> bool:
    """Return whether this is the entry of a local server; that of a remote one has other keys."""
    return isinstance(found, dict) and "command" in found


def _select_changed(entry: ConfigEntry, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what differs from our entry. Keys that the user added stay, such as `env`."""
    return {key: value for key, value in entry.value.items() if found.get(key) != value}


def _edit_toml(text: str, entry: ConfigEntry, *, remove: bool) -> str:
    try:
        expected = tomllib.loads(text)
        document = tomlkit.parse(text)
    except (ValueError, TOMLKitError, RecursionError) as error:
        raise _make_error(entry, f"it is not valid TOML: {error}") from None
    try:
        if not _change(document, entry, remove=remove):
            return text
        _change(expected, entry, remove=remove)
        after = tomlkit.dumps(document)
        # With dotted keys, tomlkit writes the new table before keys that are then part of it.
        if tomllib.loads(after) == expected:
            return after
    except (ValueError, TOMLKitError, RecursionError):
        pass
    raise _make_error(entry, f"no table can be added to {entry.path[0]} as it is written there")


def _keep_line_ends(text: str, edit: Callable[[str], str]) -> str:
    """Edit a text whose lines end in a line feed; return it with the line ends that it had."""
    if "\r\n" not in text or text.count("\r\n") != text.count("\n"):
        return edit(text)
    return edit(text.replace("\r\n", "\n")).replace("\n", "\r\n")


def _change(document: Any, entry: ConfigEntry, *, remove: bool) -> bool:
    """Add or remove the entry in a parsed document; return whether that changed it."""
    *outer, last = entry.path
    tables = [document]
    for key in outer:
        inner = tables[-1].get(key)
        if inner is None:
            if remove:
                return False
            tables[-1][key] = tomlkit.table(is_super_table=True)
            inner = tables[-1][key]
        if not isinstance(inner, dict):
            raise _make_error(entry, f"{key} is not a table of servers")
        tables.append(inner)
    if remove:
        if tables[-1].pop(last, None) is None:
            return False
        # Tables that held nothing else go, too.
        for table, key in zip(reversed(tables[:-1]), reversed(outer), strict=True):
            if not table[key]:
                del table[key]
        return True
    found = tables[-1].get(last)
    if _is_local(found):
        changed = _select_changed(entry, found)
        found.update(changed)
        return bool(changed)
    value = tomlkit.table()
    value.update(entry.value)
    tables[-1][last] = value
    return True


def _read(file: Path) -> str | None:
    try:
        # With the line ends as they are: they are written back.
        with file.open(encoding="utf-8", newline="") as content:
            return content.read()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file}: {error}", code="bad_file") from None


def _make_error(entry: ConfigEntry, why: str) -> BadInput:
    value = json.dumps({entry.path[-1]: entry.value})
    return BadInput(
        f"{entry.file} cannot be changed safely: {why}",
        code="bad_file",
        hint=f"fix the file, or add this to {entry.path[0]} by hand: {value}",
    )
