"""Walks over trees that a child wrote."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from retinue.workspaces.child_files import TreeWalk, open_child_folder
from retinue.workspaces.owned_files import remove_tree


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a tree with three levels, and a link to a folder beside it."""
    top = tmp_path / "top"
    (top / "a/b").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").touch()
    for name in ("one", "a/two", "a/b/three"):
        (top / name).touch()
    (top / "z").symlink_to(tmp_path / "outside")
    return top


def list_paths(walk: TreeWalk) -> list[str]:
    return [folder.path + entry.name for folder in walk for entry in folder.entries]


def test_links_are_listed_and_not_followed(tree: Path) -> None:
    assert list_paths(TreeWalk(tree)) == ["a", "one", "z", "a/b", "a/two", "a/b/three"]


def test_a_start_behind_a_link_is_not_walked(tree: Path) -> None:
    faults: list[str] = []
    walk = TreeWalk(tree, ["z", "a/b"], on_error=lambda path, _: faults.append(path))
    assert list_paths(walk) == ["a/b/three"]
    assert faults == ["z/"]


@pytest.mark.parametrize("name", ["z", "missing"])
def test_a_top_that_is_a_link_or_missing_is_not_walked(tree: Path, name: str) -> None:
    faults: list[str] = []
    assert not list_paths(TreeWalk(tree / name, on_error=lambda path, _: faults.append(path)))
    assert faults == [""]
    with pytest.raises(OSError), open_child_folder(tree / name, []):
        pass


def test_a_folder_that_becomes_a_link_during_the_walk_is_not_entered(tree: Path) -> None:
    seen: list[str] = []
    for folder in TreeWalk(tree):
        seen += [entry.name for entry in folder.entries]
        if not folder.path:
            (tree / "a").rename(tree / "moved")
            (tree / "a").symlink_to(tree.parent / "outside")
    assert seen == ["a", "one", "z"]


def test_a_limit_stops_the_walk_and_is_reported(tree: Path) -> None:
    walk = TreeWalk(tree, most=4, breadth_first=True)
    assert list_paths(walk)[:3] == ["a", "one", "z"]
    assert not walk.complete
    whole = TreeWalk(tree, most=6)
    assert len(list_paths(whole)) == 6
    assert whole.complete


def test_the_caller_chooses_the_folders_to_enter(tree: Path) -> None:
    seen: list[str] = []
    for folder in TreeWalk(tree):
        seen.append(folder.path)
        folder.enter[:] = [name for name in folder.enter if name != "b"]
    assert seen == ["", "a/"]


def test_a_deep_tree_needs_few_descriptors_and_ends_where_no_path_can_name_it(
    tmp_path: Path,
) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("folder", dir_fd=here)
        above = here
        here = os.open("folder", os.O_RDONLY, dir_fd=above)
        os.close(above)
    os.close(here)
    faults: list[int | None] = []
    before = len(os.listdir("/proc/self/fd"))
    walk = TreeWalk(tmp_path, on_error=lambda _, fault: faults.append(fault.errno))
    held = [len(os.listdir("/proc/self/fd")) for _ in walk]
    remove_tree(tmp_path)  # which pytest could not
    assert max(held) <= before + 4
    assert (len(held), faults) == (4096 // len("folder/") + 1, [errno.ENAMETOOLONG])


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_a_locked_folder_is_unlocked_on_request(tree: Path) -> None:
    (tree / "a").chmod(0)
    assert len(list_paths(TreeWalk(tree))) == 3
    assert len(list_paths(TreeWalk(tree, unlocking=True))) == 6


def test_a_walk_without_descriptors_leaves_none_open(tree: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = os.listdir("/proc/self/fd")
    lowest = os.dup(0)
    os.close(lowest)
    faults: list[int | None] = []
    # One descriptor is free: the top can be opened, and nothing else.
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, hard))
    try:
        walk = TreeWalk(tree, on_error=lambda _, fault: faults.append(fault.errno))
        assert list_paths(walk) == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert faults == [errno.EMFILE]
    assert os.listdir("/proc/self/fd") == before
