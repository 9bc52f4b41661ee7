"""The documented configuration is accepted; anything else is refused by its full key."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.core.errors import BadInput
from retinue.core.task_config import TaskConfig
from retinue.formats.config_document import build_task_section, parse_config, parse_task_config
from retinue.formats.schemas.config_schema import Config, Coordination
from retinue.formats.yaml_document import Place, load_yaml

BASIC = """\
orchestrator:
  coordination:
    enable_subagents: true
    subagent_default_timeout: 300  # 5 minutes per subagent (default)
    subagent_min_timeout: 60       # Minimum 1 minute (prevents too-short timeouts)
    subagent_max_timeout: 600      # Maximum 10 minutes (prevents runaway subagents)
    subagent_max_concurrent: 3     # Max 3 subagents at once

    # Optional: per-round timeouts for subagents (inherits parent if omitted)
    subagent_round_timeouts:
      initial_round_timeout_seconds: 600
      subsequent_round_timeout_seconds: 300
      round_timeout_grace_seconds: 120
"""
FULL = """\
agents:
  - id: "orchestrator_agent"
    backend:
      type: "openai"
      model: "gpt-4o"
      cwd: "workspace"
      enable_mcp_command_line: true
    system_message: |
      You are a task orchestrator. For complex tasks with independent
      parts, use spawn_subagents to parallelize the work.

orchestrator:
  coordination:
    enable_subagents: true
    subagent_default_timeout: 300
    subagent_max_concurrent: 3
    enable_agent_task_planning: true  # Recommended for complex orchestration

ui:
  display_type: "rich_terminal"
  logging_enabled: true
"""
CUSTOM = """\
orchestrator:
  coordination:
    enable_subagents: true
    subagent_orchestrator:
      enabled: true
      parse_at_references: false  # Optional: treat @tokens in task text as literals
      agents:
        - id: "subagent_worker"
          backend:
            type: "openai"
            model: "gpt-5-mini"  # Use cheaper model for subagents
        - id: "subagent_worker_2"
          backend:
            type: "gemini"
            model: "gemini-3-flash-preview"
"""
INHERIT = """\
orchestrator:
  coordination:
    enable_subagents: true
    subagent_orchestrator:
      enabled: true
      inherit_spawning_agent_backend: true
"""
SHARED = """\
orchestrator:
  coordination:
    enable_subagents: true
    subagent_orchestrator:
      enabled: true
      shared_child_team_types: [round_evaluator, builder]
"""
SHARED_BY_ALL = """\
orchestrator:
  coordination:
    enable_subagents: true
    subagent_orchestrator:
      enabled: true
      shared_child_team_types: ["*"]
"""
TYPES = """\
orchestrator:
  coordination:
    enable_subagents: true
    # Default (when omitted or null): [evaluator, explorer, researcher]
    subagent_types: [evaluator, explorer, researcher, novelty]
"""
BACKGROUND = """\
orchestrator:
  coordination:
    enable_subagents: true
    background_subagents:
      enabled: true  # Allow background spawning (default: true)
"""
RUNTIME = """\
orchestrator:
  coordination:
    enable_subagents: true
    subagent_runtime_mode: isolated            # default
    # subagent_runtime_fallback_mode: inherited  # explicit opt-in fallback
    # subagent_host_launch_prefix: ["host-launch", "--exec"]
