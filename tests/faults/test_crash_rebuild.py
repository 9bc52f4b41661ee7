"""A database made anew from logs and folders, also where those are cut or work is under way."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retinue.steward import maintenance
from retinue.trust import mark_root
from support.reader import Reader
from support.roots import Root, held, rounds, sh, until
from support.traces import is_over, processes_that_mention

QUESTION = """
[ "$RETINUE_ATTEMPT" = 1 ] || { tail -n 1 "$RETINUE_BRIEF"; exit; }
echo '{"status": "blocked", "questions": ["which colour?"]}' > "$RETINUE_FINAL"
"""


def lose_database(root: Root) -> None:
    for path in root.path.glob("retinue.db*"):
        path.unlink()


def kinds(report: dict[str, Any]) -> list[str]:
    return [problem["kind"] for problem in report["problems"]]


def wait_all(root: Root, task: str) -> None:
    root.call("subagent.wait_all", task=task, timeout_seconds=20)


@pytest.mark.requirement("R107", "R111")
def test_a_living_child_is_found_again_by_the_log_alone(fresh: Root) -> None:
    task = fresh.create_task()
    script = "echo >> ran; while [ ! -e go ]; do sleep 0.02; done; echo delivered"
    fresh.spawn(task, sh(script, subagent_id="one"))
    workspace = fresh.folder(task, "one") / "workspace"
    until((workspace / "ran").exists)
    before = Reader(fresh.path).attempts(task, "one")
    fresh.kill()
    lose_database(fresh)
    assert maintenance.rebuild_root(fresh.path)["ok"]
    assert Reader(fresh.path).attempts(task, "one") == before
    assert fresh.rows(task)["one"]["status"] == "running"
    (workspace / "go").touch()
    wait_all(fresh, task)
    Reader(fresh.path).check(finished=True)
    result = fresh.call("subagent.result", task=task, subagent="one")
    assert (result["status"], result["answer"]) == ("completed", "delivered")
    assert (workspace / "ran").read_text() == "\n"


def test_a_child_that_ended_while_the_database_was_lost_is_recovered(fresh: Root) -> None:
    task = fresh.create_task()
    fresh.spawn(task, sh("echo >> up; sleep 0.3; echo delivered", subagent_id="one"))
    until((fresh.folder(task, "one") / "workspace" / "up").exists)
    fresh.kill()
    lose_database(fresh)
    until(lambda: not processes_that_mention(task))
    assert maintenance.rebuild_root(fresh.path)["ok"]
    wait_all(fresh, task)
    Reader(fresh.path).check(finished=True)
    assert fresh.call("subagent.result", task=task, subagent="one")["answer"] == "delivered"


@pytest.mark.requirement("R31", "R52")
def test_questions_and_their_answers_survive_the_database(fresh: Root) -> None:
    task = fresh.create_task()
    fresh.spawn(task, sh(QUESTION, subagent_id="asks"))
    wait_all(fresh, task)
    gates = fresh.call("gate.list", task=task)
    fresh.stop()
    lose_database(fresh)
    assert maintenance.rebuild_root(fresh.path)["ok"]
    assert fresh.call("gate.list", task=task) == gates
    assert fresh.rows(task)["asks"]["status"] == "blocked"
    fresh.call("subagent.continue", task=task, subagent="asks", message="green")
    wait_all(fresh, task)
    assert fresh.call("subagent.result", task=task, subagent="asks")["answer"] == "green"
    fresh.stop()
    lose_database(fresh)
    assert maintenance.rebuild_root(fresh.path)["ok"]
    assert fresh.call("gate.list", task=task)[0]["answer"] == "green"
    Reader(fresh.path).check(finished=True)


def test_what_no_event_tells_is_taken_from_an_old_database_that_can_be_read(fresh: Root) -> None:
    task = fresh.create_task()
    brief = sh("echo done", subagent_id="one")
    fresh.spawn(task, brief, key="once")
    assert fresh.call("subagent.wait_any", task=task)["agentInstance"] == "one"
    fresh.stop()
    assert maintenance.rebuild_root(fresh.path)["ok"]
    assert fresh.spawn(task, brief, key="once") == ["one"]
    refused = fresh.refusal("subagent.wait_any", task=task)
    assert refused.code == "nothing_to_wait_for"


def test_a_contract_that_is_lost_or_changed_is_named_and_nothing_is_run_for_it(
    fresh: Root,
) -> None:
    task, ran = fresh.create_task(limit=1), fresh.path.parent / "ran"
    briefs = [sh("exec sleep 30", subagent_id="runs")]
    briefs += [sh(f"touch {ran}", subagent_id="robbed"), sh("echo kept", subagent_id="waits")]
    fresh.spawn(task, *briefs, queue=True)
    contract = fresh.folder(task, "runs") / "contract.json"
    until(contract.exists)
    fresh.kill()
    lose_database(fresh)
    contract.chmod(0o600)
    contract.write_text(contract.read_text().replace("sleep", "sheep"))
    log = fresh.task_folder(task) / "events.jsonl"
    changed = log.read_text().replace(f"touch {ran}", f"touch  {ran}")
    log.write_text(changed.replace("exec sleep", "exec sheep"))
    report = maintenance.rebuild_root(fresh.path)
    lost = [each["where"] for each in report["problems"] if each["kind"] == "contract_lost"]
    assert [Path(where).parent.name for where in lost] == ["runs", "robbed"]
    fresh.call("subagent.cancel", task=task, subagent="runs")
    wait_all(fresh, task)
    rows = fresh.rows(task)
    assert {name: row["state"] for name, row in rows.items()} == dict.fromkeys(rows, "closed")
    assert (rows["robbed"]["status"], rows["waits"]["status"]) == ("failed", "completed")
    assert not ran.exists()


def test_contracts_and_results_are_replayed_from_the_log_alone(fresh: Root) -> None:
    task = fresh.create_task(description="of two lines\nand more")
    large = "head -c 60000 /dev/zero | tr '\\0' x"
    retried = '[ "$RETINUE_ATTEMPT" = 2 ] && { echo again; exit; }; exit 3'
    fresh.run(
        task,
        sh("echo good", subagent_id="good"),
        sh("exit 3", subagent_id="bad"),
        sh(retried, subagent_id="twice", max_retries=1),
        sh(large, subagent_id="large"),
        sh(QUESTION, subagent_id="asks"),
    )
    shown = fresh.call("task.show", task=task)
    fresh.stop()
    before = Reader(fresh.path)
    results, contracts = before.results(task), before.subagents(task)
    attempts = {name: before.attempts(task, name) for name in contracts}
    lose_database(fresh)
    (fresh.task_folder(task) / "task.yaml").rename(fresh.path / "aside.yaml")
    for name in contracts:
        for file in ("contract.json", "result.json"):
            (fresh.folder(task, name) / file).rename(fresh.folder(task, name) / f"{file}.aside")
    report = maintenance.rebuild_root(fresh.path)
    lost = [each for each in report["problems"] if each["kind"].endswith("_lost")]
    assert [Path(each["where"]).parent.name for each in lost] == ["large"]
    after = Reader(fresh.path)
    assert after.subagents(task) == contracts
    attempts.pop("large")
    assert {name: after.attempts(task, name) for name in attempts} == attempts
    found = after.results(task)
    assert json.loads(found.pop("large"))["answer"] == "x" * 1024 + "…"
    results.pop("large")
    assert found == results
    (fresh.path / "aside.yaml").rename(fresh.task_folder(task) / "task.yaml")
    again = fresh.call("task.show", task=task)
    assert {key: again[key] for key in ("title", "description")} == {
        key: shown[key] for key in ("title", "description")
    }


def test_a_large_result_is_taken_from_its_file_by_the_hash_in_the_log(fresh: Root) -> None:
    task = fresh.create_task()
    fresh.run(task, sh("head -c 60000 /dev/zero | tr '\\0' x", subagent_id="large"))
    fresh.stop()
    assert len((fresh.task_folder(task) / "events.jsonl").read_bytes()) < 16_000
    before = Reader(fresh.path).results(task)
    lose_database(fresh)
    assert maintenance.rebuild_root(fresh.path)["ok"]
    assert Reader(fresh.path).results(task) == before
    lose_database(fresh)
    path = fresh.folder(task, "large") / "result.json"
    path.write_text(before["large"].replace("xxx", "xyx", 1))
    assert kinds(maintenance.rebuild_root(fresh.path)) == ["result_lost", "file_changed"]


def test_clients_do_not_receive_the_copies_that_events_contain_for_a_rebuild(fresh: Root) -> None:
    task = fresh.create_task()
    fresh.run(task, sh("echo done", subagent_id="one"))
    copies = {"context_json", "result", "result_sha256"}
    assert any(copies & event["payload"].keys() for event in fresh.events(task))
    whole = fresh.call("look.events", task=task, whole=True)["events"]
    shown = fresh.call("look.event", task=task, seq=3)
    assert not any(copies & event["payload"].keys() for event in [*whole, shown])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A finished run of three, one after the other, whose log will be cut."""
    folder = tmp_path_factory.mktemp("finished")
    with held(folder / ".retinue") as root:
        root.create_task(task_id="t")
        root.run("t", sh("echo >> ran; echo delivered", subagent_id="good"))
        root.run("t", sh("echo >> ran; exit 3", subagent_id="bad", max_retries=1))
        root.run("t", sh("echo >> ran; echo later", subagent_id="last"))
        root.stop()
    yield folder / ".retinue"


