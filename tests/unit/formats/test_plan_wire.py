"""Plan files."""

from __future__ import annotations

import pytest

from retinue.core.errors import BadInput
from retinue.formats.plan_document import parse_plan, plan_from_json, plan_to_json

WHOLE = """
goal: Build the site
base: {repository: ., ref: main}
on_failure: continue
steps:
  - id: bio
    title: Biography
    description: Write bio.md
    success_criteria: [bio.md exists]
    owns: ["bio.md", "img/**"]
    depends_on: []
    command: [python3, make_bio.py]
    verify: [test, -s, bio.md]
    integration: merge
    timeout_seconds: 60
    retries: 0
  - title: The Index
    owns: [index.md]
    depends_on: [bio]
    tools: [read_file]
    command: ["true"]
    allow: [links]
"""


def refusal(text: str) -> BadInput:
    with pytest.raises(BadInput) as refused:
        parse_plan(text, where="plan.yaml")
    return refused.value


@pytest.mark.requirement("R82", "R89", "R90", "R91")
def test_a_plan_is_read_and_stored_without_loss() -> None:
    plan = parse_plan(WHOLE, where="plan.yaml")
    bio, index = plan.steps
    assert (plan.goal, plan.ref, plan.on_failure) == ("Build the site", "main", "continue")
    assert (bio.id, bio.verify, bio.retries, bio.timeout_seconds) == (
        "bio",
        ("test", "-s", "bio.md"),
        0,
        60,
    )
    assert (index.id, index.integration, index.retries) == ("the-index", "merge", None)
    assert plan_from_json(plan_to_json(plan)) == plan


def test_the_default_report_path_is_not_stored() -> None:
    assert "report_path_pattern" not in plan_to_json(parse_plan(WHOLE, where="plan.yaml"))
    said = parse_plan(f"{WHOLE}report_path_pattern: notes/<idx>.md\n", where="plan.yaml")
    assert plan_from_json(plan_to_json(said)) == said


@pytest.mark.requirement("R92")
@pytest.mark.parametrize(("said", "meant"), [("", None), (", tools: []", ())])
def test_an_empty_tool_list_differs_from_no_tool_list(
    said: str, meant: tuple[str, ...] | None
) -> None:
    plan = parse_plan(f"goal: x\nsteps:\n  - {{id: a, description: b{said}}}\n", where="p")
    assert plan.steps[0].tools == meant
    assert plan_from_json(plan_to_json(plan)) == plan


def test_without_a_repository_nothing_is_merged() -> None:
    plan = parse_plan("goal: x\nsteps:\n  - {id: a, command: [b]}\n", where="p")
    assert plan.steps[0].integration == "none"


def test_an_unknown_key_is_named_with_its_line_and_the_nearest() -> None:
    said = refusal(WHOLE.replace("owns: [index.md]", "own: [index.md]"))
    assert said.message == (
        "plan.yaml: line 18: unknown key steps[1].own; did you mean steps[1].owns?"
    )


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("retries: 0", "retries: 11", "a whole number from 0 to 10"),
        ("retries: 0", "retries: true", "a whole number from 0 to 10"),
        ("timeout_seconds: 60", "timeout_seconds: 0", "a number of seconds above 0"),
        ("on_failure: continue", "on_failure: panic", "stop or continue"),
        ("integration: merge", "integration: paste", "merge, copy or none"),
        ("goal: Build the site", "goal: ''", "a text that is not empty"),
        ("depends_on: [bio]", "depends_on: [boi]", "'boi', which is no step"),
    ],
)
def test_a_wrong_value_is_refused_with_the_expected_one(
    before: str, after: str, words: str
) -> None:
    assert words in refusal(WHOLE.replace(before, after)).message


def test_overlapping_owners_are_refused_with_the_file_s_name() -> None:
    text = WHOLE.replace("owns: [index.md]\n    depends_on: [bio]", "owns: ['*.md']")
    said = refusal(text).message
    assert said.startswith("plan.yaml: steps bio and the-index could work at the same time")


@pytest.mark.parametrize("text", ["", "[]", "goal: x", "goal: x\nsteps: []", "goal: x\nsteps: 1"])
def test_an_invalid_plan_is_refused(text: str) -> None:
    assert refusal(text).exit_code == 2


def test_yaml_tags_are_refused() -> None:
    assert refusal("goal: !!python/object/apply:os.system [touch X]\nsteps: []\n").exit_code == 2
