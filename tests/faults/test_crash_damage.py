"""Logs and databases that were damaged, cut, lost or put back: named, refused, and rebuilt."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import IntegrityBroken, NotFound, StewardUnavailable
from retinue.steward import maintenance
from retinue.trust import mark_root
from support.reader import Reader
from support.roots import Root, held, sh, tree, until
from support.traces import is_over

TASKS = ("early", "late")
WORK = (
    sh("echo >> ran; echo delivered", subagent_id="good"),
    sh("echo >> ran; exit 3", subagent_id="bad", max_retries=1),
    sh('echo found > "$RETINUE_ANSWER"; exec sleep 30', subagent_id="late", timeout_seconds=0.2),
)
TOLD = ("tasks", "runs", "sub_agents", "events", "results", "gates")


def work(root: Root, task: str) -> None:
    root.create_task(task_id=task)
    root.spawn(task, *WORK)
    root.call("subagent.wait_all", task=task, timeout_seconds=20)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A root with two finished runs, and beside it a copy of its database after the first."""
    folder = tmp_path_factory.mktemp("finished")
    with held(folder / ".retinue") as root:
        work(root, "early")
        root.stop()
        shutil.copy(root.path / "retinue.db", folder / "earlier.db")
        work(root, "late")
        root.call("task.close", task="late")
        root.stop()
    yield folder


@pytest.fixture
def spoilt(finished: Path, tmp_path: Path) -> Iterator[Root]:
    """A copy of that root, to be spoilt."""
    shutil.copytree(finished / ".retinue", tmp_path / ".retinue", symlinks=True)
    mark_root(tmp_path / ".retinue", os.environ)
    with held(tmp_path / ".retinue") as root:
        yield root


def log_of(root: Root, task: str = "early") -> Path:
    return root.task_folder(task) / "events.jsonl"