@pytest.mark.parametrize("seed", range(rounds(6)))
def test_a_log_cut_anywhere_with_its_database_lost_is_told_as_far_as_it_goes(
    finished: Path, tmp_path: Path, seed: int
) -> None:
    shutil.copytree(finished, tmp_path / ".retinue", symlinks=True)
    mark_root(tmp_path / ".retinue", os.environ)
    with held(tmp_path / ".retinue") as root:
        lose_database(root)
        log = root.task_folder("t") / "events.jsonl"
        whole = log.read_bytes()
        first = whole.index(b"\n") + 1  # without even that, there is nothing to tell
        cut = whole[: random.Random(seed).randint(first, len(whole))]
        log.write_bytes(cut)
        report = maintenance.rebuild_root(root.path)
        assert set(kinds(report)) <= {"subagent_lost"}, report
        lines = log.read_bytes().splitlines()
        same = [one == other for one, other in zip(lines, cut.splitlines(), strict=False)]
        assert sum(same) >= cut.count(b"\n") - 5  # at most a transaction of which the end is lost
        wait_all(root, "t")
        Reader(root.path).check(finished=True)
        root.sound()
        for name, row in root.rows("t").items():
            assert row["status"] == ("failed" if name == "bad" else "completed")
            ran = (root.folder("t", name) / "workspace" / "ran").read_text()
            assert ran == ("\n\n" if name == "bad" else "\n"), f"{name} ran again"


