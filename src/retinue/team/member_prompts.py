"""Prompts for the members of a team."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from retinue.core.contract import FILES, Context, Contract, Outputs, list_context_places
from retinue.core.ids import MemberId
from retinue.core.prompts import format_success_criteria
from retinue.core.task_config import ISOLATED
from retinue.core.voting import Table

MOST_OF_AN_ANSWER = 20_000  # characters that others are shown
MOST_LISTED = 100  # context paths in a prompt

NUDGE = "Call one of your tools: new_answer with your answer, or vote for the best one there is."
GO_ON = "You were interrupted. Go on from where you were."
ANSWER_NOW = (
    "Your time is almost up. Call new_answer now, with the best answer you can give from what "
    "you have; say what is missing."
)
VOTE_NOW = "The time of this round is up. Vote now for the best answer there is."
PRESENT = (
    "Your answer was chosen. Present it: complete, on its own, without mention of the vote. "
    "Put your files in order first if they need it, and list every file you made. What you say "
    "without calling a tool is the final answer."
)
ANSWER_FORMAT = (
    "Your answer must be one JSON document that fits this JSON schema, and nothing else:\n"
)
LIST_FILES = "In your answer, list every file you made, by its path in the workspace. "
CHOSEN = "your answer was chosen, and nothing but its final words is wanted now"


def format_system_prompt(
    contract: Contract,
    own: str,
    *,
    several: bool,
    home: str,
    context: str,
    in_part: bool,
    own_program: bool = False,
) -> str:
    """Return a member's system prompt: its own, its type's instructions, then the rules.

    Args:
        in_part: the workspace is a sparse checkout of the owned paths and the top-level files.
        own_program: the member is a coding agent with tools and a loop of its own.
    """
    assert contract.team is not None
    parts = [
        own,
        contract.team.instructions,
        _format_agent_rules(contract, home) if own_program else _format_rules(contract, home),
        _format_context(contract.context, context),
    ]
    ending = _format_agent_ending(several) if own_program else _format_ending(several)
    parts += [_format_repository_notes(contract.outputs, in_part), ending]
    if contract.answer_schema:
        parts.append(ANSWER_FORMAT + contract.answer_schema)
    parts.append(format_success_criteria(contract.step.success_criteria))
    return "\n\n".join(part.strip() for part in parts if part.strip())


def _format_context(context: Context, folder: str) -> str:
    """List the context paths and where the member finds them."""
    lines = [
        f"- {_quote_path(path)}, also at {_quote_path(f'{folder}/{place}')}"
        for path, place in list_context_places(context)
    ]
    lines += [
        f"- {_quote_path(f'{folder}/{FILES}/{PurePosixPath(path).name}')}, "
        f"a copy of {_quote_path(path)}"
        for path in context.files
    ]
    if not lines:
        return "You were given no files to read."
    more = len(lines) - MOST_LISTED
    rest = [f"- and {more} more below {folder}"] if more > 0 else []
    return "\n".join(
        ["What you were given to read, and cannot change:", *lines[:MOST_LISTED], *rest]
    )


def _quote_path(path: str) -> str:
    # A path with a line break could otherwise add lines to the prompt.
    return path if path.isprintable() else ascii(path)


def _format_rules(contract: Contract, home: str) -> str:
    # An answer that has to be JSON has no place for it.
    files = "" if contract.answer_schema else LIST_FILES
    return (
        "You are a subagent: one piece of work was delegated to you. You cannot ask your parent "
        "while you work, unless you have the tool ask; do not guess at what only it can know.\n"
        f"Your workspace is {home}. Write nowhere else.\n"
        "Your tools are all you can do. What a tool refuses stays refused: find another way, or "
        "say in your answer what was not possible.\n"
        f"{files}Report what you saw, not what you hoped for."
    )


def _format_agent_rules(contract: Contract, home: str) -> str:
    asks = ""
    if contract.allows_tool("ask"):
        asks = "except by the tool ask of the MCP server retinue; "
    write = "You cannot change any file." if contract.is_read_only else "Write nowhere else."
    shut = contract.boundary.mode == ISOLATED and contract.boundary.network != "on"
    network = "You have no network. " if shut else ""
    return (
        "You are a subagent: one piece of work was delegated to you. You "
        f"cannot ask your parent while you work, {asks}do not guess at what only it can know.\n"
        f"Your workspace is {home}. {write}\n"
        f"{network}What is refused stays refused: find another way, or say in your answer what was "
        "not possible.\n"
        "Report what you saw, not what you hoped for."
    )


def _format_agent_ending(several: bool) -> str:
    if not several:
        return "Your last message is your answer: make it complete on its own."
    return (
        "You are one of several who work on the same brief, each in a workspace of its own. Your "
        "last message is your answer: make it complete on its own. Then you are shown the others' "
        "answers and vote for the best of all, by the name of its author."
    )


def _format_repository_notes(outputs: Outputs, in_part: bool) -> str:
    """Return the notes on a workspace that is a git clone; empty for other workspaces."""
    if not outputs.base:
        return ""
    text = "Your workspace holds the files of a git repository; edit them in place."
    if outputs.integration != "merge":
        return text
    text += " All that you leave changed there is merged when you are done, committed or not."
    if outputs.owns:
        text += (
            f" You may change only what matches {', '.join(outputs.owns)}: a single change "
            "elsewhere, and none of your work is taken."
        )
    if in_part:
        text += (
            " Only that and the files at the top are checked out: 'git show HEAD:PATH' shows "
            "another file, 'git sparse-checkout disable' brings them all."
        )
    return text + " Put nothing there that is not part of the result."


def _format_ending(several: bool) -> str:
    if not several:
        return "When you are done, call new_answer with your whole answer."
    return (
        "You are one of several who work on the same brief, each in a workspace of its own. "
        "When you are done, call new_answer with your whole answer. Then you are shown the "
        "others' answers: vote for the best of all, by the name of its author, or call "
        "new_answer again if you can clearly do better than all of them."
    )


def format_opening(brief: str, earlier: Sequence[str]) -> str:
    """Return the first message: the brief, or the part of it that is not in `earlier`.

    Args:
        earlier: the user messages of earlier attempts, in order. Each `continue` has appended its
            message to the brief, so the brief begins with several of them.
    """
    rest = brief.strip()
    for text in earlier:
        rest = _remove_beginning(rest, text.strip())
    return rest or GO_ON


def _remove_beginning(text: str, known: str) -> str:
    """Remove whole lines from the beginning of a text."""
    left = text.removeprefix(known)
    return text if left and not left.startswith("\n") else left.strip()


def format_answers(table: Table, reader: MemberId, snapshots: str) -> str:
    """Return the current answers as a message."""
    blocks = []
    for seat in table.seats:
        if seat.current is None:
            continue
        mine = " (yours)" if seat.id == reader else ""
        # Escape the closing tag, so that no answer can add an answer of another author.
        text = seat.current.text[:MOST_OF_AN_ANSWER].replace("</answer", "<\\/answer")
        blocks.append(
            f'<answer author="{seat.id}" label="{seat.current.label}"{mine}>\n{text}\n</answer>'
        )
    return (
        f"These are the present answers. The files of each are in {snapshots}/<label>.\n\n"
        + "\n\n".join(blocks)
        + "\n\nVote for the best one, or give a better answer of your own."
    )


def format_messages(texts: Sequence[str]) -> str:
    return "\n\n".join(f"A message from your parent:\n{text}" for text in texts)
