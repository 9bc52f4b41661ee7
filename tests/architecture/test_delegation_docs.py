"""What the documents say about types and delegating is what the code says to models."""

from __future__ import annotations

import re

import pytest

from architecture.source import TOP
from retinue.core.prompts import BRIEF_TEMPLATE, format_parent_briefing
from retinue.formats.profile_document import parse_profile
from retinue.subagent_types.type_files import load_built_in

HOW_TO = TOP / "docs" / "how-to"
DELEGATING = (HOW_TO / "delegating.md").read_text(encoding="utf-8")
TYPES = (HOW_TO / "types.md").read_text(encoding="utf-8")


@pytest.mark.requirement("R254")
def test_when_and_when_not_to_use_background_work_is_documented_and_told() -> None:
    section = DELEGATING.partition("\n## Background\n")[2].partition("\n## ")[0]
    use, _, wait = section.partition("Wait for the result when")
    assert all(word in use for word in ("takes long", "nothing else waits", "several directions"))
    assert all(word in wait for word in ("before the next step", "depends on it", "how long"))
    told = "Do not use it when you need the result before you can go on"
    assert told in format_parent_briefing([]) and told not in format_parent_briefing(
        [], background=False
    )


def test_the_documented_template_is_the_one_that_parents_are_given() -> None:
    assert f"```text\n{BRIEF_TEMPLATE}```" in DELEGATING


def test_every_built_in_type_is_documented() -> None:
    assert re.findall(r"^\| (\w+) \|", TYPES, re.MULTILINE)[1:5] == [
        t.name for t in load_built_in()
    ]


def test_the_documented_profile_is_one() -> None:
    (example,) = re.findall(r"```markdown\n(.*?)```", TYPES, re.DOTALL)
    assert parse_profile(example.encode(), where="docs", folder="reasoner").expected_input