def test_all_after_a_damaged_line_is_named_as_lost_and_its_files_are_kept(
    finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / ".retinue", symlinks=True)
    mark_root(tmp_path / ".retinue", os.environ)
    with held(tmp_path / ".retinue") as root:
        lose_database(root)
        log = root.task_folder("t") / "events.jsonl"
        lines = log.read_bytes().splitlines(keepends=True)
        created = [json.loads(line)["type"] for line in lines].index("agent.subagent_started") + 8
        log.write_bytes(b"".join([*lines[:created], b"?" + lines[created], *lines[created + 1 :]]))
        report = maintenance.rebuild_root(root.path)
        assert not report["ok"]
        damaged = next(each for each in report["problems"] if each["kind"] == "log_damaged")
        assert damaged["where"] == f"{log}:{created + 1}"
        kept = root.folder("t", "last.before-rebuild-1") / "workspace" / "ran"
        assert kept.read_text() == "\n"
        wait_all(root, "t")
        Reader(root.path).check(finished=True)
        assert root.run("t", sh("echo anew", subagent_id="last"))[0]["answer"] == "anew"


def test_a_rebuild_that_is_interrupted_can_be_done_again(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / ".retinue", symlinks=True)
    mark_root(tmp_path / ".retinue", os.environ)
    with held(tmp_path / ".retinue") as root:
        before = Reader(root.path).results("t")
        (root.path / "retinue.db").rename(root.path / "retinue.db.before-rebuild-1")
        (root.path / "retinue.db.new").write_bytes(b"half of it")
        (root.path / "retinue.db.new-wal").write_bytes(b"and of this")
        assert maintenance.rebuild_root(root.path)["ok"]
        assert Reader(root.path).results("t") == before
        root.sound()
        steward = root.pid
        root.stop()
        assert is_over(steward)
