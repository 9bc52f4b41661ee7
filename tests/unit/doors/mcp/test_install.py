"""Entries in other programs' files: put in, found as they are, taken out without a trace."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from retinue.delegating.terms import Terms
from retinue.domain.errors import BadInput
from retinue.doors.cli.mcp_install import CLIENTS
from retinue.doors.mcp.install.clients import Entry, entry_for, planned

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


def entry(client: str, folder: Path) -> Entry:
    environment = {"HOME": str(folder / "home")}
    return entry_for(client, COMMAND, Terms(), folder, environment)


def parsed(found: Entry) -> object:
    text = found.file.read_text()
    document = tomllib.loads(text) if found.is_toml else json.loads(text)
    for key in found.path:
        document = document[key]
    return document


@pytest.mark.parametrize("client", CLIENTS)
def test_an_entry_is_made_once_and_taken_out_whole(client: str, tmp_path: Path) -> None:
    found = entry(client, tmp_path)
    change = planned(found, remove=False)
    assert change.needed and "retinue" in change.diff and not found.file.exists()
    change.carry_out()
    assert parsed(found) == dict(found.value)
    assert not planned(found, remove=False).needed
    planned(found, remove=True).carry_out()
    assert not found.file.exists()
    assert not planned(found, remove=True).needed


@pytest.mark.parametrize("client", ["codex", "gemini"])
def test_folders_that_were_made_for_an_entry_go_with_it_and_no_others(
    client: str, tmp_path: Path
) -> None:
    found = entry(client, tmp_path)
    planned(found, remove=False).carry_out()
    planned(found, remove=True).carry_out()
    assert list(tmp_path.iterdir()) == []
    found.file.parent.mkdir(parents=True)  # somebody's own, though it is empty
    planned(found, remove=False).carry_out()
    planned(found, remove=True).carry_out()
    assert list(found.file.parent.iterdir()) == []
    found.file.parent.rmdir()
    planned(found, remove=False).carry_out()
    other = found.file.with_name("notes.txt")
    other.touch()  # put there since
    planned(found, remove=True).carry_out()
    assert list(found.file.parent.iterdir()) == [other]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("number", range(5))
def test_everything_else_in_the_file_stays_as_it_was(
    client: str, number: int, tmp_path: Path
) -> None:
    found = entry(client, tmp_path)
    texts = TEXTS["toml" if found.is_toml else "json"]
    before = texts[number % len(texts)]
    found.file.parent.mkdir(parents=True, exist_ok=True)
    found.file.write_text(before)
    found.file.chmod(0o640)
    planned(found, remove=False).carry_out()
    assert parsed(found) == dict(found.value)
    assert found.file.stat().st_mode & 0o777 == 0o640
    lines = before.splitlines()[:-1]
    assert all(line.rstrip(",") in found.file.read_text() for line in lines)
    assert not planned(found, remove=False).needed
    planned(found, remove=True).carry_out()
    after = found.file.read_text() if found.file.exists() else ""
    read = tomllib.loads if found.is_toml else json.loads
    kept = {k: v for k, v in read(before).items() if v} if before.strip() else {}
    left = {k: v for k, v in read(after).items() if v} if after.strip() else {}
    assert left == kept
    if number in (1, 2, 3) and not found.is_toml:
        assert after == before


def test_an_entry_that_says_something_else_is_replaced(tmp_path: Path) -> None:
    for client in CLIENTS:
        found = entry(client, tmp_path)
        planned(found, remove=False).carry_out()
        other = entry_for(client, ["other", "mcp"], Terms(), tmp_path, {"HOME": f"{tmp_path}/home"})
        planned(other, remove=False).carry_out()
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
        planned(found, remove=False)
    assert found.file.read_text() == text


@pytest.mark.requirement("R220")
def test_codex_is_given_a_minute_more_than_a_subagent_has(tmp_path: Path) -> None:
    terms = Terms(default_seconds=123.5)
    found = entry_for("codex", COMMAND, terms, tmp_path, {"CODEX_HOME": str(tmp_path)})
    assert found.value["tool_timeout_sec"] == 184 and found.file == tmp_path / "config.toml"
