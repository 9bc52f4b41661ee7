"""SUBAGENT.md: invalid files are refused by file, line and key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import BadInput
from retinue.core.subagent_type import SubagentType
from retinue.formats.profile_document import MAX_BYTES, format_profile, parse_profile

GOOD = """\
---
name: reasoner
description: Thinks before it answers.
skills: [logic, proof]
expected_input:
  - The claim
  - What is already known
---

# Role

Reason.
"""


def refusal(text: str | bytes, code: str = "bad_type") -> str:
    with pytest.raises(BadInput) as refused:
        parse_profile(text if isinstance(text, bytes) else text.encode(), where="t/SUBAGENT.md")
    assert refused.value.code == code
    assert refused.value.message.isprintable()
    assert refused.value.message.startswith("t/SUBAGENT.md: ")
    return refused.value.message.removeprefix("t/SUBAGENT.md: ")


def with_front(*lines: str, body: str = "Reason.") -> str:
    return "\n".join(["---", *lines, "---", body])


def test_every_part_of_a_profile_is_read() -> None:
    assert parse_profile(GOOD.encode(), where="w") == SubagentType(
        name="reasoner",
        description="Thinks before it answers.",
        instructions="# Role\n\nReason.",
        skills=("logic", "proof"),
        expected_input=("The claim", "What is already known"),
        source="w",
    )


@pytest.mark.parametrize("lines", [[], ["skills:", "expected_input:"], ["skills: []"]])
def test_skills_and_expected_input_may_be_left_out(lines: list[str]) -> None:
    found = parse_profile(
        with_front("name: r", "description: d", *lines).encode(), where="w", folder="r"
    )
    assert (found.skills, found.expected_input) == ((), ())


@pytest.mark.requirement("R201")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tools: [Read]", "line 4: unknown key tools"),
        ("skill: [x]", "line 4: unknown key skill; did you mean skills?"),
        ("Name: other", "line 4: unknown key Name; did you mean name?"),
        ("model: opus", "line 4: unknown key model"),
    ],
)
def test_an_unknown_key_is_refused_with_path_line_and_key(line: str, message: str) -> None:
    assert refusal(with_front("name: r", "description: d", line), "unknown_key") == message


@pytest.mark.requirement("R201")
@pytest.mark.parametrize(
    ("lines", "start"),
    [
        (["description: d"], "line 2: name: is missing"),
        (["name: r"], "line 2: description: is missing"),
        (["name: a b", "description: d"], "line 2: name: expected an id"),
        (["name: _x", "description: d"], "line 2: name: expected an id"),
        (["name: r", "description: '  '"], "line 3: description: expected a text"),
        (["name: r", f"description: {'d' * 4001}"], "line 3: description: expected a text"),
        (["name: r", "description: d", "skills: logic"], "line 4: skills: expected a list"),
        (["name: r", "description: d", "skills: [1]"], "line 4: skills[0]: expected a text"),
        (["name: r", "description: d", "skills: ['']"], "line 4: skills[0]: expected a text"),
        (["- name"], "line 2: the document: expected a mapping"),
        (["name: r", "name: r"], "line 3: key 'name' appears twice"),
        (["name: &a r"], "line 2: anchor &a is not accepted"),
        (["name: [r"], "line "),
        ([], "name: is missing"),
    ],
)
def test_invalid_front_matter_is_refused_by_key(lines: list[str], start: str) -> None:
    assert refusal(with_front(*lines)).startswith(start)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected ---, the start of the front matter"),
        ("# Role\n", "line 1: expected ---, the start of the front matter"),
        ("\n---\nname: r\n---\n", "line 1: expected ---, the start of the front matter"),
        ("---\nname: r\n", "line 1: the front matter has no end"),
        (with_front("name: r", "description: d", body=" \n\t\n"), "there are no instructions"),
        (with_front("name: r", "description: d", body="a\n\x1b[2J"), "line 6: character U+001B"),
        (b"---\nname: \xff\n---\n", "line 2: byte 0xff is not UTF-8"),
        (b"x" * (MAX_BYTES + 1), "larger than 64 KiB"),
    ],
)
def test_an_invalid_profile_is_refused(text: str | bytes, message: str) -> None:
    assert refusal(text).startswith(message)


def test_the_name_must_be_that_of_the_folder() -> None:
    with pytest.raises(BadInput, match="name: 'reasoner', but its folder is called 'thinker'"):
        parse_profile(GOOD.encode(), where="w", folder="thinker")


def test_a_byte_order_mark_and_foreign_line_ends_change_nothing() -> None:
    foreign = b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode()
    assert parse_profile(foreign, where="w") == parse_profile(GOOD.encode(), where="w")


def test_a_rule_in_the_body_belongs_to_the_body() -> None:
    text = with_front("name: r", "description: d", body="above\n---\nbelow")
    assert parse_profile(text.encode(), where="w").instructions == "above\n---\nbelow"


_LINE = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=60
).filter(lambda text: bool(text.strip()))


@given(_LINE, st.lists(_LINE, max_size=4), st.lists(_LINE, max_size=4), _LINE)
def test_a_written_type_is_read_back_equal(
    description: str, skills: list[str], wanted: list[str], body: str
) -> None:
    before = SubagentType(
        name="r",
        description=description.strip(),
        instructions=body.strip(),
        skills=tuple(each.strip() for each in skills),
        expected_input=tuple(each.strip() for each in wanted),
        source="w",
    )
    assert parse_profile(format_profile(before).encode(), where="w") == before


@given(st.integers(0, len(GOOD)), st.binary(max_size=40), st.integers(0, 40))
def test_any_file_is_a_type_or_refused(at: int, inserted: bytes, skipped: int) -> None:
    data = GOOD.encode()
    try:
        parse_profile(data[:at] + inserted + data[at + skipped :], where="f")
    except BadInput as refused:
        assert refused.message.startswith("f: ")
        assert refused.code in ("bad_type", "unknown_key")