def edit(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


def tables(root: Path) -> dict[str, list[Any]]:
    """All that a database tells, except what only it could know."""
    with closing(sqlite3.connect(f"file:{root / 'retinue.db'}?mode=ro", uri=True)) as database:
        told = {name: database.execute(f"SELECT * FROM {name}").fetchall() for name in TOLD}
        attempts = "SELECT sub_agent_id, number, pid, start_ticks, started_at, ended_at"
        told["attempts"] = database.execute(f"{attempts} FROM attempts").fetchall()
    return {name: sorted(rows, key=repr) for name, rows in told.items()}


def check_rebuilt(root: Root, before: dict[str, list[Any]]) -> dict[str, Any]:
    """A rebuilt root tells the same as before, and works."""
    report = maintenance.rebuild_root(root.path)
    assert sorted(report["rebuilt"]) == sorted(TASKS), report
    assert tables(root.path) == before
    assert maintenance.rebuild_root(root.path)["ok"]  # once more changes nothing
    assert tables(root.path) == before
    Reader(root.path).check(finished=True)
    root.sound()
    assert root.run("early", sh("echo more", subagent_id="more"))[0]["answer"] == "more"
    return report


def flip(lines: list[bytes]) -> list[bytes]:
    return [*lines[:6], lines[6][:40] + b"\xff" + lines[6][41:], *lines[7:]]


def zeros(lines: list[bytes]) -> list[bytes]:
    return [*lines[:6], b"\0" * (len(lines[6]) - 1) + b"\n", *lines[7:]]


def digit(lines: list[bytes]) -> list[bytes]:
    return [*lines[:6], lines[6].replace(b'"ts":"20', b'"ts":"19'), *lines[7:]]


DAMAGES = {
    "flipped byte": (flip, "log_damaged", 7),
    "zeroed line": (zeros, "log_damaged", 7),
    "inserted NULs": (lambda lines: [*lines[:6], b"\0\0\0\n", *lines[6:]], "log_damaged", 7),
    "deleted line": (lambda lines: lines[:6] + lines[7:], "log_order", 7),
    "swapped lines": (
        lambda lines: [*lines[:6], lines[7], lines[6], *lines[8:]],
        "log_order",
        7,
    ),
    "changed digit": (digit, "log_changed", 7),
    "damaged last line": (lambda lines: [*lines[:-1], b"{}\n"], "log_damaged", None),
    "another's line": (lambda lines: [*lines[:6], b'"x"\n', *lines[7:]], "log_damaged", 7),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.requirement("R124")
def test_a_damaged_log_is_named_by_line_and_kind_and_restored_from_the_database(
    spoilt: Root, damage: str
) -> None:
    change, kind, line = DAMAGES[damage]
    original = log_of(spoilt).read_bytes()
    before = tables(spoilt.path)
    edit(log_of(spoilt), change)
    damaged = log_of(spoilt).read_bytes()
    (problem,) = spoilt.call("verify")["problems"]
    number = line or len(damaged.splitlines())
    assert (problem["kind"], problem["where"]) == (kind, f"{log_of(spoilt)}:{number}")
    assert "retinue verify --rebuild" in problem["message"]
    assert spoilt.rows("early").keys() == {"good", "bad", "late"}
    assert log_of(spoilt).read_bytes() == damaged
    spoilt.stop()
    report = check_rebuilt(spoilt, before)
    assert report["ok"] and report["repaired"]
    assert log_of(spoilt).read_bytes().startswith(original)
    kept = log_of(spoilt).with_name("events.jsonl.before-rebuild-1")
    assert kept.read_bytes() == damaged


@pytest.mark.parametrize("lines", [1, 4, 1000])
@pytest.mark.parametrize("running", [False, True])
def test_a_shortened_log_is_written_again(spoilt: Root, lines: int, running: bool) -> None:
    if running:
        spoilt.sound()
    original = log_of(spoilt).read_bytes()
    edit(log_of(spoilt), lambda old: [*old[:-lines], *([old[-1][:30]] if lines == 4 else [])])
    spoilt.sound()
    assert log_of(spoilt).read_bytes() == original
    Reader(spoilt.path).check(finished=True)


def test_a_contract_or_result_that_was_changed_or_taken_away_is_named(spoilt: Root) -> None:
    kept, gone = spoilt.folder("early", "good"), spoilt.folder("late", "bad")
    contract, result = kept / "contract.json", kept / "result.json"
    contract.chmod(0o644)
    contract.write_text(contract.read_text().replace("delivered", "sent"))
    result.unlink()
    shutil.rmtree(gone)
    reworded = spoilt.folder("late", "good") / "result.json"
    reworded.write_text(json.dumps(json.loads(reworded.read_text()), indent=1))
    found = {(each["kind"], each["where"]) for each in spoilt.call("verify")["problems"]}
    assert found == {
        ("file_changed", str(contract)),
        ("file_missing", str(result)),
        ("file_missing", str(gone / "contract.json")),
        ("file_missing", str(gone / "result.json")),
    }


@pytest.mark.parametrize("left", [0, 40, -4096])
def test_a_contract_or_result_that_a_power_loss_cut_short_is_restored(
    spoilt: Root, left: int
) -> None:
    agent = spoilt.folder("early", "good")
    before = {name: (agent / name).read_bytes() for name in ("contract.json", "result.json")}
    for name, text in before.items():
        (agent / name).chmod(0o644)
        (agent / name).write_bytes(text[:left] if left >= 0 else bytes(-left))
    told = spoilt.call("verify", task="early")
    assert told["problems"] == []
    assert {(each["kind"], each["where"]) for each in told["repaired"]} == {
        ("file_restored", str(agent / name)) for name in before
    }
    assert {name: (agent / name).read_bytes() for name in before} == before
    assert (agent / "contract.json").stat().st_mode & 0o777 == 0o444
    Reader(spoilt.path).check(finished=True)
    assert "repaired" not in spoilt.call("verify", task="early")


def test_a_log_that_was_cut_while_in_use_has_no_gap(spoilt: Root) -> None:
    spoilt.run("early", sh("echo one", subagent_id="one"))
    edit(log_of(spoilt), lambda lines: lines[:-3])
    spoilt.run("early", sh("echo two", subagent_id="two"))
    Reader(spoilt.path).check(finished=True)


@pytest.mark.parametrize("whole", [False, True])
def test_a_log_ahead_of_its_database_stops_everything_and_rebuilds_it(
    spoilt: Root, finished: Path, whole: bool
) -> None:
    before = tables(spoilt.path)
    if whole:  # the database knows nothing of the later task
        shutil.copy(finished / "earlier.db", spoilt.path / "retinue.db")
    else:
        forget_events(spoilt.path / "retinue.db", 5)
    untouched = tree(spoilt.path)
    for verb in ("task.list", "verify"):
        with pytest.raises(IntegrityBroken) as refused:
            spoilt.call(verb)
        assert refused.value.code == "log_ahead"
        assert "log ahead of database" in refused.value.message
        assert "retinue verify --rebuild" in refused.value.hint
    assert differences(untouched, tree(spoilt.path)) == set()
    assert check_rebuilt(spoilt, before)["ok"]


def forget_events(database: Path, count: int) -> None:
    """The database of a moment when so many events of the first task were still to come."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("DROP TRIGGER events_are_not_deleted")
        connection.execute("DROP TRIGGER subagents_are_kept")
        (last,) = connection.execute(
            "SELECT last_seq FROM tasks WHERE task_id = 'early'"
        ).fetchone()
        cut = (last - count,)
        connection.execute("DELETE FROM events WHERE task_id = 'early' AND seq > ?", cut)
        connection.execute("UPDATE tasks SET last_seq = ? WHERE task_id = 'early'", cut)
        connection.commit()


def differences(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    changed = {path for path in one.keys() | other.keys() if one.get(path) != other.get(path)}
    return {path for path in changed if not path.startswith(("steward", "retinue.db"))}


def remove(database: Path) -> None:
    database.unlink()


def empty(database: Path) -> None:
    database.write_bytes(b"")


def scramble(database: Path) -> None:
    database.write_bytes(random.Random(7).randbytes(60_000))


def scramble_inside(database: Path) -> None:
    """Its first page is sound, and says that the others are its own."""
    data = bytearray(database.read_bytes())
    data[4096:] = random.Random(8).randbytes(len(data) - 4096)
    database.write_bytes(data)


def leave_wal(database: Path) -> None:
    database.rename(database.with_name("retinue.db-wal"))


@pytest.mark.parametrize("spoil", [remove, empty, scramble, scramble_inside, leave_wal])
@pytest.mark.requirement("R124")
def test_a_lost_database_is_refused_and_rebuilt_from_logs_and_folders(
    spoilt: Root, spoil: Callable[[Path], None]
) -> None:
    before = tables(spoilt.path)
    spoil(spoilt.path / "retinue.db")
    untouched = tree(spoilt.path)
    for verb in ("task.list", "verify"):
        with pytest.raises(IntegrityBroken) as refused:
            spoilt.call(verb)
        assert refused.value.code in ("database_missing", "database_damaged")
        assert str(spoilt.path / "retinue.db") in refused.value.message
        assert "logs and workspaces are" in refused.value.hint
        assert "retinue verify --rebuild" in refused.value.hint
        spoilt.release()
    spoilt.stop()
    assert differences(untouched, tree(spoilt.path)) == set()
    assert check_rebuilt(spoilt, before)["ok"]


@pytest.mark.parametrize("spoil", [remove, empty])
def test_a_database_lost_while_in_use_is_noticed(
    spoilt: Root, spoil: Callable[[Path], None]
) -> None:
    before = tables(spoilt.path)
    spoilt.sound()
    spoil(spoilt.path / "retinue.db")
    with pytest.raises(IntegrityBroken):
        spoilt.call("task.list")
    spoilt.release()
    steward = int((spoilt.path / "steward.lock").read_text())
    until(lambda: is_over(steward))
    assert check_rebuilt(spoilt, before)["ok"]


def test_a_root_that_was_moved_while_in_use_is_not_taken_for_one_that_lost_its_database(
    spoilt: Root, tmp_path: Path
) -> None:
    tasks = spoilt.call("task.list")
    spoilt.path.rename(tmp_path / "elsewhere")
    with held(tmp_path / "elsewhere") as moved:
        with pytest.raises(IntegrityBroken) as refused:
            moved.call("task.list")
        assert refused.value.code == "root_moved" and "repeat" in refused.value.hint
        moved.release()
        until(lambda: is_over(int((moved.path / "steward.lock").read_text())))
        assert moved.call("task.list") == tasks


def test_the_old_database_is_kept_and_a_held_root_is_left_alone(spoilt: Root) -> None:
    spoilt.sound()
    with pytest.raises(StewardUnavailable):
        maintenance.rebuild_root(spoilt.path)
    spoilt.stop()
    old = (spoilt.path / "retinue.db").read_bytes()
    report = maintenance.rebuild_root(spoilt.path)
    kept = spoilt.path / "retinue.db.before-rebuild-1"
    assert kept.read_bytes() == old
    assert str(kept) in report["kept"]
    with pytest.raises(NotFound):
        maintenance.rebuild_root(spoilt.path / "elsewhere")
