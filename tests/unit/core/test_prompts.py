"""Prompt texts, compared word for word."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.core.prompts import (
    BRIEF_TEMPLATE,
    check_brief,
    find_plateau_hint,
    format_all_statuses,
    format_child_instructions,
    format_parent_briefing,
    format_status_guidance,
    format_types,
)
from retinue.core.result import SUCCESSES, Status
from retinue.core.subagent_type import SubagentType

GOLDEN = Path(__file__).parent / "golden"
REASONER = SubagentType(
    name="reasoner",
    description="Thinks\nbefore it answers.",
    instructions="Reason.\n",
    skills=("logic", "proof"),
    expected_input=("The claim", "What is\nknown"),
)
PLAIN = SubagentType(name="plain", description="Does one thing.", instructions="Do it.")
EVALUATOR = SubagentType(
    name="evaluator",
    description="d",
    instructions="i",
    expected_input=("The setup steps, as commands", "The exact commands to run"),
)
EXPLORER = SubagentType(
    name="explorer", description="d", instructions="i", expected_input=("The paths to begin with",)
)
LONG = "Please look at everything that matters here and then report what you have found out. "


def same(name: str, text: str) -> None:
    """The text is the one that was agreed on."""
    assert text == (GOLDEN / name).read_text(encoding="utf-8")


def test_parent_briefing_with_types_and_background() -> None:
    same("parent.txt", format_parent_briefing([REASONER, PLAIN]))


def test_parent_briefing_without_types_and_background() -> None:
    same("parent-plain.txt", format_parent_briefing([], background=False))


def test_child_instructions_with_a_type() -> None:
    same("child.txt", format_child_instructions(REASONER))


def test_only_the_given_types_are_in_a_prompt() -> None:
    assert "reasoner" not in format_parent_briefing([PLAIN])
    assert format_types([]) == ""


def test_the_template_for_briefs_is_in_every_parents_prompt() -> None:
    assert BRIEF_TEMPLATE.splitlines() == [
        "Objective:",
        "Scope and paths:",
        "Environment/setup:",
        "Exact commands or checks to run:",
        "Success criteria / pass-fail rubric:",
        "Output format required:",
        "Constraints (time, tools, sources):",
    ]
    assert BRIEF_TEMPLATE in format_parent_briefing([], background=False)


@pytest.mark.requirement("R228")
@pytest.mark.parametrize("status", list(Status))
def test_there_is_guidance_for_each_status_that_says_whether_it_is_a_success(
    status: Status,
) -> None:
    said = format_status_guidance(status)
    assert said.startswith(f"- {status} (success: {'true' if status in SUCCESSES else 'false'}): ")
    assert said in format_all_statuses()
    assert ("  1. " in said) == (status not in SUCCESSES)


@pytest.mark.requirement("R228")
@pytest.mark.parametrize(
    ("status", "words"),
    [
        (Status.PARTIAL, ("workspace", "completion_percentage", "simpler task")),
        (Status.TIMEOUT, ("workspace", "too large", "smaller", "more time")),
        (Status.ERROR, ("error", "missing file", "permission", "retry")),
        (Status.BLOCKED, ("questions", "continue_subagent")),
    ],
)
def test_guidance_names_the_evidence_and_the_next_step(
    status: Status, words: tuple[str, ...]
) -> None:
    assert all(word in format_status_guidance(status) for word in words)


def test_mixed_results_are_used_inspected_and_finished() -> None:
    said = " ".join(format_all_statuses().split())
    assert "Use every answer that is valid, look into the workspaces of the others" in said
    assert "finish what is missing yourself or retry only that" in said


def test_every_prompt_asks_for_a_list_of_files_where_there_can_be_one() -> None:
    for profile in (None, PLAIN, REASONER):
        assert "End your answer with the files you created" in format_child_instructions(profile)
        without = format_child_instructions(profile, lists_files=False)
        assert "files you created" not in without and "Your parent sees your answer" in without


@pytest.mark.parametrize(
    ("changes", "active", "hinted"),
    [
        (0, ("explorer", "novelty"), True),
        (1, ("explorer", "novelty"), False),
        (0, ("explorer",), False),
        (0, (), False),
    ],
)
def test_novelty_is_suggested_where_nothing_changed_and_it_is_active(
    changes: int, active: tuple[str, ...], hinted: bool
) -> None:
    hint = find_plateau_hint(f"All in all.\n- **Transformative changes**: {changes}", active)
    assert (hint is not None) == hinted
    assert hint is None or "novelty" in hint


@pytest.mark.parametrize(
    "brief",
    [
        LONG + "Set up with `npm ci`.",
        LONG + "\n$ ./check.sh",
        LONG + "Run pytest -q and see.",
        LONG + "Run make test",
        LONG + "Pass --strict to it.",
        LONG + "Start `serve.py --port 0` first.",
    ],
)
def test_a_brief_with_commands_is_enough_for_an_evaluator(brief: str) -> None:
    assert not check_brief(EVALUATOR, brief)


@pytest.mark.parametrize(
    "brief",
    [
        LONG,
        LONG + "Make sure that `index.html` works.",
        LONG + "Run Playwright accessibility checks.",
    ],
)
def test_an_evaluators_brief_without_commands_is_warned_about(brief: str) -> None:
    warning = check_brief(EVALUATOR, brief)
    assert warning == (
        "the brief may not be enough for type evaluator: it names no command; give setup, run"
        " and verification as commands. Expected: The setup steps, as commands; The exact"
        " commands to run."
    )


def test_an_explorers_brief_needs_a_path_in_its_text_or_its_context() -> None:
    assert "names no path" in check_brief(EXPLORER, LONG)
    assert not check_brief(EXPLORER, LONG, ["./"])
    assert not check_brief(EXPLORER, LONG + "Begin at src/login.")
    assert not check_brief(EXPLORER, LONG + "Begin at login.py")


def test_a_very_short_brief_is_warned_about_only_where_something_is_expected() -> None:
    assert "it is very short" in check_brief(REASONER, "Prove it.")
    assert not check_brief(PLAIN, "Prove it.")
