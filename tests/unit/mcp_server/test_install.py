"""Adding and removing this server's entry in the files of MCP clients."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from retinue.cli.mcp_commands import CLIENTS
from retinue.core.errors import BadInput
from retinue.delegation.tool_schemas import ToolLimits
from retinue.mcp_server.install.client_configs import ConfigEntry, build_entry, plan_changes

COMMAND = ["retinue", "mcp"]
TEXTS = {
    "json": [
        "{}\n",
        '{"mcpServers": {"other": {"command": "x", "args": ["a", "b"]}}, "mcp": {"o": {}}}',
        '{\n\t"theme": "dark",\n\t"mcpServers": {\n\t\t"other": {"command": "x"}\n\t}\n}\n',
        '{\n  "last": [1, 2,\n 3],  "q": "}{\\""\n}',
        '{"mcpServers": {}, "mcp": {}}',
    ],
    "toml": [
        "",
        'model = "m"\n',
        '# mine\nmodel = "m"\n\n[mcp_servers.other]\ncommand = "x"\n\n[tui]\ntheme = "d" # dark\n',
    ],
}


def entry(client: str, folder: Path) -> ConfigEntry:
    environment = {"HOME": str(folder / "home")}
    return build_entry(client, COMMAND, ToolLimits(), folder, environment)


def parsed(found: ConfigEntry) -> object:
    text = found.file.read_text()
    document = tomllib.loads(text) if found.is_toml else json.loads(text)
    for key in found.path:
        document = document[key]
    return document


@pytest.mark.parametrize("client", CLIENTS)
def test_an_entry_is_added_once_and_removed_completely(client: str, tmp_path: Path) -> None:
    found = entry(client, tmp_path)
    change = plan_changes(found, remove=False)
    assert change.needed and "retinue" in change.diff and not found.file.exists()
    change.carry_out()
    assert parsed(found) == dict(found.value)
    assert not plan_changes(found, remove=False).needed
    plan_changes(found, remove=True).carry_out()
    assert not found.file.exists()
    assert not plan_changes(found, remove=True).needed


@pytest.mark.parametrize("client", ["codex", "gemini"])
def test_only_folders_created_for_an_entry_are_removed_with_it(client: str, tmp_path: Path) -> None:
    found = entry(client, tmp_path)
    plan_changes(found, remove=False).carry_out()
    plan_changes(found, remove=True).carry_out()
    assert list(tmp_path.iterdir()) == []
    found.file.parent.mkdir(parents=True)  # empty, but created by the user
    plan_changes(found, remove=False).carry_out()
    plan_changes(found, remove=True).carry_out()
    assert list(found.file.parent.iterdir()) == []
    found.file.parent.rmdir()
    plan_changes(found, remove=False).carry_out()
    other = found.file.with_name("notes.txt")
    other.touch()  # created by another program
    plan_changes(found, remove=True).carry_out()
    assert list(found.file.parent.iterdir()) == [other]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("number", range(5))
def test_the_rest_of_the_file_stays_unchanged(client: str, number: int, tmp_path: Path) -> None:
    found = entry(client, tmp_path)
    texts = TEXTS["toml" if found.is_toml else "json"]
    before = texts[number % len(texts)]
    found.file.parent.mkdir(parents=True, exist_ok=True)
    found.file.write_text(before)
    found.file.chmod(0o640)
    plan_changes(found, remove=False).carry_out()
    assert parsed(found) == dict(found.value)
    assert found.file.stat().st_mode & 0o777 == 0o640
    lines = before.splitlines()[:-1]
    assert all(line.rstrip(",") in found.file.read_text() for line in lines)
    assert not plan_changes(found, remove=False).needed
    plan_changes(found, remove=True).carry_out()
    after = found.file.read_text() if found.file.exists() else ""
    read = tomllib.loads if found.is_toml else json.loads
    kept = {k: v for k, v in read(before).items() if v} if before.strip() else {}
    left = {k: v for k, v in read(after).items() if v} if after.strip() else {}
    assert left == kept
    if number in (1, 2, 3) and not found.is_toml:
        assert after == before


def test_a_different_entry_is_replaced(tmp_path: Path) -> None:
    for client in CLIENTS:
        found = entry(client, tmp_path)
        plan_changes(found, remove=False).carry_out()
        other = build_entry(
            client, ["other", "mcp"], ToolLimits(), tmp_path, {"HOME": f"{tmp_path}/home"}
        )
        plan_changes(other, remove=False).carry_out()
        assert parsed(other) == dict(other.value)


@pytest.mark.parametrize(
    ("client", "text"),
    [
        ("claude", "{ // comment\n}"),
        ("claude", "[]"),
        ("claude", '{"mcpServers": []}'),
        ("gemini", "{"),
        ("codex", "model = "),
        ("codex", 'mcp_servers = {retinue = {command = "x"}}\n'),
    ],
)
def test_a_file_that_cannot_be_changed_safely_is_left_alone(
    client: str, text: str, tmp_path: Path
) -> None:
    found = entry(client, tmp_path)
    found.file.parent.mkdir(parents=True, exist_ok=True)
    found.file.write_text(text)
    with pytest.raises(BadInput):
        plan_changes(found, remove=False)
    assert found.file.read_text() == text


@pytest.mark.requirement("R220")
def test_the_codex_timeout_is_a_minute_longer_than_a_subagents(tmp_path: Path) -> None:
    terms = ToolLimits(default_seconds=123.5)
    found = build_entry("codex", COMMAND, terms, tmp_path, {"CODEX_HOME": str(tmp_path)})
    assert found.value["tool_timeout_sec"] == 184 and found.file == tmp_path / "config.toml"