"""


def read(text: str) -> Config:
    lines: dict[Place, int] = {}
    return parse_config(load_yaml(text, where="c.yaml", lines=lines), where="c.yaml", lines=lines)


def coordination(text: str) -> Coordination:
    return read(text).orchestrator.coordination


def setting(line: str) -> Coordination:
    return coordination(f"orchestrator:\n  coordination:\n    {line}\n")


def backend(line: str) -> Config:
    return read(f"agents:\n  - id: one\n    backend: {line}\n")


def refusal(text: str, code: str = "bad_config") -> str:
    with pytest.raises(BadInput) as refused:
        read(text)
    assert refused.value.code == code
    assert refused.value.message.isprintable()
    assert refused.value.message.startswith("c.yaml: ")
    return refused.value.message.removeprefix("c.yaml: ")


def refused_setting(line: str) -> str:
    message = refusal(f"orchestrator:\n  coordination:\n    {line}\n")
    assert message.startswith("line 3: orchestrator.coordination.")
    return message.removeprefix("line 3: orchestrator.coordination.")


@pytest.mark.requirement("R156", "R157", "R158", "R159")
def test_the_basic_example_is_accepted_as_written() -> None:
    found = coordination(BASIC)
    assert found.enable_subagents
    assert (found.subagent_default_timeout, found.subagent_min_timeout) == (300, 60)
    assert found.subagent_max_timeout == 600
    assert found.subagent_max_concurrent == 3
    rounds = found.subagent_round_timeouts
    assert rounds.initial_round_timeout_seconds == 600
    assert rounds.subsequent_round_timeout_seconds == 300
    assert rounds.round_timeout_grace_seconds == 120


@pytest.mark.requirement("R162")
def test_the_full_example_is_accepted_as_written() -> None:
    found = read(FULL)
    agent = found.agents[0]
    assert agent.id == "orchestrator_agent"
    assert (agent.backend.type, agent.backend.model) == ("openai", "gpt-4o")
    assert agent.backend.cwd == "workspace"
    assert agent.backend.enable_mcp_command_line
    assert agent.system_message is not None
    assert agent.system_message.endswith("parallelize the work.\n")
    assert found.orchestrator.coordination.enable_agent_task_planning
    assert (found.ui.display_type, found.ui.logging_enabled) == ("rich_terminal", True)


def test_the_custom_team_is_accepted_as_written() -> None:
    found = coordination(CUSTOM).subagent_orchestrator
    assert found.enabled
    assert not found.parse_at_references
    assert [member.backend.model for member in found.agents] == [
        "gpt-5-mini",
        "gemini-3-flash-preview",
    ]


def test_the_inherited_backend_is_accepted_as_written() -> None:
    assert coordination(INHERIT).subagent_orchestrator.inherit_spawning_agent_backend


def test_the_shared_teams_are_accepted_as_written() -> None:
    listed = coordination(SHARED).subagent_orchestrator.shared_child_team_types
    assert listed == ["round_evaluator", "builder"]
    assert coordination(SHARED_BY_ALL).subagent_orchestrator.shared_child_team_types == ["*"]


def test_subagent_types_are_a_list_or_nothing() -> None:
    assert coordination(TYPES).subagent_types == ["evaluator", "explorer", "researcher", "novelty"]
    assert setting("subagent_types: []").subagent_types == []
    assert setting("subagent_types: null").subagent_types is None
    assert coordination("").subagent_types is None


def test_background_subagents_are_enabled_by_default() -> None:
    assert coordination(BACKGROUND).background_subagents.enabled
    assert coordination("").background_subagents.enabled
    assert not setting("background_subagents: {enabled: false}").background_subagents.enabled


@pytest.mark.requirement("R151", "R262")
def test_the_runtime_is_isolated_by_default() -> None:
    found = coordination(RUNTIME)
    assert found.subagent_runtime_mode == "isolated"
    assert found.subagent_runtime_fallback_mode is None
    assert found.subagent_host_launch_prefix == []
    uncommented = coordination(RUNTIME.replace("# subagent_", "subagent_"))
    assert uncommented.subagent_runtime_fallback_mode == "inherited"
    assert uncommented.subagent_host_launch_prefix == ["host-launch", "--exec"]


def test_a_shared_pool_and_agents_of_a_parent_may_both_be_set() -> None:
    member = "{id: own, backend: {type: local}}"
    found = read(f"agents: [{{id: p, backend: {{type: local}}, subagent_agents: [{member}]}}]")
    assert found.agents[0].subagent_agents[0].id == "own"


def test_our_own_settings_are_accepted() -> None:
    found = coordination("""\
orchestrator:
  coordination:
    subagent_min_timeout: 0.1
    subagent_admission: queue
    subagent_cancel_grace_seconds: [0.5, 2]
    subagent_grace_turn_seconds: 20
    subagent_budget: {tokens: 1000, usd: 0.25, turns: 4}
    subagent_network: models
    subagent_workspaces: whole
    subagent_limits: {memory_mb: 512, processes: 64, file_mb: 10, output_mb: 0.5}
    subagent_context_roots: [/srv/data]
