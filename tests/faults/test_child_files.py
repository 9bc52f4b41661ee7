"""What a child leaves behind: read as claims, never followed, never a way out of its folder."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.roots import Root, Row, python, sh, tree, until

MEMBERS = ("b_first", "a_second")
WRITES_TEAM = """
import os, sys, time
logs = os.environ["RETINUE_LOGS"]
for member in {members!r}:
    os.makedirs(f"{{logs}}/{{member}}/20260101_000000")
    with open(f"{{logs}}/{{member}}/20260101_000000/answer.txt", "w") as file:
        file.write(f"answer of {{member}}")
with open(f"{{logs}}/status.json", "w") as file:
    file.write({status!r})
time.sleep(60)
"""
SECRET = "a secret of the canary"


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    """A tree outside of every workspace, which is as it was when the test is over."""
    top = tmp_path / "canary"
    for name in ("workspace", "runtime", "full_logs", "artifacts", "context", "inner/deeper"):
        (top / name).mkdir(parents=True)
    names = ["secret", "answer.txt", "runtime/stdout.log", "runtime/exit.json"]
    names += ["full_logs/answer.txt", "full_logs/status.json", "inner/deeper/file"]
    names += ["artifacts/answer.txt", "workspace/file", "result.json", "conversation.jsonl"]
    for name in names:
        (top / name).write_text(SECRET)
    (top / "inner").chmod(0o500)
    before = tree(top)
    yield top
    assert tree(top) == before
    (top / "inner").chmod(0o700)  # else only root could remove it


def status(**changes: Any) -> Row:
    document: Row = {
        "coordination": {"phase": "enforcement", "completion_percentage": 60},
        "agents": {member: {} for member in MEMBERS},
        "results": {"votes": {}},
        "costs": {"total_input_tokens": 7, "total_output_tokens": 8, "total_estimated_cost": 0.5},
    }
    return document | changes


def votes(*counts: str) -> str:
    """A document whose votes are these texts, one for each member and then for strangers."""
    names = [*MEMBERS, "stranger", "../../etc"]
    inner = ", ".join(f'"{name}": {each}' for name, each in zip(names, counts, strict=False))
    return json.dumps(status(results={"votes": 0})).replace('"votes": 0', f'"votes": {{{inner}}}')


def costs(value: str) -> str:
    keys = ("total_input_tokens", "total_output_tokens", "total_estimated_cost")
    inner = ", ".join(f'"{key}": {value}' for key in keys)
    return json.dumps(status(costs=0)).replace('"costs": 0', f'"costs": {{{inner}}}')


def named(winner: Any, phase: str = "presentation") -> str:
    return json.dumps(status(coordination={"phase": phase}, results={"winner": winner}))


FIRST, SECOND = (f"answer of {member}" for member in MEMBERS)
GOLDEN = {
    "no votes": (votes(), "partial", FIRST),
    "a tie": (votes("1", "1"), "partial", FIRST),
    "most votes": (votes("0", "2"), "partial", SECOND),
    "votes for strangers": (votes("0", "1", "2", "2"), "partial", SECOND),
    "negative votes": (votes("-5", "0"), "partial", FIRST),
    "a negative and a true vote": (votes("-5", "1"), "partial", SECOND),
    "votes beyond the team": (votes("0", "99999999999999999999999"), "partial", FIRST),
    "votes that are no numbers": (votes("NaN", "1e400", "Infinity"), "partial", FIRST),
    "votes that are texts": (votes('"2"', "true"), "partial", FIRST),
    "half a vote": (votes("0", "1.5"), "partial", FIRST),
    "a winner": (named("a_second"), "completed_but_timeout", SECOND),
    "a winner while voting": (named("a_second", "enforcement"), "partial", FIRST),
    "a winner nobody knows": (named("../../../../etc/passwd"), "partial", FIRST),
    "two winners": (named(["a_second", "b_first"]), "partial", FIRST),
    "negative costs": (costs("-1"), "partial", FIRST),
    "endless costs": (costs("1e400"), "partial", FIRST),
    "costs that are texts": (costs('"12"'), "partial", FIRST),
    "costs that are no numbers": (costs("NaN"), "partial", FIRST),
}


@pytest.mark.requirement("R1", "R6", "R7", "R8", "R9", "R10", "R56", "R57", "R58", "R64")
def test_what_a_stopped_team_claims_gives_one_result_whatever_it_claims(
    root: Root, task: str
) -> None:
    briefs = []
    for text, _, _ in GOLDEN.values():
        script = WRITES_TEAM.format(members=MEMBERS, status=text)
        briefs.append(python(script, timeout_seconds=1.5))
    results = root.run(task, *briefs)
    found = {
        name: (text, result["status"], result["answer"])
        for (name, (text, _, _)), result in zip(GOLDEN.items(), results, strict=True)
    }
    assert found == GOLDEN
    for name, result in zip(GOLDEN, results, strict=True):
        sound = {"input_tokens": 7, "output_tokens": 8, "estimated_cost": 0.5}
        assert result["token_usage"] == ({} if "costs" in name else sound)
        assert result["success"] == (result["status"] == "completed_but_timeout")
    summary = root.task_folder(task) / "metrics_summary.json"
    until(lambda: read_strictly(summary)["subagents"]["total_input_tokens"] == 7 * 14)
    metrics = read_strictly(summary)
    assert all(math.isfinite(each) for part in metrics.values() for each in part.values())


REPLACEMENTS = {
    "workspace": 'rm -rf "$folder/workspace"; ln -s "$canary" "$folder/workspace"',
    "full_logs": 'rm -rf "$folder/full_logs"; ln -s "$canary/full_logs" "$folder/full_logs"',
    "answer": 'ln -s "$canary/secret" "$folder/full_logs/answer.txt"',
    "hard link": 'ln "$canary/secret" "$folder/full_logs/answer.txt"',
    "runtime": 'mv "$folder/runtime" "$folder/away"; ln -s "$canary/runtime" "$folder/runtime"',
    "artifacts": 'rm -rf "$folder/artifacts"; ln -s "$canary/artifacts" "$folder/artifacts"',
    "context": 'rm -rf "$folder/context"; ln -s "$canary/context" "$folder/context"',
    "result": 'ln -s "$canary/result.json" "$folder/result.json"',
    "conversation": 'ln -sf "$canary/conversation.jsonl" "$folder/conversation.jsonl"',
    "conversation by hard link": 'ln -f "$canary/conversation.jsonl" "$folder/conversation.jsonl"',
    "report": 'mkdir .retinue; ln -s "$canary/secret" .retinue/step-0-result.md',
    "everything": 'mv "$folder" "$folder-away"; ln -s "$canary" "$folder"',
}


OBSTACLES = {
    "a pipe": 'rm "$folder/conversation.jsonl"; mkfifo "$folder/conversation.jsonl"',
    "another pipe": 'mkfifo "$folder/runtime/attempts.jsonl"',
    "a folder": 'mkdir "$folder/result.json" "$folder/.result.json.new"',
    "a file": 'rm -r "$folder/artifacts"; echo x > "$folder/artifacts"',
    "folders": 'mkdir -p "$folder/artifacts/answer.txt/x"',
    "locked": 'cd "$folder"; mkdir -p artifacts; chmod 0 runtime artifacts .',
    "pipes in the logs": 'mkfifo "$folder/full_logs/answer.txt" "$folder/full_logs/final.json"',
    "a pipe for a status": 'mkfifo "$folder/full_logs/status.json"',
    "a pipe for the logs": 'rm -r "$folder/full_logs"; mkfifo "$folder/full_logs"',
    "gone": 'rm -rf "$folder"',
}


@pytest.mark.parametrize("what", REPLACEMENTS)
@pytest.mark.parametrize("retries", [0, 1])
def test_a_link_that_a_child_leaves_in_our_way_is_never_followed(
    root: Root, task: str, canary: Path, what: str, retries: int
) -> None:
    script = f'canary="{canary}"; folder="$(dirname "$RETINUE_LOGS")"; {REPLACEMENTS[what]}; exit 1'
    (result,) = root.run(task, sh(script, max_retries=retries))
    assert result["status"] == "error"
    assert SECRET not in json.dumps(result)
    root.call("task.join", task=task)
    root.call("task.close", task=task)
    for force in (False, True):
        gone = root.call("gc", force=force)
        assert str(canary) not in json.dumps(gone)
    places = [*root.task_folder(task).rglob("*.txt"), *root.task_folder(task).rglob("*.md")]
    ours = [path for path in places if path.is_file() and "away" not in str(path)]
    assert not [path for path in ours if SECRET in path.read_text() and not leads_out(path, root)]
    root.sound()


CONTEXT_REPLACEMENTS = {
    "the folder": 'rm -rf "$c"; ln -s "$canary/context" "$c"',
    "the paths": 'rm -rf "$c/paths"; ln -s "$canary/context" "$c/paths"',
    "a place": 'rm -rf "$c/outside/given"; ln -s "$canary/context" "$c/outside/given"',
    "a file's place": 'rm -f "$c/outside/one"; ln -s "$canary/new" "$c/outside/one"',
    "a copy": 'rm -f "$c/files/copied"; ln -s "$canary/new" "$c/files/copied"',
}


@pytest.mark.parametrize("what", CONTEXT_REPLACEMENTS)
def test_a_link_in_the_place_of_a_context_is_not_followed_by_the_next_attempt(
    root: Root, task: str, canary: Path, tmp_path: Path, what: str
) -> None:
    (given := root.path.parent / "given").mkdir(exist_ok=True)
    for path in (given / "f", given.with_name("one"), given.with_name("copied")):
        path.write_text("given")
    # The mounts are this child's alone; what it replaces is found by way of its parent folder.
    script = f"""
