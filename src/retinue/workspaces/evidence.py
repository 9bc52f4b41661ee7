"""What an attempt left behind, gathered once no process of it is left."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

from retinue.domain.contract import Contract
from retinue.domain.ending import Ending, EndKind
from retinue.domain.result import Evidence
from retinue.domain.team import SNAPSHOTS, TEMPORARY
from retinue.workspaces.intake import OURS
from retinue.workspaces.own import reopen
from retinue.workspaces.reader import (
    is_empty,
    list_left,
    read_answer,
    read_final,
    read_last_line,
    read_notices,
    read_testimony,
)

OF_TEAMS = [f"{top}{name}" for top in ("", f"{OURS}/") for name in (SNAPSHOTS, TEMPORARY)]
ANSWER, FINAL = "answer.txt", "final.json"  # in full_logs/


def gathered(folder: str, workspace: Path, contract: Contract, ending: Ending) -> Evidence:
    """All of it, as claims. Never raises for what a child wrote."""
    if os.path.islink(folder):
        return Evidence(ending=ending, warnings=("its folder was replaced by a link",))
    evidence = _said(folder, workspace, contract, ending)
    if not _is_folder(workspace) and ending.kind is not EndKind.LAUNCH_FAILED:
        gone = "its workspace is gone, or was replaced"
        return replace(evidence, warnings=(gone, *evidence.warnings))
    # What a repository brought is not told apart from what the child made.
    if evidence.finished or contract.outputs.base:
        return evidence
    return replace(evidence, files=list_left(workspace, OF_TEAMS if contract.team else ()))


def _said(folder: str, workspace: Path, contract: Contract, ending: Ending) -> Evidence:
    """What it printed and wrote of itself."""
    runtime, logs = Path(f"{folder}/runtime"), Path(f"{folder}/full_logs")
    reopen(logs, workspace)
    silent = is_empty(logs)
    heard = Evidence(
        ending=ending,
        stdout=read_answer(runtime, "stdout.log").text,
        last_words="" if silent and ending.clean else read_last_line(runtime, "stderr.log"),
    )
    if silent:
        return heard
    testimony, answers = read_testimony(logs)
    final = read_answer(logs, ANSWER)
    refusals, lacks = read_notices(logs) if contract.team is not None else ((), ())
    return replace(
        heard,
        testimony=testimony,
        answers=answers,
        final_answer=final.text,
        declaration=read_final(logs, FINAL),
        refusals=refusals,
        warnings=tuple(filter(None, [final.problem, *lacks])),
    )


def _is_folder(path: Path) -> bool:
    """Whether it is one itself: a link may lead anywhere."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False
