"""Disks that are full, closed or open to all: told, survived, and nothing acknowledged is lost."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from faults.tracing import TASK, traced, usable
from support.roots import Root, command, until
from support.scenarios import mounted, powerless, tell

ALONE = subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode == 0
needs_namespace = pytest.mark.skipif(not ALONE, reason="no mount namespaces here")

SMALL = 'mount -t tmpfs -o size=1m none "$folder"'
FEW_NAMES = 'mount -t tmpfs -o size=8m,nr_inodes=120 none "$folder"'
ITSELF = 'mount --bind "$folder" "$folder"'
TOP = Path(__file__).parents[2]  # which may lie in /tmp itself
EMPTY_TMP = (
    f'mount --bind "$folder" /mnt; mount --bind "{TOP}" /media; mount -t tmpfs none /tmp; '
    f'mkdir -p "$folder" "{TOP}"; mount --bind /mnt "$folder"; mount --bind /media "{TOP}"'
)


@needs_namespace
@pytest.mark.parametrize("name", ["full_disk", "full_disk_and_killed"])
def test_a_disk_that_a_child_fills_loses_nothing_and_is_named(tmp_path: Path, name: str) -> None:
    story = tell(name, tmp_path, *mounted(tmp_path, SMALL))
    assert story["refused"]["code"] == "disk_full"
    said = story["refused"]["message"]
    assert "disk is full" in said or "No space left on device" in said
    assert story["while full"]
    assert story["after"]
    filler = story["filler"]
    assert filler["answer"] == "full" or "could not be kept" in filler["error"]
    assert story["next"] == "completed"
    assert story["subagents"] == ["filler", "kept", "subagent-3"]
    assert not story["problems"]


@needs_namespace
def test_a_child_that_fills_the_disk_can_be_stopped(tmp_path: Path) -> None:
    story = tell("full_disk_and_cancelled", tmp_path, *mounted(tmp_path, SMALL))
    assert [story[name]["code"] for name in ("one", "other")] == ["disk_full", "disk_full"]
    assert "one is being stopped, but that cannot be recorded" in story["one"]["message"]
    assert story["ends"] == ["cancelled", "cancelled"]
    assert not story["problems"]


@needs_namespace
def test_a_disk_without_names_left_is_told_before_anything_is_spawned(tmp_path: Path) -> None:
    story = tell("few_inodes", tmp_path, *mounted(tmp_path, FEW_NAMES))
    assert story["refused"]["code"] == "disk_full"
    assert story["after"]
    assert story["next"] == "completed"
    assert not story["problems"]


@needs_namespace
def test_a_root_that_is_read_only_is_refused_before_anything_is_spawned(tmp_path: Path) -> None:
    story = tell("read_only", tmp_path, *mounted(tmp_path, ITSELF))
    assert "Read-only file system" in story["refused"]["message"]
    assert {"root", "models"} <= set(story["ill"])
    assert story["same"]
    assert story["after"]
    assert story["next"] == "completed"
    assert not story["problems"]


def test_a_database_or_log_that_may_not_be_written_is_refused_before_anything_is_spawned(
    tmp_path: Path,
) -> None:
    story = tell("locked", tmp_path, *powerless())
    for refused, name in ((story["log"], "events.jsonl"), (story["refused"], "retinue.db")):
        assert (refused["kind"], refused["code"]) == ("StorageFailed", "storage_failed")
        assert name in refused["message"]
        assert "Permission denied" in refused["message"]
    assert story["same"]
    assert story["after"]
    assert story["next"] == "completed"
    assert not story["problems"]


def test_folders_that_a_child_locked_are_read_tried_again_and_swept(tmp_path: Path) -> None:
    story = tell("locked_out", tmp_path, *powerless())
    assert (story["killed"]["status"], story["killed"]["answer"].strip()) == (
        "completed_but_timeout",
        "precious",
    )
    assert (story["again"]["status"], story["again"]["answer"]) == ("completed", "so")
    assert story["first attempt"] == "x\n"
    assert story["empty"]["status"] == "completed"
    assert story["gc"] == [["full", "it contains files that were not merged anywhere"]]
    assert (story["gc --force"], story["left"]) == ([], [])
    assert not story["problems"]


@needs_namespace
def test_with_an_open_umask_no_other_user_can_read_or_write_anything(tmp_path: Path) -> None:
    story = tell("open_umask", tmp_path, *mounted(tmp_path, EMPTY_TMP))
    modes: dict[str, str] = story["modes"]
    assert modes["."] == "folder 0700"
    assert modes["steward.sock"] == "file 0600"
    given = ("contract.json", "brief.txt", "/files/given")
    for path, mode in modes.items():
        kind, bits = mode.split()
        if path.endswith(given):
            assert bits == "0444", path
        elif any(
            f"/{part}/" in f"{path}/" for part in ("context", "inbox", "workspace", "full_logs")
        ):
            assert not int(bits, 8) & 0o022, path  # lies in a folder of ours, which is closed
        else:
            assert bits == ("0700" if kind == "folder" else "0600"), path
    assert story["new"] == []


@pytest.mark.requirement("R24", "R32", "R237")
@pytest.mark.skipif(not usable(), reason="strace may not trace here")
def test_on_a_slow_disk_the_files_of_a_task_follow_at_once_all_the_same(tmp_path: Path) -> None:
    root = Root(tmp_path / ".retinue")
    with traced(root.path, "-o/dev/null", "-einject=fsync:delay_enter=25000"):
        root.create_task(task_id=TASK)
        for number, name in enumerate(["a", "b"], start=1):
            root.run(TASK, command("echo", "ok", subagent_id=name))
            until(lambda count=number: shown(root.task_folder(TASK)) == (count, count), 1.0)
        root.stop()


def shown(folder: Path) -> tuple[int, int]:
    """How many are completed by the roster, and how many are counted."""
    roster = YAML(typ="safe").load(folder / "task.yaml")["roster"]
    metrics = json.loads((folder / "metrics_summary.json").read_text())
    completed = sum(each["state"] == "completed" for each in roster)
    return completed, metrics["subagents"]["total_subagents"]
