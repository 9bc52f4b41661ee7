"""Prompt texts for parents and subagents."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

from retinue.core.result import SUCCESSES, Status
from retinue.core.subagent_type import NOVELTY, SubagentType

BRIEF_TEMPLATE = """\
Objective:
Scope and paths:
Environment/setup:
Exact commands or checks to run:
Success criteria / pass-fail rubric:
Output format required:
Constraints (time, tools, sources):
"""

_DELEGATION = """\
## Delegating to subagents

Delegate pieces that are independent of each other, large, or worth keeping apart from your own
context. Do it yourself when the piece is small, when it needs the output of another piece that
is not finished, or when it has to be coordinated with others while it runs.

- All tasks of one call start at the same time. None may depend on another's output.
- A subagent knows its brief and its context, and nothing of your conversation.
- Give context_paths in every task: [] for none, ["./"] for your workspace, or single paths. They
  can be read, not written.
- Choose ids that say what the piece is: they name its folder and appear in every log.
- What a subagent made stays in its workspace until you take it: the result names the path. Copy
  what you need from there, with copy_files_batch where you have it.
"""

_BRIEFING = f"""\
## Writing a brief

Be concrete. Fill in what applies, and leave out the rest:

{BRIEF_TEMPLATE}
For checks and evaluations give the commands themselves: setup, run, verification.
"""

_GUIDANCE: dict[Status, tuple[str, tuple[str, ...]]] = {
    Status.COMPLETED: ("Use the answer.", ()),
    Status.COMPLETED_BUT_TIMEOUT: (
        "The work was finished when time ran out. Use the answer as if it had completed.",
        (),
    ),
    Status.PARTIAL: (
        "There is work, but no final answer.",
        (
            "Look at the files in its workspace.",
            "See completion_percentage for how far it came.",
            "Use what is usable, or retry with a simpler task.",
        ),
    ),
    Status.TIMEOUT: (
        "Nothing could be recovered.",
        (
            "Look into its workspace anyway; there may be files.",
            "Consider whether the task was too large.",
            "Split it into smaller ones, or allow more time.",
        ),
    ),
    Status.ERROR: (
        "Something went wrong.",
        (
            "Read error for what it was.",
            "Decide whether it can be fixed: a missing file, a permission, a wrong command.",
            "Fix it and retry with another id. The same task unchanged will likely fail again.",
        ),
    ),
    Status.CANCELLED: (
        "It was cancelled.",
        (
            "Use the answer, if there is one, as an unfinished draft.",
            "Do not start it again unless the reason has gone.",
        ),
    ),
    Status.BLOCKED: (
        "It asked questions and waits for answers.",
        (
            "Read questions.",
            "Answer them with continue_subagent; it goes on where it stopped.",
        ),
    ),
}

_MIXED = """\
Results are often mixed; success of the whole call is then false. Use every answer that is valid,
look into the workspaces of the others, and finish what is missing yourself or retry only that,
with another id and more time or a smaller task.
"""

_BACKGROUND = """\
## Background

With background: true the call returns at once, and each result comes with a later tool answer.

Use it for long research, for work that nothing else waits for, and to explore several directions
at the same time. Do not use it when you need the result before you can go on, when later work
depends on it, or when the piece decides how long the whole takes.

Delegate evaluation this way: spawn it with background: true and refine: false, and go on
building. It serves, runs, measures and reports what it saw. Trust its observations, but judge
their meaning yourself, because you know the whole task.
"""

_SEEN = """\
Your parent sees your answer and your workspace, and nothing else of what you did.
"""

_FILES = """\
End your answer with the files you created or changed, one on each line, as paths relative to your
workspace, with what each holds. Write "Files: none" if there are none. Your parent sees your
answer and your workspace, and nothing else of what you did.
"""

_NOVELTY_HINT = (
    "The evaluation found no transformative change: the last round was incremental. Consider"
    " spawning a subagent of type novelty in the background, with the current work, what has been"
    " tried and these findings; it returns two or three fundamentally different directions."
)


def format_parent_briefing(types: Sequence[SubagentType], *, background: bool = True) -> str:
    """Return the delegation section of a parent's prompt."""
    blocks = [_DELEGATION, format_types(types), _BRIEFING, format_all_statuses()]
    if background:
        blocks.append(_BACKGROUND)
    return "\n".join(block for block in blocks if block)


def format_types(types: Sequence[SubagentType]) -> str:
    """List the active types, when to use each, and what its brief should say; empty if none."""
    if not types:
        return ""
    lines = ["## Subagent types", "", "Name one as subagent_type, or none for a general subagent."]
    for each in types:
        lines += ["", f"- {each.name}: {_fold_to_line(each.description)}"]
        if each.expected_input:
            lines.append("  Its brief should say:")
            lines += [f"  - {_fold_to_line(item)}" for item in each.expected_input]
    return "\n".join([*lines, ""])