""")
    assert found.subagent_min_timeout == 0.1
    assert found.subagent_admission == "queue"
    assert found.subagent_cancel_grace_seconds == (0.5, 2)
    assert found.subagent_budget.usd == 0.25
    assert found.subagent_workspaces == "whole"
    assert found.subagent_limits.output_mb == 0.5
    assert found.subagent_context_roots == ["/srv/data"]


@pytest.mark.parametrize(
    ("written", "means"),
    [("off", "off"), ("false", "off"), ("on", "on"), ("true", "on"), ("models", "models")],
)
def test_the_network_may_be_a_word_or_a_truth_value(written: str, means: str) -> None:
    assert setting(f"subagent_network: {written}").subagent_network == means


@pytest.mark.parametrize("text", ["", "{}", "orchestrator:\n", "orchestrator:\n  coordination:\n"])
def test_omitted_and_empty_sections_have_defaults(text: str) -> None:
    assert read(text) == Config()


@pytest.mark.requirement("R162")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agent: []", "line 1: unknown key agent; did you mean agents?"),
        (
            "ui:\n  display_type: x\n  loging_enabled: true",
            "line 3: unknown key ui.loging_enabled; did you mean ui.logging_enabled?",
        ),
        (
            "orchestrator:\n  coordination:\n    subagent_max_concurent: 3",
            "line 3: unknown key orchestrator.coordination.subagent_max_concurent;"
            " did you mean orchestrator.coordination.subagent_max_concurrent?",
        ),
        (
            "orchestrator:\n  enable_subagents: true",
            "line 2: unknown key orchestrator.enable_subagents;"
            " did you mean orchestrator.coordination.enable_subagents?",
        ),
        (
            "agents:\n  - id: a\n    backend:\n      typ: openai",
            "line 4: unknown key agents[0].backend.typ; did you mean agents[0].backend.type?",
        ),
        ("zzz: 1", "line 1: unknown key zzz"),
        ('"\\e[2J": 1', "line 1: unknown key \\x1b[2J"),
    ],
)
def test_an_unknown_key_is_named_in_full_with_the_nearest_known_one(
    text: str, message: str
) -> None:
    assert refusal(text, "unknown_key") == message


def test_the_hint_of_an_unknown_key_lists_the_known_ones() -> None:
    with pytest.raises(BadInput) as refused:
        read("zzz: 1")
    assert refused.value.hint == "known here: agents, providers, orchestrator, timeout_settings, ui"


@pytest.mark.parametrize("value", ["0", "-1", "1e300", "31536001", "true", "'300'"])
def test_a_duration_must_be_a_usable_number(value: str) -> None:
    message = refused_setting(f"subagent_default_timeout: {value}")
    expected = "expected a number of seconds above 0, at most 31536000, found "
    assert message.startswith(f"subagent_default_timeout: {expected}")


@pytest.mark.parametrize("value", ["0", "-1", "2.0", "2.5", "true", "'3'", "null", "[]", "1e300"])
def test_a_count_must_be_a_whole_number(value: str) -> None:
    message = refused_setting(f"subagent_max_concurrent: {value}")
    assert message.startswith("subagent_max_concurrent: expected a whole number above 0, found ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("enable_subagents: yes", "enable_subagents: expected true or false, found the text 'yes'"),
        ("subagent_types: explorer", "subagent_types: expected a list, found the text 'explorer'"),
        (
            "subagent_network: maybe",
            "subagent_network: expected off, models or on, found the text 'maybe'",
        ),
        (
            "subagent_runtime_mode: docker",
            "subagent_runtime_mode: expected isolated or inherited, found the text 'docker'",
        ),
        (
            "subagent_runtime_fallback_mode: isolated",
            "subagent_runtime_fallback_mode: expected inherited, found the text 'isolated'",
        ),
        (
            "subagent_cancel_grace_seconds: [1]",
            "subagent_cancel_grace_seconds: expected a list of two durations in seconds,"
            " after SIGINT and after SIGTERM, found a list of 1",
        ),
        (
            "subagent_limits: {output_mb: -1}",
            "subagent_limits.output_mb: expected a number above 0, found -1",
        ),
        (
            "subagent_host_launch_prefix: ['']",
            "subagent_host_launch_prefix[0]: expected a text that is not empty, found the text ''",
        ),
        (
            "{subagent_min_timeout: 90, subagent_max_timeout: 80}",
            "subagent_min_timeout: 90 is more than subagent_max_timeout, 80; set both",
        ),
    ],
)
def test_an_invalid_value_is_refused_with_the_expected_one(line: str, message: str) -> None:
    assert refused_setting(line) == message


def test_an_unknown_backend_is_refused_with_the_known_ones() -> None:
    assert refusal("agents:\n  - id: a\n    backend: {type: opnai}") == (
        "line 3: agents[0].backend.type: expected openai, anthropic, claude, gemini,"
        " chatcompletion, local, command, claude_code, codex, gemini_cli, opencode, goose, copilot"
        " or acp, found the text 'opnai'"
    )


@pytest.mark.parametrize(
    "line",
    [
        "{type: openai, model: m, api_key_env: OPENAI_API_KEY}",
        "{type: anthropic}",
        "{type: claude}",
        "{type: gemini}",
        "{type: chatcompletion, base_url: 'http://127.0.0.1:8080/v1'}",
        "{type: local}",
        "{type: command, argv: [python3, agent.py]}",
    ],
)
def test_every_backend_type_is_accepted(line: str) -> None:
    assert backend(line).agents[0].backend.type in line


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("{type: command}", "argv"),
        ("{type: openai, argv: [x]}", "argv"),
        ("{type: chatcompletion}", "base_url"),
        ("{type: local, base_url: 'ftp://x'}", "base_url"),
        ("{model: m}", "type"),
    ],
)
def test_a_backend_that_cannot_work_is_refused_by_key(line: str, key: str) -> None:
    with pytest.raises(BadInput, match=rf"line 3: agents\[0\]\.backend\.{key}: "):
        backend(line)


@pytest.mark.parametrize(
    "line",
    [
        "{type: openai, api_key: sk-verysecret}",
        "{type: openai, api_key_env: sk-verysecret}",
        "{type: openai, base_url: 'https://me:sk-verysecret@host/v1'}",
    ],
)
def test_a_key_in_the_wrong_place_is_not_repeated(line: str) -> None:
    with pytest.raises(BadInput) as refused:
        backend(line)
    assert "verysecret" not in refused.value.message + refused.value.hint


@pytest.mark.parametrize("name", ["../up", "", "a b", "-x", "x" * 65, "é"])
def test_a_member_is_named_by_an_id(name: str) -> None:
    with pytest.raises(BadInput, match=r"agents\[0\]\.id: expected an id"):
        parse_config({"agents": [{"id": name, "backend": {"type": "local"}}]}, where="x")


def test_member_ids_that_differ_only_in_case_are_refused() -> None:
    members = [{"id": name, "backend": {"type": "local"}} for name in ("one", "ONE")]
    with pytest.raises(BadInput, match="agents: two members are named 'ONE'"):
        parse_config({"agents": members}, where="x")


@pytest.mark.parametrize("document", [[], "text", 1, True])
def test_a_document_that_is_not_a_mapping_is_refused(document: object) -> None:
    with pytest.raises(BadInput, match="the document: expected a mapping"):
        parse_config(document, where="x")


@pytest.mark.requirement("R159")
def test_a_new_task_keeps_its_limit_in_one_place() -> None:
    document: Any = load_yaml(BASIC, where="x")
    section = build_task_section(document | {"ui": {"display_type": "simple"}})
    assert list(section) == ["maxConcurrentAgents", "timeoutSeconds", "orchestrator", "ui"]
    assert section["maxConcurrentAgents"] == 3
    assert section["timeoutSeconds"] == 3600
    assert "subagent_max_concurrent" not in str(section)
    assert "subagent_max_concurrent" in str(document)  # the caller's is left alone


def test_limits_given_for_a_task_win_over_its_configuration() -> None:
    document = {"orchestrator": {"coordination": {"subagent_max_concurrent": 7}}}
    assert build_task_section(document)["maxConcurrentAgents"] == 7
    section = build_task_section(document, max_concurrent=2, timeout_seconds=0.5)
    assert (section["maxConcurrentAgents"], section["timeoutSeconds"]) == (2, 0.5)


@pytest.mark.parametrize("limits", [{"max_concurrent": 0}, {"timeout_seconds": float("nan")}])
def test_limits_of_a_task_are_checked(limits: Any) -> None:
    with pytest.raises(BadInput, match=r"task: config\.(maxConcurrentAgents|timeoutSeconds): "):
        build_task_section({}, **limits)


@pytest.mark.requirement("R40")
def test_a_task_section_becomes_the_task_config() -> None:
    assert parse_task_config(None, where="x") == TaskConfig()
    found = parse_task_config(
        {
            "maxConcurrentAgents": 2,
            "timeoutSeconds": 5,
            "orchestrator": {
                "coordination": {
                    "subagent_default_timeout": 1.5,
                    "subagent_min_timeout": 0.1,
                    "subagent_max_timeout": 9,
                    "subagent_admission": "queue",
                    "subagent_cancel_grace_seconds": [0.25, 1],
                    "subagent_limits": {"output_mb": 0.5},
                    "subagent_runtime_mode": "inherited",
                    "subagent_runtime_fallback_mode": "inherited",
                    "subagent_host_launch_prefix": ["ssh", "host"],
                    "background_subagents": {"enabled": False},
                    "subagent_context_roots": ["/srv"],
                }
            },
        },
        where="x",
    )
    assert found == TaskConfig(
        default_timeout_ms=1500,
        min_timeout_ms=100,
        max_timeout_ms=9000,
        max_concurrent=2,
        wait_timeout_seconds=5,
        admission="queue",
        graces_ms=(250, 1000),
        output_limit_bytes=512 * 1024,
        runtime_mode="inherited",
        runtime_fallback="inherited",
        launch_prefix=("ssh", "host"),
        background_enabled=False,
        context_roots=("/srv",),
    )


def test_two_limits_that_disagree_are_refused() -> None:
    section = {
        "maxConcurrentAgents": 2,
        "orchestrator": {"coordination": {"subagent_max_concurrent": 5}},
    }
    with pytest.raises(BadInput, match=r"config\.maxConcurrentAgents: 2 here, 5 in"):
        parse_task_config(section, where="x")
