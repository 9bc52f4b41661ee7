"""Files that cannot be read, that change, or are none: they cost neither answers nor members."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path

import pytest

from retinue.team.tools.file_tools import find, run_in_fork
from support.roots import Root, root
from support.scripted import Heard, Models, Said, answer, call, vote
from support.teams import (
    ENFORCEMENT,
    PRESENTATION,
    brief,
    in_turn,
    models,
    stage,
    status_of,
    task_of,
)
from support.traces import children_of

__all__ = ["models", "root"]

UNREADABLE = "echo x > sec; chmod 000 sec"
CLOSED = "mkdir d; echo 1 > d/x; chmod 000 d"
LISTED_ONLY = "mkdir d; echo 1 > d/x; chmod 644 d"
DEEP = """python3 -c '
import os
for _ in range(500):
    os.mkdir("d" * 10)
    os.chdir("d" * 10)
open("leaf", "w").close()
'"""
FOR_EVER = "(a+)+$"  # beside a line of many a and something else


@pytest.mark.requirement("R154", "R236")
@pytest.mark.parametrize(
    ("made", "lacking"),
    [
        (UNREADABLE, "sec (Permission denied)"),
        (CLOSED, "d (Permission denied)"),
        (LISTED_ONLY, "d/x (Permission denied)"),
        (DEEP, "(File name too long)"),
    ],
)
def test_an_answer_is_valid_despite_unusable_files_and_names_them(
    root: Root, models: Models, made: str, lacking: str
) -> None:
    in_turn(models, call("run_command", command=f"echo kept > kept; {made}"), answer("done"))
    task = task_of(root, models, "maker")
    (result,) = root.run(task, brief(subagent_id="made"))
    assert (result["status"], result["answer"]) == ("completed", "done"), result
    assert lacking in result.get("warning", ""), (result, models.heard[-1].last)
    assert "agent1.1" in result["warning"]
    (history,) = status_of(root, task, "made")["historical_workspaces"]
    kept = Path(history["workspacePath"])
    assert (kept / "kept").read_text() == "kept\n"
    assert lacking in (kept / "SNAPSHOT_CUT").read_text()


@pytest.mark.parametrize(
    ("made", "lacking"),
    [(UNREADABLE, "sec (Permission denied)"), (CLOSED, "d (Permission denied)"), ("true", "")],
)
def test_a_winner_presents_and_delivers_all_that_can_be_copied(
    root: Root, models: Models, made: str, lacking: str
) -> None:
    done: set[str] = set()

    def script(heard: Heard) -> Said:
        at = stage(heard)
        if at == PRESENTATION:
            return Said(text="presented")
        if at == ENFORCEMENT and heard.model == "one" and not done:
            done.add("made")
            return call("run_command", command=f"echo work > result; {made}")
        return vote("agent1") if at == ENFORCEMENT else answer(f"answer of {heard.model}")

    models.script = script
    (result,) = root.run(task_of(root, models, "one", "two"), brief())
    assert (result["status"], result["answer"]) == ("completed", "presented"), result
    assert Path(result["workspace"], "result").read_text() == "work\n"
    assert not Path(result["workspace"], "sec").exists()
    if lacking:
        assert f"not as its winner left it: {lacking}" in result["warning"]
    else:
        assert "warning" not in result


def test_a_file_that_can_be_read_again_when_it_is_delivered_is_no_lack(
    root: Root, models: Models
) -> None:
    def script(heard: Heard) -> Said:
        at = stage(heard)
        if at == ENFORCEMENT and heard.model == "one" and "CLOSED-IT" not in heard.words:
            return call("run_command", command=f"{UNREADABLE}; echo CLOSED-IT")
        if at == PRESENTATION and "OPENED-IT" not in heard.words:
            return call("run_command", command="chmod 644 sec; echo OPENED-IT")
        if at == PRESENTATION:
            return Said(text="presented")
        return vote("agent1") if at == ENFORCEMENT else answer(f"answer of {heard.model}")

    models.script = script
    (result,) = root.run(task_of(root, models, "one", "two"), brief())
    assert (result["status"], result["answer"]) == ("completed", "presented"), result
    assert Path(result["workspace"], "sec").read_text() == "x\n" and "warning" not in result


