"""What a root takes on disk: deleting tasks, garbage collection, backup and restore."""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from support.cli import Cli
from support.roots import until
from support.traces import is_over


def closed_task(cli: Cli, script: str = "true") -> str:
    task = cli.task()
    command = ("sh", "-c", f"{script}; echo done")
    cli.run("subagent", "spawn", task, "--id", "one", "--wait", "--", *command)
    cli.run("task", "close", task)
    return task


def test_a_deleted_task_leaves_a_record_and_nothing_else(cli: Cli) -> None:
    task = closed_task(cli)
    folder = cli.root / "tasks" / task
    done = cli.json("task", "delete", task)
    assert done["deleted"] and done["subagents"] == 1 and done["bytes"] > 0
    assert not folder.exists() and cli.json("task", "list") == []
    said = cli.run("--json", "task", "show", task, code=3)
    assert "was deleted at" in json.loads(said)["error"]["message"]
    assert cli.json("verify")["ok"]
    with closing(sqlite3.connect(cli.root / "retinue.db")) as database:
        tables = ("tasks", "runs", "sub_agents", "attempts", "results", "events")
        left = [database.execute(f"SELECT count(*) FROM {name}").fetchone() for name in tables]
        assert set(left) == {(0,)}
        kept = database.execute("SELECT task_id, subagents, purging FROM deleted_tasks").fetchall()
    assert kept == [(task, 1, 0)]


def test_an_open_task_and_unmerged_work_are_not_deleted_unasked(cli: Cli) -> None:
    task = cli.task()
    said = cli.run("--json", "task", "delete", task, code=1)
    assert json.loads(said)["error"]["code"] == "task_open"
    task = closed_task(cli, "echo x > file")
    said = cli.run("--json", "task", "delete", task, code=1)
    assert json.loads(said)["error"]["code"] == "unmerged_work"
    assert cli.workspace(task, "one").joinpath("file").exists()
    assert cli.json("task", "delete", task, "--force")["deleted"]


def test_rows_of_a_task_cannot_be_deleted_without_a_record(cli: Cli) -> None:
    closed_task(cli)
    cli.run("steward", "stop")
    with closing(sqlite3.connect(cli.root / "retinue.db")) as database:
        for statement in ("DELETE FROM sub_agents", "DELETE FROM events"):
            with pytest.raises(sqlite3.IntegrityError, match="never deleted"):
                database.execute(statement)


def test_a_deletion_that_was_cut_off_is_finished_by_the_next_steward(cli: Cli) -> None:
    task = closed_task(cli)
    folder = cli.root / "tasks" / task
    shutil.copytree(folder, cli.folder / "aside", symlinks=True)
    cli.run("task", "delete", task)
    cli.run("steward", "stop")
    # As if the steward had been killed after the commit and before the removal.
    shutil.copytree(cli.folder / "aside", folder, symlinks=True)
    assert cli.json("task", "list") == []
    assert not folder.exists() and cli.json("verify")["ok"]


def test_the_id_of_a_deleted_task_can_be_used_again(cli: Cli) -> None:
    for _ in range(2):
        cli.run("task", "create", "--title", "T", "--id", "again")
        cli.run("task", "close", "again")
        assert cli.json("task", "delete", "again")["deleted"]
    cli.run("task", "create", "--title", "T", "--id", "again")
    cli.run("steward", "stop")
    assert [row["task_id"] for row in cli.json("task", "list")] == ["again"]


def test_gc_says_what_it_would_free_and_frees_it(cli: Cli) -> None:
    task = closed_task(cli, "head -c 100000 /dev/zero > big")
    plan = cli.json("gc", "--force", "--dry-run")
    assert plan["dry_run"] and plan["bytes"] >= 100_000
    assert cli.workspace(task, "one").exists()
    done = cli.json("gc", "--force")
    assert [row["path"] for row in done["removed"]] == [row["path"] for row in plan["removed"]]
    assert done["bytes"] == plan["bytes"] and not cli.workspace(task, "one").exists()


def test_gc_leaves_new_tasks_and_those_to_keep(cli: Cli) -> None:
    tasks = [closed_task(cli, "echo x > file") for _ in range(3)]
    for age in ("1h", "999999w"):
        assert cli.json("gc", "--force", "--older-than", age, "--dry-run")["removed"] == []
    kept = cli.json("gc", "--force", "--tasks", "--keep", "1")
    assert {row["task"] for row in kept["removed"]} == set(tasks[:2])
    assert [row["task_id"] for row in cli.json("task", "list")] == tasks[2:]
    assert "a duration such as" in cli.run("--json", "gc", "--older-than", "soon", code=2)


