"""What `retinue agent list` prints."""

from __future__ import annotations

from typing import Any

from retinue.cli.agent_commands import format_agents


def row(agent: str, **more: Any) -> dict[str, Any]:
    facts = {"agent": agent, "version": "1.2", "tested": True, "provider": None, "tools": "list"}
    return facts | {"login": "gateway"} | more


def test_every_status_is_a_named_column_in_plain_words() -> None:
    table = format_agents(
        [
            row("claude", provider="anthropic"),
            row("codex", tools="shell", problem="KEY is not set: set it", problem_code="no_key"),
            row("goose", tools="none", problem="KEY is not set: set it", problem_code="no_key"),
            row("gemini", version=None, problem="p", problem_code="agent_not_installed"),
            row("ours", tested=False, problem="q", problem_code="wire_mismatch"),
            row("mine", login="own"),
            row("his", login="own", problem="r", problem_code="no_login"),
        ]
    )
    assert table.split("\n") == [
        "AGENT   STATUS         VERSION           PROVIDER   TOOL LIMITS",
        "claude  ready          1.2               anthropic  any list",
        "codex   no key         1.2               -          all or none",
        "goose   no key         1.2               -          not possible",
        "gemini  not installed  -                 -          any list",
        "ours    not usable     1.2 (not tested)  -          any list",
        "mine    ready          1.2               own login  any list",
        "his     not logged in  1.2               own login  any list",
        "",
        "codex, goose: KEY is not set: set it",
        "gemini: p",
        "ours: q",
        "his: r",
    ]


def test_agents_that_can_all_be_used_are_a_table_alone() -> None:
    assert len(format_agents([row("claude", provider="anthropic")]).split("\n")) == 2
