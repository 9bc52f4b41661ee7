"""The words a team's members are given."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.domain.briefing import done_when
from retinue.domain.contract import Contract, Outputs
from retinue.domain.coordination import Table
from retinue.domain.ids import MemberId

MOST_OF_AN_ANSWER = 20_000  # characters that others are shown

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
CHOSEN = "your answer was chosen, and nothing but its final words is wanted now"


def system(
    contract: Contract, own: str, *, several: bool, home: str, context: str, in_part: bool
) -> str:
    """Who a member is and how it works; its own words first, then its type's, then ours.

    Args:
        in_part: its workspace holds only what it owns of a repository, and the files at its top.
    """
    assert contract.team is not None
    parts = [own, contract.team.instructions, _rules(home, context)]
    parts += [_repository(contract.outputs, in_part), _ending(several)]
    parts.append(done_when(contract.step.success_criteria))
    return "\n\n".join(part.strip() for part in parts if part.strip())


def _rules(home: str, context: str) -> str:
    return (
        "You are a subagent: somebody delegated one piece of work to you. Nobody can answer you "
        "while you work, unless you have the tool ask; do not guess at what only they can know.\n"
        f"Your workspace is {home}. Write nowhere else. What you were given to read is below "
        f"{context}, and cannot be changed.\n"
        "Your tools are all you can do. What a tool refuses stays refused: find another way, or "
        "say in your answer what was not possible.\n"
        "In your answer, list every file you made, by its path in the workspace. Report what you "
        "saw, not what you hoped for."
    )


def _repository(outputs: Outputs, in_part: bool) -> str:
    """What a member must know of files that it did not make."""
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


def _ending(several: bool) -> str:
    if not several:
        return "When you are done, call new_answer with your whole answer."
    return (
        "You are one of several who work on the same brief, each in a workspace of its own. "
        "When you are done, call new_answer with your whole answer. Then you are shown the "
        "others' answers: vote for the best of all, by the name of its author, or call "
        "new_answer again if you can clearly do better than all of them."
    )


def resumed(brief: str, earlier: Sequence[str]) -> str:
    """What a member is told at the start: its brief, or only what is new of it.

    `earlier` is what it was told before.
    """
    known = max((text for text in earlier if brief.startswith(text)), key=len, default="")
    return brief.removeprefix(known).strip() or GO_ON


def answers(table: Table, reader: MemberId, snapshots: str) -> str:
    """What there is to choose from; authors cannot speak for each other."""
    blocks = []
    for seat in table.seats:
        if seat.current is None:
            continue
        mine = " (yours)" if seat.id == reader else ""
        text = seat.current.text[:MOST_OF_AN_ANSWER].replace("</answer", "<\\/answer")
        blocks.append(
            f'<answer author="{seat.id}" label="{seat.current.label}"{mine}>\n{text}\n</answer>'
        )
    return (
        f"These are the present answers. The files of each are in {snapshots}/<label>.\n\n"
        + "\n\n".join(blocks)
        + "\n\nVote for the best one, or give a better answer of your own."
    )


def messages(texts: Sequence[str]) -> str:
    return "\n\n".join(f"A message from whoever delegated this to you:\n{text}" for text in texts)
