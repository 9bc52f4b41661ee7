"""Cgroups of children: reasons why none can be made, and removal of old ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.child.resource_limits import find_reached_cgroup_limit
from retinue.core.task_config import Limits
from retinue.runtime.cgroups import NOTE, ChildCgroups

MEMORY_AND_PROCESSES = {"RLIMIT_DATA": 64 << 20, "RLIMIT_NPROC": 20}


def machine(tmp_path: Path, *, mounted: bool = True, controllers: str = "cpu memory pids") -> str:
    """A /proc whose process is in the cgroup `/session` of a plain folder."""
    proc, top = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (top / "session").mkdir(parents=True)
    (top / "cgroup.controllers").write_text(f"{controllers}\n")
    line = f"30 20 0:5 / {top} rw - cgroup2 cgroup2 rw\n" if mounted else ""
    (proc / "self" / "mountinfo").write_text(f"20 1 0:4 / / rw - ext4 /dev/vda rw\n{line}")
    (proc / "self" / "cgroup").write_text("4:memory:/x\n0::/session\n")
    return str(proc)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def test_without_cgroup_v2_none_is_made(tmp_path: Path, root: Path) -> None:
    cgroups = ChildCgroups(root, machine(tmp_path, mounted=False))
    assert cgroups.make(Limits()) == ""
    assert cgroups.missing == "no cgroup v2 is mounted"


def test_controllers_of_cgroup_v1_are_not_taken_for_those_of_v2(tmp_path: Path, root: Path) -> None:
    cgroups = ChildCgroups(root, machine(tmp_path, controllers="hugetlb"))
    assert cgroups.make(Limits()) == ""
    assert "cgroup v1 has them" in (cgroups.missing or "")


def test_a_cgroup_that_cannot_be_divided_is_named_with_a_remedy(tmp_path: Path, root: Path) -> None:
    cgroups = ChildCgroups(root, machine(tmp_path))
    assert cgroups.make(Limits()) == ""
    assert f"{tmp_path}/cgroup/session" in (cgroups.missing or "")
    assert "systemd-run --user --scope" in (cgroups.missing or "")
    assert not (root / NOTE).exists(), "nothing was made, so nothing is noted"


def test_folders_that_an_earlier_steward_noted_are_removed(tmp_path: Path, root: Path) -> None:
    left = tmp_path / "retinue-1-2"
    (left / "77-1").mkdir(parents=True)
    (root / NOTE).write_text(f"{left}\n{tmp_path}/retinue-gone\n")
    ChildCgroups(root).sweep()
    assert not left.exists()
    assert not (root / NOTE).exists()


def test_a_folder_with_something_in_it_is_kept_and_stays_noted(tmp_path: Path, root: Path) -> None:
    left = tmp_path / "retinue-1-2"
    (left / "77-1" / "populated").mkdir(parents=True)
    (root / NOTE).write_text(f"{left}\n")
    ChildCgroups(root).sweep()
    assert left.exists()
    assert (root / NOTE).read_text() == f"{left}\n"


def test_a_folder_of_another_name_is_never_removed(tmp_path: Path, root: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (root / NOTE).write_text(f"{other}\nretinue-relative\n")
    ChildCgroups(root).sweep()
    assert other.exists()


def test_the_memory_limit_is_named_before_the_process_limit() -> None:
    said = find_reached_cgroup_limit(MEMORY_AND_PROCESSES, killed=1, forks_refused=3)
    assert said == "the kernel ended a process of it at the memory limit of 64 MB for all of them"
    said = find_reached_cgroup_limit(MEMORY_AND_PROCESSES, killed=0, forks_refused=3)
    assert said == "at the process limit of 20"
    assert find_reached_cgroup_limit(MEMORY_AND_PROCESSES, killed=0, forks_refused=0) == ""
