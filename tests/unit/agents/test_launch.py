"""Launches of coding agents: isolated, quiet, without the vendor's own subagents and web."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest

from retinue.agents.launch import (
    AgentLaunch,
    LaunchRequest,
    ToolServerAddress,
    build_launch,
    check_tools,
    vendor_tools,
)
from retinue.agents.link import PermissionQuestion
from retinue.agents.permissions import ContractPolicy
from retinue.agents.profiles import PROFILES, AgentProfile, find_profile, make_acp_profile
from retinue.core.errors import BadInput

SERVER = ToolServerAddress(url="http://127.0.0.1:9/mcp", token="tools-token")
ROLE = 'Say "no" to\nwhat breaks \\ leaks.'
NAMES = [profile.short_name for profile in PROFILES]
LISTED = ["claude", "gemini", "opencode"]


def find(name: str) -> AgentProfile:
    profile = find_profile(name)
    assert profile is not None
    return profile


def build(name: str | AgentProfile, **more: Any) -> AgentLaunch:
    values: dict[str, Any] = {
        "program": ("/opt/agent",),
        "model": "a-model",
        "home": "/homes/m1",
        "cwd": "/workspace",
        "base_url": "http://gateway/v1",
        "token": "the-token",
    }
    profile = find(name) if isinstance(name, str) else name
    return build_launch(profile, LaunchRequest(**values | more))


def after(launch: AgentLaunch, option: str) -> str:
    """Return the word that follows an option."""
    return launch.argv[launch.argv.index(option) + 1]


def codex_settings(launch: AgentLaunch) -> dict[str, Any]:
    pairs = [launch.argv[at + 1] for at, word in enumerate(launch.argv) if word == "-c"]
    return tomllib.loads("\n".join(pairs))


def everything(launch: AgentLaunch) -> str:
    return json.dumps([launch.argv, dict(launch.environment), dict(launch.files)])


def test_each_agent_is_found_by_its_full_and_its_short_name() -> None:
    for profile in PROFILES:
        assert find_profile(profile.name) is find_profile(profile.short_name) is profile
    assert NAMES == ["claude", "codex", "gemini", "opencode", "goose", "copilot"]
    assert find_profile("vim") is None


def test_a_version_counts_as_tested_with_its_patches() -> None:
    profile = find("codex")
    major, minor, _ = profile.tested[0].split(".")
    assert profile.is_tested(f"{major}.{minor}.99")
    assert not profile.is_tested(f"{major}.{int(minor) + 1}.0")
    assert not profile.is_tested("")


@pytest.mark.parametrize("name", NAMES)
def test_an_agent_is_given_the_gateway_and_nothing_of_the_user(name: str) -> None:
    launch = build(name)
    assert launch.argv[0] == "/opt/agent"
    said = everything(launch)
    assert "http://gateway" in said and "a-model" in said and "the-token" in said
    # Words of a command can be read by every process of the child.
    assert "the-token" not in json.dumps(launch.argv)
    assert launch.environment["HOME"] == "/homes/m1"
    folders = [path for path in launch.environment.values() if path.startswith("/home")]
    assert all(path.startswith("/homes/m1") for path in [*folders, *launch.files])


@pytest.mark.parametrize("name", NAMES)
def test_an_own_login_names_neither_gateway_nor_token(name: str) -> None:
    said = everything(build(name, login="own"))
    assert "gateway" not in said.replace("gemini-api-key", "") and "the-token" not in said
    assert find(name).credentials


@pytest.mark.parametrize("name", NAMES)
def test_a_role_reaches_the_agent_unchanged(name: str) -> None:
    launch = build(name, role=ROLE)
    texts = [*launch.argv, *launch.files.values()]
    if name == "codex":
        texts.append(codex_settings(launch)["developer_instructions"])
    assert ROLE in texts


@pytest.mark.parametrize("name", ["claude", "codex"])
def test_the_tool_server_is_part_of_the_command_where_the_dialect_has_no_place(name: str) -> None:
    launch = build(name, tool_server=SERVER)
    if name == "claude":
        written = launch.files[after(launch, "--mcp-config")]
        (entry,) = json.loads(written)["mcpServers"].values()
        assert entry["headers"]["Authorization"] == "Bearer tools-token"
    else:
        (entry,) = codex_settings(launch)["mcp_servers"].values()
        assert launch.environment[entry["bearer_token_env_var"]] == "tools-token"
    assert entry["url"] == SERVER.url
    assert launch.tool_server is SERVER
    assert "tools-token" not in json.dumps(launch.argv)


def test_claude_reads_no_settings_and_retries_once() -> None:
    launch = build("claude", turns=7)
    assert "--strict-mcp-config" in launch.argv and "--setting-sources=" in launch.argv
    assert after(launch, "--max-turns") == "7"
    assert launch.environment["CLAUDE_CODE_MAX_RETRIES"] == "1"
    assert launch.masks == (".claude", ".mcp.json")


def test_claude_is_offered_the_tools_of_a_list_only() -> None:
    launch = build("claude", tools=("read_file", "run_command"), tool_server=SERVER)
    assert "--tools=Bash,Read" in launch.argv
    assert "--allowedTools=Bash,Read,mcp__retinue" in launch.argv
    assert "bypassPermissions" not in launch.argv
    assert "--tools=" in build("claude", tools=()).argv


def test_claude_has_no_subagents_web_or_schedules_unless_they_are_opened() -> None:
    (word,) = [word for word in build("claude").argv if word.startswith("--tools=")]
    offered = set(word.removeprefix("--tools=").split(","))
    assert {"Bash", "Edit", "Glob", "Grep", "Read", "Write"} <= offered
    assert not offered & {"Task", "Agent", "WebFetch", "WebSearch", "Workflow", "CronCreate"}
    opened = build("claude", native_tools=True).argv
    assert not [word for word in opened if word.startswith("--tools")]


def test_codex_has_no_subagents_or_web_unless_they_are_opened() -> None:
    settings = codex_settings(build("codex"))
    assert settings["web_search"] == "disabled"
    assert settings["features"]["multi_agent"] is False
    opened = codex_settings(build("codex", native_tools=True))
    assert "web_search" not in opened and "multi_agent" not in opened["features"]


def test_codex_keeps_conversations_in_its_home_and_indexes_in_memory() -> None:
    kept = {"CODEX_HOME": "/homes/m1/codex"}
    assert dict(build("codex").environment).items() >= kept.items()
    assert "CODEX_SQLITE_HOME" not in build("codex").environment
    launch = build("codex", memory="/tmp/m1")
    assert launch.environment.items() >= (kept | {"CODEX_SQLITE_HOME": "/tmp/m1/codex"}).items()
    assert "/tmp/m1/codex" in launch.folders


def test_opencode_installs_no_package_for_plugins() -> None:
    launch = build("opencode")
    lock = json.loads(launch.files["/homes/m1/config/opencode/package-lock.json"])
    assert "@opencode-ai/plugin" in lock["packages"][""]["dependencies"]
    assert "/homes/m1/config/opencode/node_modules" in launch.folders
    # Some plugins of its own are ways to log in.
    assert "OPENCODE_DISABLE_DEFAULT_PLUGINS" in launch.environment
    own = build("opencode", login="own").environment
    assert "OPENCODE_DISABLE_DEFAULT_PLUGINS" not in own


def test_gemini_has_no_subagents_or_web_unless_they_are_opened() -> None:
    assert 'toolName = "web_fetch"\ndecision = "deny"' in policy_of(build("gemini"))
    assert "web_fetch" not in policy_of(build("gemini", native_tools=True))


def test_codex_has_full_access_inside_of_ours_and_trusts_no_project() -> None:
    settings = codex_settings(build("codex", cwd='/odd "name"'))
    assert settings["sandbox_mode"] == "danger-full-access"
    assert settings["approval_policy"] == "never"
    assert settings["projects"] == {'/odd "name"': {"trust_level": "untrusted"}}
    provider = settings["model_providers"]["retinue"]
    assert provider["base_url"] == "http://gateway/v1"
    assert provider["wire_api"] == "responses"
    assert (provider["request_max_retries"], provider["stream_max_retries"]) == (0, 0)
    assert settings["analytics"]["enabled"] is False
    assert settings["features"]["plugins"] is False


def test_codex_without_tools_has_no_shell() -> None:
    assert codex_settings(build("codex", tools=()))["features"]["shell_tool"] is False
    assert "shell_tool" not in codex_settings(build("codex", tools=("run_command",)))["features"]


def test_gemini_is_held_by_an_administrators_policy() -> None:
    launch = build("gemini", tools=("read_file", "list_files"), tool_server=SERVER)
    rules = tomllib.loads(policy_of(launch))["rule"]
    allowed = {rule["toolName"] for rule in rules if rule["decision"] == "allow"}
    assert allowed == {"read_file", "list_directory", "glob", "mcp_retinue_*"}
    (denied,) = [rule for rule in rules if rule["decision"] == "deny"]
    assert denied["toolName"] == "*"
    assert denied["priority"] < min(r["priority"] for r in rules if r["decision"] == "allow")
    assert "--skip-trust" in launch.argv
    assert "GEMINI_CLI_TRUST_WORKSPACE" not in launch.environment
    settings = json.loads(launch.files["/homes/m1/.gemini/settings.json"])
    assert settings["security"]["auth"]["selectedType"] == "gemini-api-key"


def policy_of(launch: AgentLaunch) -> str:
    return launch.files[after(launch, "--admin-policy")]


def test_opencode_denies_all_but_the_list() -> None:
    launch = build("opencode", tools=("read_file",), tool_server=SERVER)
    content = json.loads(launch.environment["OPENCODE_CONFIG_CONTENT"])
    assert content["permission"] == {"*": "deny", "read": "allow", "retinue_*": "allow"}
    assert next(iter(content["permission"])) == "*", "the last rule that matches decides"
    assert content["agent"]["title"]["disable"] is True
    assert ".opencode" in launch.masks


def test_goose_speaks_chat_to_every_model() -> None:
    launch = build("goose")
    assert launch.environment["OPENAI_BASE_PATH"] == "chat/completions"
    assert launch.environment["OPENAI_HOST"] == "http://gateway/v1"


def test_copilot_unpacks_itself_outside_of_the_kept_home() -> None:
    launch = build("copilot", temporary="/scratch")
    assert launch.environment["XDG_CACHE_HOME"].startswith("/scratch/")


@pytest.mark.parametrize("name", ["ours", "codex", "opencode"])
def test_an_agent_by_configuration_has_its_words_filled_in_once(name: str) -> None:
    profile = make_acp_profile(
        name=name,
        argv=["my-agent", "--acp", "--model={model}"],
        wire="chat",
        environment={"URL": "{base_url}", "KEY": "{token}", "BRACES": "{other}"},
    )
    launch = build(profile, model="{token}")
    assert launch.argv == ("/opt/agent", "--acp", "--model={token}")
    assert launch.environment["URL"] == "http://gateway/v1"
    assert launch.environment["KEY"] == "the-token"
    assert launch.environment["BRACES"] == "{other}"


@pytest.mark.parametrize(("argv", "wire"), [([], "chat"), (["a"], "telepathy"), ([""], "chat")])
def test_an_agent_without_program_or_with_an_unknown_wire_is_refused(
    argv: list[str], wire: str
) -> None:
    with pytest.raises(BadInput):
        make_acp_profile(name="ours", argv=argv, wire=wire)


@pytest.mark.parametrize("name", NAMES)
def test_all_tools_can_always_be_granted(name: str) -> None:
    check_tools(find(name), None)


@pytest.mark.parametrize(
    ("name", "tools"),
    [
        *((name, ()) for name in [*LISTED, "codex"]),
        *((name, ("read_file", "list_files")) for name in LISTED),
        ("opencode", ("write_file", "edit_file")),
        ("codex", ("run_command",)),
        ("codex", ("read_file", "run_command")),
    ],
)
def test_lists_that_a_program_enforces_are_accepted(name: str, tools: tuple[str, ...]) -> None:
    check_tools(find(name), tools)
    build(name, tools=tools)


@pytest.mark.parametrize(
    ("name", "tools"),
    [
        ("codex", ("read_file",)),
        ("goose", ()),
        ("goose", ("read_file",)),
        ("copilot", ()),
        ("opencode", ("write_file",)),
        ("opencode", ("edit_file",)),
        ("claude", ("copy_files_batch",)),
    ],
)
def test_lists_that_a_program_would_not_enforce_are_refused(
    name: str, tools: tuple[str, ...]
) -> None:
    with pytest.raises(BadInput) as caught:
        build(name, tools=tools)
    assert caught.value.code == "tools_not_enforced"
    assert caught.value.hint


def test_opencode_is_held_only_while_its_plugins_are_hidden() -> None:
    check_tools(find("opencode"), ("read_file",), masked=True)
    with pytest.raises(BadInput, match="plugins"):
        check_tools(find("opencode"), ("read_file",), masked=False)
    check_tools(find("opencode"), None, masked=False)


def test_tools_of_our_server_need_no_tool_of_the_vendor() -> None:
    check_tools(find("claude"), ("read_file", "ask"), served={"ask"})
    assert vendor_tools(find("claude"), ("read_file", "ask")) == {"Read"}


def test_permission_is_the_contracts() -> None:
    policy = ContractPolicy(find("gemini"), ("read_file",))
    assert policy.grants(PermissionQuestion(tool="read_file", kind="read"))
    assert policy.grants(PermissionQuestion(kind="read"))
    assert policy.grants(PermissionQuestion(tool="mcp_retinue_vote"))
    assert not policy.grants(PermissionQuestion(tool="run_shell_command", kind="read"))
    assert not policy.grants(PermissionQuestion(kind="execute"))
    assert not policy.grants(PermissionQuestion())
    assert ContractPolicy(find("gemini"), None).grants(PermissionQuestion(kind="execute"))