canary="{canary}"; folder="$(dirname "$RETINUE_LOGS")"; c="$folder/context"
[ "$RETINUE_ATTEMPT" = 2 ] && exec cat $(find "$RETINUE_CONTEXT" -type f)
umount "$c"/*/* 2> /dev/null; {CONTEXT_REPLACEMENTS[what]}; exit 1
"""
    brief = sh(script, max_retries=1) | {
        "context_paths": [str(given), str(given.with_name("one"))],
        "context_files": [str(given.with_name("copied"))],
    }
    (result,) = root.run(task, brief, cwd=str(tmp_path))
    assert result["answer"] == "given" * 3, result


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize("left", ["rm -r $folder/workspace", REPLACEMENTS["workspace"]])
def test_a_workspace_that_is_no_more_is_told_and_nothing_is_named_in_its_place(
    root: Root, task: str, canary: Path, left: str, code: int
) -> None:
    script = f'canary="{canary}"; folder="$(dirname "$RETINUE_LOGS")"; echo x; {left}; exit {code}'
    (result,) = root.run(task, sh(script))
    assert result["success"] == (code == 0)
    assert result["warning"] == "its workspace is gone, or was replaced"
    assert "workspace_files" not in result


@pytest.mark.parametrize("kind", OBSTACLES)
def test_whatever_stands_in_our_way_the_child_is_closed_with_its_result(
    root: Root, task: str, kind: str
) -> None:
    spoil = OBSTACLES[kind]
    began = time.monotonic()
    script = f'folder="$(dirname "$RETINUE_LOGS")"; echo fine; {spoil}'
    (result,) = root.run(task, sh(script, subagent_id="vandal"))
    assert time.monotonic() - began < 5
    assert root.types(task, "vandal")[-1] == "subagent_closed"
    if kind != "gone":
        assert (result["status"], result["answer"]) == ("completed", "fine")
    assert read_strictly(root.folder(task, "vandal") / "result.json") == result
    root.sound()


MESS = """
import os
for number in range(20_000):
    open(f"file-{number}", "w").close()
os.makedirs("locked/inner/deeper")
for name in ("locked/inner/deeper", "locked/inner", "locked"):
    os.chmod(name, 0)
for number in range(3000):
    os.mkdir("d" * 50)
    os.chdir("d" * 50)
print("made")
"""


def test_an_unbounded_tree_is_closed_quickly_and_removed_by_force(root: Root, task: str) -> None:
    (result,) = root.run(task, python(MESS))
    assert (result["status"], result["answer"]) == ("completed", "made")
    ended = [each for each in root.events(task, "subagent-1") if each["type"] == "agent.completed"]
    closed = root.events(task, "subagent-1")[-1]
    assert ended[0]["ts"] == closed["ts"]
    root.call("task.close", task=task)
    kept = root.call("gc")["kept"]
    assert [each["path"] for each in kept if each["task"] == task] == [result["workspace"]]
    began = time.monotonic()
    assert result["workspace"] in [each["path"] for each in root.call("gc", force=True)["removed"]]
    assert time.monotonic() - began < 10
    assert not os.path.lexists(result["workspace"])


def test_what_cannot_be_removed_is_named_and_the_rest_goes(root: Root, task: str) -> None:
    (stuck, other) = root.run(task, sh("echo x > file; echo ok"), sh("echo x > file; echo ok"))
    held = Path(stuck["workspace"], "file")
    fixed = ["chattr", "+i", held]
    if not shutil.which("chattr") or subprocess.run(fixed, capture_output=True).returncode:
        pytest.skip("no file can be made immutable here")
    try:
        root.call("task.close", task=task)
        swept = root.call("gc", force=True)
        (kept,) = [each for each in swept["kept"] if each["task"] == task]
        assert (kept["subagent"], "errno 1" in kept["reason"]) == ("subagent-1", True)
        assert other["workspace"] in [each["path"] for each in swept["removed"]]
    finally:
        subprocess.run(["chattr", "-i", held], check=True)


def read_strictly(path: Path) -> Any:
    """JSON without NaN and its like."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} in {path}")

    return json.loads(path.read_text(), parse_constant=refuse)


def leads_out(path: Path, root: Root) -> bool:
    """Whether it is the child's own link, symbolic or hard."""
    return path.stat().st_nlink > 1 or not path.resolve().is_relative_to(root.path.resolve())