def test_errors_of_the_disk_or_a_pattern_are_tool_answers(root: Root, models: Models) -> None:
    long = "a" * 300
    made = (
        f"mkfifo p; mkdir c; echo 1 > c/x; chmod 000 c; {LISTED_ONLY}; {UNREADABLE}; echo hi > ok"
    )
    asked: list[tuple[Said, str]] = [
        (call("run_command", command=made), "[exit code 0]"),
        (call("read_file", path=long), "error: "),
        (call("write_file", path=f"{long}/x", content="y"), "error: "),
        (call("list_files", path=long), "error: "),
        (call("search_files", pattern="x{99999999999}"), "error: not a regular expression"),
        (call("search_files", pattern="(" * 3000 + ")" * 3000), "error: not a regular expression"),
        (call("write_file", path="c/x", content="y"), "error: "),
        (call("write_file", path="p", content="y"), "error: "),
        (call("edit_file", path="p", old="x", new="y"), "error: "),
        (call("list_files", pattern="*[" * 1000), "error: "),
        (call("list_files"), "ok (3 bytes)\n"),
        (call("search_files", pattern="h."), "ok:1: hi\n[left out: "),
        (call("copy_files_batch", copies=[{"source": ".", "target": "."}]), "copied 0 files"),
        (answer("still here"), ""),
    ]
    told = in_turn(models, *(said for said, _ in asked))
    (result,) = root.run(task_of(root, models, "clumsy"), brief(timeout_seconds=20))
    assert (result["status"], result["answer"]) == ("completed", "still here"), (result, told)
    for (_, begins), heard in zip(asked, told[1:], strict=False):
        assert heard.startswith(begins), heard
    assert "File name too long" in told[2] and "not a regular file" in told[8]
    for listing in (told[11], told[12]):
        assert "c (Permission denied)" in listing and "d/x (Permission denied)" in listing
    assert "sec (Permission denied)" in told[12]


@pytest.mark.requirement("R150")
def test_a_search_that_takes_for_ever_leaves_time_to_answer(root: Root, models: Models) -> None:
    told = in_turn(
        models,
        call("write_file", path="t", content="a" * 60 + "!"),
        call("search_files", pattern=FOR_EVER),
        answer("without it"),
    )
    (result,) = root.run(task_of(root, models, "searcher"), brief(timeout_seconds=3))
    assert (result["status"], result["answer"]) == ("completed", "without it"), result
    assert "time is almost up" in told[2]


@pytest.mark.parametrize(
    ("pattern", "line"), [(FOR_EVER, "a" * 60 + "!"), ("a.*b.*c$", "a" * 300_000)]
)
def test_a_search_is_stopped_and_leaves_no_process(tmp_path: Path, pattern: str, line: str) -> None:
    (tmp_path / "t").write_text(line)
    before = children_of(os.getpid())
    with pytest.raises(TimeoutError):
        asyncio.run(run_in_fork(partial(find, pattern, tmp_path, "*"), 0.2))
    assert children_of(os.getpid()).keys() == before.keys()


def test_work_done_aside_gives_all_it_says_or_why_it_could_not() -> None:
    much = "ü" * 1_000_000
    before = children_of(os.getpid())
    assert asyncio.run(run_in_fork(lambda: much, 10)) == much

    def refuse() -> str:
        raise ValueError("no such thing")

    def crash() -> str:
        raise AssertionError

    with pytest.raises(ValueError, match="no such thing"):
        asyncio.run(run_in_fork(refuse, 10))
    with pytest.raises(ValueError, match="ended without a result"):
        asyncio.run(run_in_fork(crash, 10))
    assert children_of(os.getpid()).keys() == before.keys()
