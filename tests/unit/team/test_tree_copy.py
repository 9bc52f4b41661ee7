"""Copying of trees that change or are partly unreadable."""

from __future__ import annotations

import os
import shutil
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

from retinue.core.ids import MemberId
from retinue.team.member_dirs import GIT, give_git, prepare_home, sync_folder
from retinue.team.testimony_writer import CUT, TestimonyWriter, copy_snapshot
from retinue.team.tree_copy import MissingFiles, copy, walk
from retinue.workspaces.child_files import read_testimony


def put(path: Path, text: str, at: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if at is not None:
        os.utime(path, (at, at))
    return path


def deep(top: Path) -> None:
    """Create a path that is too long for any system call."""
    here = os.open(top, os.O_RDONLY)
    for _ in range(500):
        os.mkdir("d" * 10, dir_fd=here)
        below = os.open("d" * 10, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def test_a_file_of_the_same_size_and_time_is_compared_by_its_contents(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    put(source / "out", "AAAA", at=0)
    put(source / "same", "CCCC", at=0)
    sync_folder(source, target)
    kept = (target / "same").stat().st_ino
    put(source / "out", "BBBB", at=0)
    assert not sync_folder(source, target)
    assert (target / "out").read_text() == "BBBB"
    assert (target / "same").stat().st_ino == kept, "what is the same is not touched"


def test_a_clone_is_copied_except_for_unreadable_files(tmp_path: Path) -> None:
    workspace, home = tmp_path / "workspace", tmp_path / "home"
    put(workspace / GIT / "HEAD", "ref: refs/heads/main")
    put(workspace / GIT / "objects" / "ab" / "cd", "blob")
    (workspace / GIT / "link").symlink_to("HEAD")
    folder = os.open(workspace / GIT, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as monitor:
        # The path of the folder itself may be too long for a socket.
        monitor.bind(f"/proc/self/fd/{folder}/monitor.ipc")
    os.close(folder)
    os.mkfifo(workspace / GIT / "pipe")
    assert not give_git(workspace, home)
    assert (home / GIT / "objects" / "ab" / "cd").read_text() == "blob"
    assert os.readlink(home / GIT / "link") == "HEAD"
    assert not (home / GIT / "pipe").exists()
    deep(workspace / GIT)
    assert "File name too long" in str(give_git(workspace, tmp_path / "other"))
    assert (tmp_path / "other" / GIT / "HEAD").read_text() == "ref: refs/heads/main"


def test_unreadable_files_are_named_and_the_rest_is_copied(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    put(source / "a", "new")
    put(source / "z", "new")
    deep(source)
    put(target / "z", "of another time")
    put(target / "gone", "of another time")
    lacking = sync_folder(source, target)
    assert (target / "a").read_text() == (target / "z").read_text() == "new"
    assert not (target / "gone").exists()
    assert "File name too long" in str(lacking)


def test_the_teams_own_paths_are_neither_replaced_nor_removed(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    put(source / "temp", "a file of that name")
    put(target / "temp" / "x", "the team's")
    put(target / "kept", "never given")
    lacking = sync_folder(source, target, apart=[target / "temp", target / "kept"])
    assert (target / "temp" / "x").read_text() == "the team's"
    assert (target / "kept").exists()
    assert str(lacking) == "temp (the team itself uses that name)"


def test_a_file_that_a_member_removed_does_not_come_back(tmp_path: Path) -> None:
    workspace, home, making = tmp_path, tmp_path / "one", tmp_path / "temp" / "one"
    apart = [home, workspace / "temp"]
    for name in ("a", "inner/.git/HEAD", "inner/b"):
        put(workspace / name, "")
    making.parent.mkdir()
    assert not prepare_home(workspace, home, making=making, apart=apart, anew=False)
    shutil.rmtree(home / "inner")
    put(workspace / "new" / "c", "")
    assert not prepare_home(workspace, home, making=making, apart=apart, anew=False)
    assert {str(path.relative_to(home)) for path in home.rglob("*")} == {"a", "new", "new/c"}


def test_a_home_is_made_even_if_its_file_list_cannot_be_written(tmp_path: Path) -> None:
    workspace, home, making = tmp_path, tmp_path / "one", tmp_path / "temp" / "one"
    put(workspace / "there before", "")
    (workspace / "temp" / ".one").mkdir(parents=True)  # makes the write fail
    apart = [home, workspace / "temp"]
    lacking = prepare_home(workspace, home, making=making, apart=apart, anew=False)
    assert "Is a directory" in str(lacking)
    put(home / "made", "")
    sync_folder(home, workspace, apart=[*apart, *lacking.paths])
    assert {"there before", "made"} <= {path.name for path in workspace.iterdir()}


def test_a_file_that_vanishes_during_the_copy_is_not_missing(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in "abc":
        put(source / name, name)
    lacking = MissingFiles(source)
    for path, _ in walk(source, lacking):
        if path.name == "b":
            path.unlink()
        with lacking.collect_errors(path):
            copy(path, tmp_path / path.name)
    assert not lacking and [(tmp_path / name).exists() for name in "abc"] == [True, False, True]


def test_a_folder_that_vanishes_during_the_copy_is_not_missing(tmp_path: Path) -> None:
    put(tmp_path / "d" / "x", "x")
    lacking, found = MissingFiles(tmp_path), walk
    put(tmp_path / "a", "a")
    for path, _ in found(tmp_path, lacking):
        assert path.name == "a"
        (tmp_path / "d" / "x").unlink()
        (tmp_path / "d").rmdir()
    assert not lacking


def test_an_incomplete_snapshot_says_so(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    put(source / "a", "x")
    put(source / ".git" / "HEAD", "x")
    (source / "out").symlink_to("/")
    os.mkfifo(source / "pipe")
    deep(source)
    assert "File name too long" in str(copy_snapshot(source, target))
    assert sorted(os.listdir(target)) == [CUT, "a", "out"] and (target / "out").is_symlink()
    assert "File name too long" in (target / CUT).read_text()


def test_few_missing_files_are_named_and_long_names_are_cut(tmp_path: Path) -> None:
    lacking = MissingFiles(tmp_path)
    for number in range(20):
        with lacking.collect_errors(tmp_path / f"{number:03}\x1b{'n' * 300}"):
            raise PermissionError(13, "Permission denied")
    words = str(lacking)
    assert words.isprintable() and words.endswith("and 15 more") and len(words) < 600


def test_a_clock_that_steps_back_leaves_the_newest_answer_the_newest(tmp_path: Path) -> None:
    logs, home, member = tmp_path / "logs", tmp_path / "home", MemberId("m")
    logs.mkdir()
    home.mkdir()
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    times = iter([begun, begun - timedelta(seconds=30), begun, begun + timedelta(seconds=1)])
    witness = TestimonyWriter(logs, [member], now=lambda: next(times))
    texts = ("first", "second", "third", "fourth")
    for text in texts:
        witness.keep_answer(member, "agent1.1", text, home)
    witness.close()
    put(logs / "status.json", '{"agents": {"m": {}}}')
    assert read_testimony(logs)[1] == {member: "fourth"}
    folders = sorted((logs / member).iterdir())
    assert [(each / "answer.txt").read_text() for each in folders] == list(texts)