def format_status_guidance(status: Status) -> str:
    """Return the advice for a parent that receives a result of this status."""
    sentence, steps = _GUIDANCE[status]
    numbered = [f"  {number}. {step}" for number, step in enumerate(steps, 1)]
    label = f"{status} (success: {str(status in SUCCESSES).lower()})"
    return "\n".join([f"- {label}: {sentence}", *numbered])


def format_all_statuses() -> str:
    """Return the advice for every status and for mixed results."""
    guidance = "\n".join(format_status_guidance(status) for status in Status)
    return f"## Using results\n\n{guidance}\n\n{_MIXED}"


def format_child_instructions(profile: SubagentType | None, *, lists_files: bool = True) -> str:
    """Return the instructions of the type, followed by how to hand over files.

    Args:
        lists_files: false if a list of files has no place in the answer, which is JSON, or if
            the subagent cannot change any.
    """
    files = _FILES if lists_files else _SEEN
    if profile is None:
        return files
    blocks = [f"{profile.instructions.strip()}\n"]
    if profile.skills:
        blocks.append(f"Use these skills where they are available: {', '.join(profile.skills)}.\n")
    return "\n".join([*blocks, files])


def format_success_criteria(criteria: Sequence[str]) -> str:
    """Return the success criteria as a list; empty if there are none."""
    listed = "".join(f"\n- {each}" for each in criteria)
    return f"Your work is done when:{listed}" if criteria else ""


def format_answer(questions: Sequence[str], answer: str) -> str:
    """Return the section that is appended to a brief after its questions were answered."""
    # One line for each question, so that its text cannot start a section of its own.
    asked = "".join(f"## Question: {' '.join(each.split())}\n" for each in questions)
    return f"\n\n{asked}## Answer\n\n{answer}\n"


_TRANSFORMATIVE = re.compile(r"^\W*transformative changes\W+(\d+)", re.IGNORECASE | re.MULTILINE)


def find_plateau_hint(report: str, active: Collection[str]) -> str | None:
    """Suggest the novelty type if an evaluation report found no transformative change.

    Returns None if the report gives no count, or if the type is not active.
    """
    # Six digits are enough to tell zero from more, and bound what int() has to parse.
    said = [int(number[:6]) for number in _TRANSFORMATIVE.findall(report)]
    return _NOVELTY_HINT if said and not any(said) and NOVELTY in active else None


# Heuristics on the form of a brief. They cannot judge its meaning, so they only warn.

_COMMAND = re.compile(
    r"`[^`\n.]+`|`[^`\n]* [^`\n]*`"  # in backticks, and not just a file name
    r"|^\s*(?:\$|>)\s+\S"  # after a shell prompt
    r"|(?<!\S)--[a-z][\w-]*"  # a command-line option
    r"|\b(?:go|make) (?:all|build|check|clean|install|lint|run|test|vet)\b"
    r"|\b(?:bash|cargo|cmake|curl|docker|gradle|mvn|npm|npx|pip|playwright|pnpm|pytest|python3?"
    r"|ruff|tox|uv|yarn)[ \t]+\S",
    re.MULTILINE,
)
_PATH = re.compile(r"(?<![\w:/])[\w.~-]*/[\w./*-]*|\b[\w-]+\.[a-z][a-z0-9]{0,4}\b|`[^`\n]+`")
_FEWEST_WORDS = 12

# A word in the type's expected input, the test for it in a brief, the warning if the test fails.
_CHECKS: tuple[tuple[str, Callable[[str], object], str], ...] = (
    (
        "command",
        _COMMAND.search,
        "it names no command; give setup, run and verification as commands",
    ),
    ("path", _PATH.search, "it names no path; say where looking should begin"),
)


def check_brief(profile: SubagentType, brief: str, context_paths: Sequence[str] = ()) -> str:
    """Return a warning about what the brief lacks for its type; empty if nothing is found."""
    if not profile.expected_input:
        return ""
    wanted = " ".join(profile.expected_input).lower()
    found = [
        complaint
        for word, shows, complaint in _CHECKS
        if re.search(rf"\b{word}s?\b", wanted) and not shows(brief)
        if not (word == "path" and context_paths)
    ]
    if len(brief.split()) < _FEWEST_WORDS:
        found.append("it is very short")
    if not found:
        return ""
    expects = "; ".join(_fold_to_line(item) for item in profile.expected_input)
    return f"the brief may not be enough for type {profile.name}: {', and '.join(found)}." + (
        f" Expected: {expects}."
    )


def _fold_to_line(text: str) -> str:
    return " ".join(text.split())
