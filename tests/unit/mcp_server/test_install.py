"""Adding and removing this server's entry in the files of MCP clients."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from retinue.agents.profiles import PROFILES
from retinue.cli import mcp_commands
from retinue.core.errors import BadInput
from retinue.core.staffing import CodingAgent, ModelBackend, Spawner, Staff
from retinue.core.task_config import TaskConfig
from retinue.delegation.tool_schemas import AGENTS, ToolLimits, spawn_schema
from retinue.mcp_server.install.client_configs import (
    CLIENTS,
    ConfigEntry,
    build_entry,
    build_hook_changes,
    plan_changes,
)
from retinue.mcp_server.install.subagent_choices import (
    find_choices,
    find_setup_problem,
    list_usable_agents,
    require_choice,
)

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


def test_the_command_knows_every_client() -> None:
    assert mcp_commands.CLIENTS == CLIENTS


@pytest.mark.parametrize("client", ["codex", "gemini", "cursor"])
def test_a_folder_with_other_files_stays_when_the_entry_is_removed(
    client: str, tmp_path: Path
) -> None:
    found = entry(client, tmp_path)
    plan_changes(found, remove=False).carry_out()
    other = found.file.with_name("notes.txt")
    other.touch()
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
    if found.is_toml:
        assert all(line in found.file.read_text() for line in before.splitlines())
    assert not plan_changes(found, remove=False).needed
    plan_changes(found, remove=True).carry_out()
    after = found.file.read_text() if found.file.exists() else ""
    read = tomllib.loads if found.is_toml else json.loads
    kept = {k: v for k, v in read(before).items() if v} if before.strip() else {}
    left = {k: v for k, v in read(after).items() if v} if after.strip() else {}
    assert left == kept
    if found.is_toml:
        assert after.strip() == before.strip()


def test_a_different_entry_is_replaced(tmp_path: Path) -> None:
    for client in CLIENTS:
        found = entry(client, tmp_path)
        plan_changes(found, remove=False).carry_out()
        other = build_entry(
            client, ["other", "mcp"], ToolLimits(), tmp_path, {"HOME": f"{tmp_path}/home"}
        )
        plan_changes(other, remove=False).carry_out()
        assert parsed(other) == dict(other.value)


@pytest.mark.parametrize("client", ["claude", "codex"])
def test_what_the_user_added_to_the_entry_stays(client: str, tmp_path: Path) -> None:
    found = entry(client, tmp_path)
    added = replace(found, value={**found.value, "args": ["old"], "env": {"RETINUE_MODELS": "/m"}})
    plan_changes(added, remove=False).carry_out()
    plan_changes(found, remove=False).carry_out()
    assert parsed(found) == {**found.value, "env": {"RETINUE_MODELS": "/m"}}
    remote = replace(found, value={"url": "http://127.0.0.1/mcp"})
    plan_changes(found, remove=True).carry_out()
    plan_changes(remote, remove=False).carry_out()
    plan_changes(found, remove=False).carry_out()
    assert parsed(found) == dict(found.value), "an entry of another kind is replaced"


@pytest.mark.parametrize(
    ("client", "text"),
    [
        ("claude", "{ # comment\n}"),
        ("claude", "[]"),
        ("claude", '{"mcpServers": []}'),
        ("gemini", "{"),
        ("codex", "model = "),
        ("codex", "mcp_servers = 7\n"),
        ("codex", 'mcp_servers = { other = { command = "x" } }\n'),
        # A table written after the first key would take the second one in.
        ("codex", 'mcp_servers.other.command = "x"\nmodel = "m"\n'),
        ("zed", '{"a": 1, "a": 2}'),
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


@pytest.mark.parametrize("client", ["codex", "zed"])
def test_the_line_ends_of_a_file_stay(client: str, tmp_path: Path) -> None:
    found = entry(client, tmp_path)
    found.file.parent.mkdir(parents=True)
    before = b'{\r\n  "theme": "One" // mine\r\n}\r\n'
    if found.is_toml:
        before = b'model = "m" # mine\r\n\r\n[tui]\r\ntheme = "d"\r\n'
    found.file.write_bytes(before)
    plan_changes(found, remove=False).carry_out()
    after = found.file.read_bytes()
    assert b"retinue" in after and after.count(b"\r\n") == after.count(b"\n")
    plan_changes(found, remove=True).carry_out()
    assert found.file.read_bytes().split() == before.split()
    assert b"\r\n" in found.file.read_bytes()


@pytest.mark.parametrize("text", ["{}\n", None], ids=["a file", "no file"])
def test_what_another_program_wrote_meanwhile_is_not_overwritten(
    text: str | None, tmp_path: Path
) -> None:
    found = entry("gemini", tmp_path)
    found.file.parent.mkdir(parents=True)
    if text is not None:
        found.file.write_text(text)
    change = plan_changes(found, remove=False)
    found.file.write_text('{"theme": "dark"}\n')
    with pytest.raises(BadInput, match="by another program meanwhile"):
        change.carry_out()
    assert found.file.read_text() == '{"theme": "dark"}\n'


def test_a_link_in_the_project_leads_to_no_other_file(tmp_path: Path) -> None:
    """A checkout can contain links at the names of temporary files."""
    other = tmp_path / "profile"
    other.write_text("mine\n")
    found = entry("claude", tmp_path / "project")
    found.file.parent.mkdir()
    for name in (f".{found.file.name}.retinue-new", f".{found.file.name}.new"):
        (found.file.parent / name).symlink_to(other)
    plan_changes(found, remove=False).carry_out()
    assert other.read_text() == "mine\n" and parsed(found) == dict(found.value)
    assert not found.file.is_symlink()


def test_a_link_to_a_private_file_stays_and_so_does_its_mode(
    tmp_path: Path,
) -> None:
    found = entry("zed", tmp_path)
    found.file.parent.mkdir(parents=True)
    kept = tmp_path / "dotfiles.json"
    kept.write_text('{"key": "k"}\n')
    kept.chmod(0o600)
    found.file.symlink_to(kept)
    plan_changes(found, remove=False).carry_out()
    assert found.file.is_symlink() and "retinue" in kept.read_text()
    assert kept.stat().st_mode & 0o777 == 0o600


def test_comments_before_the_document_stay(tmp_path: Path) -> None:
    found = entry("zed", tmp_path)
    found.file.parent.mkdir(parents=True)
    found.file.write_text('// mine\n// too\n{\n    "theme": "One"\n}\n')
    plan_changes(found, remove=False).carry_out()
    text = found.file.read_text()
    assert text.startswith('// mine\n// too\n{\n    "theme": "One",\n    "context_servers"')
    plan_changes(found, remove=True).carry_out()
    assert found.file.read_text() == '// mine\n// too\n{\n    "theme": "One"\n}\n'


def test_opencode_keeps_its_file_with_comments(tmp_path: Path) -> None:
    (tmp_path / "opencode.jsonc").write_text('{\n  // mine\n  "theme": "x",\n}\n')
    found = entry("opencode", tmp_path)
    plan_changes(found, remove=False).carry_out()
    text = (tmp_path / "opencode.jsonc").read_text()
    assert text.startswith('{\n  // mine\n  "theme": "x",\n  "mcp": {\n    "retinue": {')
    assert not plan_changes(found, remove=False).needed
    plan_changes(found, remove=True).carry_out()
    assert (tmp_path / "opencode.jsonc").read_text() == '{\n  // mine\n  "theme": "x",\n}\n'


def test_hooks_are_added_once_beside_others_and_removed(tmp_path: Path) -> None:
    file = tmp_path / ".claude" / "settings.json"
    file.parent.mkdir()
    mine = {"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "bell"}]}]}, "x": 1}
    file.write_text(json.dumps(mine))
    for command in (["old", "mcp", "news"], ["retinue", "mcp", "news"]):
        build_hook_changes(tmp_path, command, remove=False).carry_out()
    assert not build_hook_changes(tmp_path, ["retinue", "mcp", "news"], remove=False).needed
    hooks = json.loads(file.read_text())["hooks"]
    assert set(hooks) == {"UserPromptSubmit", "PostToolUse", "Stop"}
    assert [each["hooks"][0]["command"] for each in hooks["Stop"]] == ["bell", "retinue mcp news"]
    build_hook_changes(tmp_path, [], remove=True).carry_out()
    assert json.loads(file.read_text()) == mine
    assert not build_hook_changes(tmp_path, [], remove=True).needed


def test_hooks_of_the_user_stay_beside_ours_and_if_they_are_named_alike(tmp_path: Path) -> None:
    file = tmp_path / ".claude" / "settings.json"
    file.parent.mkdir()
    news = {"type": "command", "command": "print-mcp newsletter"}
    old = {"type": "command", "command": "/old/retinue mcp news"}
    bell = {"type": "command", "command": "bell"}
    groups = [{"hooks": [news]}, {"matcher": "x", "hooks": [old, bell]}]
    file.write_text(json.dumps({"hooks": {"Stop": groups}}))
    build_hook_changes(tmp_path, ["retinue", "mcp", "news"], remove=False).carry_out()
    hooks = json.loads(file.read_text())["hooks"]["Stop"]
    assert hooks[:2] == [{"hooks": [news]}, {"matcher": "x", "hooks": [bell]}]
    assert [each["command"] for each in hooks[2]["hooks"]] == ["retinue mcp news"]
    build_hook_changes(tmp_path, [], remove=True).carry_out()
    assert json.loads(file.read_text())["hooks"]["Stop"] == hooks[:2]


def test_subagents_are_offered_by_keys_and_agents_on_the_path(tmp_path: Path) -> None:
    environment = {
        "OPENAI_API_KEY": "k",
        "HOME": str(tmp_path),
        "RETINUE_MODELS": str(tmp_path),
        "PATH": str(tmp_path / "bin"),
    }
    choices = find_choices(environment, tmp_path / "project")
    chosen = require_choice("@openai", choices)
    assert chosen.found == "OPENAI_API_KEY is set" and "OPENAI_API_KEY" in chosen.config
    with pytest.raises(BadInput, match="not available here"):
        require_choice("@anthropic", choices)


def install_program(folder: Path, name: str) -> str:
    """Put a program of this name into a folder; return the folder, for PATH."""
    folder.mkdir(exist_ok=True)
    (folder / name).touch(0o755)
    return str(folder)


def test_a_coding_agent_is_offered_with_its_key_or_its_own_login(tmp_path: Path) -> None:
    environment = {
        "HOME": str(tmp_path),
        "RETINUE_MODELS": str(tmp_path),
        "PATH": install_program(tmp_path / "bin", "codex"),
    }

    def choose(**more: str) -> tuple[bool, str, str]:
        found = require_choice("codex", find_choices(environment | more, tmp_path / "project"))
        return found.ready, found.found, found.config

    ready, why, _ = choose()
    assert not ready and "once OPENAI_API_KEY is set or you are logged in" in why
    ready, why, config = choose(OPENAI_API_KEY="k")
    assert ready and "OPENAI_API_KEY is set" in why and "own" not in config
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "auth.json").write_text("{}")
    ready, why, config = choose()
    assert ready and "with your login" in why
    assert '"login": "own"' in config and "subagent_network: on" in config


def test_a_configuration_that_can_start_nothing_is_recognised(tmp_path: Path) -> None:
    bare = {"RETINUE_MODELS": str(tmp_path), "HOME": str(tmp_path)}

    def problem(config: TaskConfig, **more: str) -> tuple[str, str]:
        return find_setup_problem(config, bare | more, tmp_path / "project")

    why, remedy = problem(TaskConfig())
    assert "no model is configured" in why and remedy.endswith("retinue model install")
    assert problem(TaskConfig(), GEMINI_API_KEY="k") == ("", "")
    config = TaskConfig(
        staff=Staff(spawners=(Spawner(id="a", backend=ModelBackend(name="a", type="openai")),))
    )
    why, remedy = problem(config)
    assert "OPENAI_API_KEY is not set" in why and "retinue steward stop" in remedy
    assert problem(config, OPENAI_API_KEY="k") == ("", "")
    command = TaskConfig(staff=Staff(spawners=(Spawner(id="a", argv=("x",)),)))
    assert problem(command) == ("", "")


def test_a_coding_agent_that_cannot_work_is_recognised(tmp_path: Path) -> None:
    path = install_program(tmp_path / "bin", "codex")
    bare = {"RETINUE_MODELS": str(tmp_path), "HOME": str(tmp_path), "PATH": path}

    def problem(agent: CodingAgent, **more: str) -> str:
        config = TaskConfig(staff=Staff(spawners=(Spawner(id="a", agent=agent),)))
        return find_setup_problem(config, bare | more, tmp_path / "project")[0]

    assert "no program codex" in problem(CodingAgent(type="codex"), PATH="")
    assert "OPENAI_API_KEY is not set" in problem(CodingAgent(type="codex"))
    assert problem(CodingAgent(type="codex"), OPENAI_API_KEY="k") == ""
    own = CodingAgent(type="codex", login="own")
    assert "Codex has no login" in problem(own)
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "auth.json").write_text("{}")
    assert problem(own) == ""
    # Without a configuration, what is ready here is named.
    remedy = find_setup_problem(TaskConfig(), bare, tmp_path / "project")[1]
    assert remedy == "the user can run: retinue mcp install --subagents codex"


def test_the_tools_name_the_coding_agents_that_can_be_used(tmp_path: Path) -> None:
    assert tuple(each.short_name for each in PROFILES) == AGENTS
    path = ":".join(install_program(tmp_path / "bin", name) for name in ("codex", "claude"))
    environment = {"HOME": str(tmp_path), "PATH": path, "OPENAI_API_KEY": "k"}

    def usable(*configured: Spawner) -> tuple[str, ...]:
        config = TaskConfig(staff=Staff(spawners=configured))
        return list_usable_agents(config, environment)

    assert usable() == ("codex",)
    ours = Spawner(id="ours", agent=CodingAgent(type="acp", argv=("x",)))
    assert usable(ours) == ("codex", "ours")
    # One with its own login stands for its kind, and nobody is logged in.
    assert usable(Spawner(id="mine", agent=CodingAgent(type="codex", login="own"))) == ()
    described = spawn_schema(ToolLimits(agents=usable()))["properties"]["tasks"]["items"]
    assert described["properties"]["agent"]["description"] == "codex."


@pytest.mark.requirement("R220")
def test_the_codex_timeout_is_a_minute_longer_than_a_subagents(tmp_path: Path) -> None:
    terms = ToolLimits(default_seconds=123.5)
    found = build_entry("codex", COMMAND, terms, tmp_path, {"CODEX_HOME": str(tmp_path)})
    assert found.value["tool_timeout_sec"] == 184 and found.file == tmp_path / "config.toml"