def test_a_backup_of_a_working_root_is_restored_as_a_new_one(cli: Cli) -> None:
    done = closed_task(cli, "echo text > file")
    task = cli.task()
    cli.run("subagent", "spawn", task, "--id", "slow", "--", "sh", "-c", "touch on; sleep 600")
    until(lambda: cli.workspace(task, "slow").joinpath("on").exists())
    (cli.folder / "elsewhere").mkdir()
    target = cli.folder / "elsewhere" / "b.tar.gz"
    report = cli.json("backup", str(target))
    assert report["tasks"] == 2 and report["bytes"] == target.stat().st_size
    assert target.stat().st_mode & 0o777 == 0o600
    cli.run("backup", str(target), code=2)  # never overwritten
    with tarfile.open(target) as archive:
        names = set(archive.getnames())
    assert not names & {"identity.json", "gateway.key", "steward.sock", "steward.lock"}
    place = cli.folder / "new" / "place"  # restoring makes it
    report = cli.json("restore", str(target), "--root", str(place / ".retinue"))
    assert report["tasks"] == 2
    other = Cli(place)
    other.run("restore", str(target), "--root", ".retinue", code=2)
    # Not trusted yet: it can be read, and takes no work.
    assert {row["task_id"] for row in other.json("task", "list")} == {done, task}
    other.run("task", "create", "--title", "T", code=1)
    other.run("trust", "--yes")
    try:
        assert other.json("verify") == {"ok": True, "problems": []}
        assert other.workspace(done, "one").joinpath("file").read_text() == "text\n"
        # The process of the original is not adopted, and goes on there.
        until(lambda: other.json("subagent", "show", task, "slow")["status"] != "running")
        original = cli.json("subagent", "show", task, "slow")
        assert original["status"] == "running" and not is_over(original["attempts"][0]["pid"])
    finally:
        other.run("steward", "stop", "--cancel")


def test_a_backup_that_leads_outside_is_refused_and_leaves_nothing(cli: Cli) -> None:
    hostile = cli.folder / "h.tar.gz"
    manifest = json.dumps({"format": 1, "tasks": 0, "created_at": "", "version": ""}).encode()
    for bad in ("../evil", "/tmp/evil", "link/evil"):
        with tarfile.open(hostile, "w:gz") as archive:
            for name, data in (("retinue-backup.json", manifest), ("retinue.db", b"")):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
            link = tarfile.TarInfo("link")
            link.type, link.linkname = tarfile.SYMTYPE, str(cli.folder)
            archive.addfile(link)
            archive.addfile(tarfile.TarInfo(bad))
        said = cli.run("--json", "restore", str(hostile), code=2)
        assert json.loads(said)["error"]["code"] == "bad_file"
    (cli.folder / "text").write_text("no archive")
    cli.run("restore", "text", code=2)
    cli.run("restore", "text", "--root", "new/below/.retinue", code=2)
    assert sorted(os.listdir(cli.folder)) == ["h.tar.gz", "text"]
    assert not Path("/tmp/evil").exists()


def test_a_damaged_backup_is_refused_and_leaves_nothing(cli: Cli) -> None:
    closed_task(cli, "head -c 300000 /dev/urandom > file")
    folder = cli.folder / "elsewhere"
    folder.mkdir()
    whole = folder / "b.tar.gz"
    cli.json("backup", str(whole))
    data = whole.read_bytes()
    half = len(data) // 2
    flipped = data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :]
    other = Cli(folder)
    for content in (flipped, data[:half], data[:-4], data[:100] + bytes(50) + data[150:]):
        whole.write_bytes(content)
        said = other.json("restore", "b.tar.gz", "--root", ".retinue", code=2)
        assert said["error"]["code"] == "bad_file"
        assert "is not a backup of a root" in said["error"]["message"]
        assert os.listdir(folder) == ["b.tar.gz"]
    said = other.json("restore", "none.tar.gz", "--root", ".retinue", code=2)
    assert said["error"]["message"].endswith("No such file or directory")


def test_folders_without_end_are_left_out_of_a_backup(cli: Cli) -> None:
    script = "for i in $(seq 600); do mkdir d; cd d; done; touch deep"
    task = closed_task(cli, f"echo text > file; {script}")
    target = cli.folder.parent / f"{cli.folder.name}.tar.gz"
    report = cli.json("backup", str(target))
    assert report["skipped"] == 1
    with tarfile.open(target) as archive:
        assert f"tasks/{task}/agents/one/workspace/file" in archive.getnames()
    target.unlink()
