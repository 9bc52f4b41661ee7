"""Import of other tools' definitions; dropped keys are reported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import BadInput
from retinue.formats.import_types import Imported, import_profile
from retinue.formats.profile_document import format_profile, parse_profile

CLAUDE = """\
---
name: code-reviewer
description: Reviews code. Use after every change.
tools: Read, Grep, Glob
model: sonnet
permissionMode: plan
skills: style, security
hooks: {PreToolUse: [{matcher: Bash}]}
---

You review code.
"""
UNQUOTED = """\
---
name: tester
description: Use this when tests fail. Examples: <example>user: "why?"\\nassistant: look</example>
tools: Bash
---
You test.
"""
GEMINI = """\
---
name: investigator
description: Looks into code.
kind: local
tools:
  - read_file
temperature: 0.2
max_turns: 10
timeout_mins: 5
---
You investigate.
"""
OPENCODE = """\
---
description: Plans work.
mode: subagent
permission:
  edit: deny
---
You plan.
"""
CODEX = '''\
name = "docs_writer"
description = "Writes documents."
developer_instructions = """
You write.
"""
model = "gpt-5.5"
model_reasoning_effort = "high"
sandbox_mode = "read-only"

[mcp_servers.docs]
command = "docs"
'''


def taken(text: str, filename: str = "x.md") -> Imported:
    found = import_profile(text.encode(), where=f"dir/{filename}", filename=filename)
    parse_profile(format_profile(found.profile).encode(), where="again", folder=found.profile.name)
    return found


def refusal(text: str, filename: str = "x.md") -> str:
    with pytest.raises(BadInput) as refused:
        import_profile(text.encode(), where="f", filename=filename)
    assert refused.value.code == "bad_type"
    return refused.value.message


def test_claude_code_keeps_name_description_skills_and_body() -> None:
    found = taken(CLAUDE)
    assert found.profile.name == "code-reviewer"
    assert found.profile.description == "Reviews code. Use after every change."
    assert found.profile.skills == ("style", "security")
    assert found.profile.instructions == "You review code."
    assert found.dropped == ("tools", "model", "permissionMode", "hooks")
    assert found.notes == (
        "tools: tools are given at each spawn: --tool NAME",
        "model: models are chosen in the configuration, under agents",
    )


def test_invalid_front_matter_is_read_line_by_line_and_reported() -> None:
    found = taken(UNQUOTED)
    assert found.profile.description == (
        'Use this when tests fail. Examples: <example>user: "why?" assistant: look</example>'
    )
    assert found.dropped == ("tools",)
    assert found.notes[0].startswith("read line by line: dir/x.md: line 3: ")


def test_gemini_definitions_are_imported() -> None:
    found = taken(GEMINI)
    assert (found.profile.name, found.profile.instructions) == ("investigator", "You investigate.")
    assert found.dropped == ("kind", "tools", "temperature", "max_turns", "timeout_mins")


def test_opencode_types_are_named_after_their_file() -> None:
    found = taken(OPENCODE, "planner.md")
    assert (found.profile.name, found.profile.instructions) == ("planner", "You plan.")
    assert found.dropped == ("mode", "permission")


def test_a_prompt_in_the_front_matter_is_the_instructions_of_an_empty_body() -> None:
    found = taken("---\ndescription: d\nprompt: You plan.\n---\n", "planner.md")
    assert (found.profile.instructions, found.dropped) == ("You plan.", ())


def test_codex_definitions_are_toml() -> None:
    found = taken(CODEX, "docs.toml")
    assert found.profile.name == "docs_writer"
    assert found.profile.instructions == "You write."
    assert found.dropped == ("model", "model_reasoning_effort", "sandbox_mode", "mcp_servers")


def test_a_table_of_skills_is_dropped_and_reported() -> None:
    found = taken(f"{CODEX}\n[[skills.config]]\npath = 'x'\nenabled = true\n", "docs.toml")
    assert found.profile.skills == ()
    assert "skills: is a table, and was not carried over" in found.notes


def test_a_name_with_spaces_becomes_a_valid_id() -> None:
    found = taken("---\nname: Frontend Developer\ndescription: d\n---\nBuild.")
    assert found.profile.name == "frontend-developer"
    assert found.notes == ("name: 'Frontend Developer' became 'frontend-developer'",)


def test_a_long_description_is_cut_and_reported() -> None:
    found = taken(f"---\nname: r\ndescription: {'word ' * 1000}\n---\nBuild.")
    assert len(found.profile.description) == 4000
    assert found.notes == ("description: cut after 4000 characters",)


@pytest.mark.parametrize(
    ("text", "filename", "message"),
    [
        ("---\nname: r\n---\nb", "x.md", "f: description: is missing"),
        ("---\nname: r\ndescription: d\n---\n", "x.md", "f: there are no instructions in it"),
        ("---\nname: '!'\ndescription: d\n---\nb", "x.md", "f: name: '!' cannot be made"),
        ("---\n- a\n---\nb", "x.md", "f: the front matter is not a mapping"),
        ("---\nname: [\n---\nb", "x.md", "f: line "),
        ("You plan.", "x.md", "f: line 1: expected ---"),
        ("name = ", "x.toml", "f: not TOML: "),
        (f"name = {'9' * 5000}", "x.toml", "f: not TOML: "),
        (f"name = {'[' * 5000}", "x.toml", "f: not TOML: "),
        ("name = 'r'\ndescription = 'd'", "x.toml", "f: there are no instructions in it"),
        ("name = 'r'\ndeveloper_instructions = 3", "x.toml", "f: developer_instructions: expected"),
        (CLAUDE, "x.txt", "f: the file name must end in .md or .toml"),
        (CLAUDE, "md", "f: the file name must end in .md or .toml"),
    ],
)
def test_an_invalid_definition_is_refused(text: str, filename: str, message: str) -> None:
    assert refusal(text, filename).startswith(message)


@given(
    st.sampled_from([CLAUDE, UNQUOTED, GEMINI, CODEX]),
    st.sampled_from(["x.md", "x.toml"]),
    st.integers(0, 400),
    st.binary(max_size=40),
)
def test_any_file_is_imported_or_refused(
    text: str, filename: str, at: int, inserted: bytes
) -> None:
    data = text.encode()
    try:
        found = import_profile(data[:at] + inserted + data[at:], where="f", filename=filename)
    except BadInput as refused:
        assert refused.message.startswith("f: ")
        return
    written = format_profile(found.profile).encode()
    again = parse_profile(written, where="f", folder=found.profile.name)
    assert again == found.profile
