"""The boundary of a child is never weaker than requested without a warning."""

from __future__ import annotations

import pytest

from retinue.core.errors import IsolationUnavailable
from retinue.core.task_config import INHERITED, ISOLATED, Boundary, resolve_mode
from retinue.formats.config_document import parse_task_config

WHY = "no namespaces for this user"


@pytest.mark.requirement("R151", "R263")
def test_a_child_is_isolated_by_default() -> None:
    assert Boundary().mode == ISOLATED
    assert resolve_mode(Boundary().mode, None, None) == (ISOLATED, "")


@pytest.mark.requirement("R264")
@pytest.mark.parametrize("missing", [None, WHY])
def test_an_inherited_boundary_needs_no_isolation_and_no_warning(missing: str | None) -> None:
    assert resolve_mode(INHERITED, None, missing) == (INHERITED, "")


@pytest.mark.requirement("R265", "R269", "R273")
def test_fallback_to_inherited_needs_permission_and_gives_a_warning() -> None:
    assert resolve_mode(ISOLATED, INHERITED, WHY) == (INHERITED, f"not isolated: {WHY}")
    assert resolve_mode(ISOLATED, INHERITED, None) == (ISOLATED, "")


@pytest.mark.requirement("R268", "R273")
def test_missing_isolation_without_fallback_is_refused_with_both_options() -> None:
    with pytest.raises(IsolationUnavailable) as refused:
        resolve_mode(ISOLATED, None, WHY)
    assert WHY in refused.value.message
    assert "subagent_host_launch_prefix" in refused.value.hint
    assert "subagent_runtime_fallback_mode" in refused.value.hint
    assert refused.value.exit_code == 7


@pytest.mark.requirement("R266")
def test_codex_in_a_container_inherits_its_boundary() -> None:
    mode, warning = resolve_mode(ISOLATED, None, WHY, contained_codex=True)
    assert (mode, warning) == (INHERITED, f"not isolated: {WHY}")
    assert resolve_mode(ISOLATED, None, None, contained_codex=True) == (ISOLATED, "")


@pytest.mark.requirement("R266")
@pytest.mark.parametrize(
    ("argvs", "codex"),
    [
        ([["codex", "exec"]], True),
        ([["/usr/local/bin/codex"], ["codex"]], True),
        ([["codex"], ["claude"]], False),
        ([["codex-wrapper"]], False),
        ([["sh", "codex"]], False),
        ([], False),
    ],
    ids=["codex", "by its path", "among others", "by half its name", "as an argument", "nobody"],
)
def test_a_team_is_codex_if_every_agent_is(argvs: list[list[str]], codex: bool) -> None:
    agents = [
        {"id": f"agent-{number}", "backend": {"type": "command", "argv": argv}}
        for number, argv in enumerate(argvs)
    ]
    assert parse_task_config({"agents": agents}, where="task").codex is codex
