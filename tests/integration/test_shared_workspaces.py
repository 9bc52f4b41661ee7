"""When a workspace shares files, when it does not, and what becomes of one that no longer can."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retinue.core.contract import Permissions
from retinue.core.errors import StorageFailed
from retinue.core.join_result import Change, JoinFailed
from retinue.core.task_config import Boundary
from retinue.runtime.process_runtime import ProcessRuntime
from retinue.workspaces import overlay
from retinue.workspaces.git import git_command as git
from retinue.workspaces.git.git_command import Git
from retinue.workspaces.git.shared_checkouts import SharedCheckouts, set_aside
from retinue.workspaces.git.task_repository import TrustedRepository
from support.stands import FILES, Stand, held, run


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path)


def edit(workspace: Path) -> None:
    """As the kernel keeps it: a change, a new file, a removal, and a folder made anew."""
    (workspace / "a.txt").write_text("changed\n")
    (workspace / "new.txt").write_text("new\n")
    (workspace / "b").mkdir(exist_ok=True)
    os.mknod(workspace / "b" / "c.txt", stat.S_IFCHR, 0)


EDITED = {"a.txt": "changed\n", "new.txt": "new\n", "b/d.txt": "three\n"}


def test_a_workspace_shares_unchanged_files(stand: Stand) -> None:
    lent, below = run(stand.joining.lay_out(stand.subagent()))
    assert lent
    assert [held(each) for each in below] == [FILES]
    assert held(stand.workspace()) == {}
    assert run(stand.joining.lay_out(stand.subagent()))[1] == below  # again, with what is there
    edit(stand.workspace())
    change: Change = run(stand.joining.take_in(stand.subagent()))
    listed = stand.repository.git(
        f"--git-dir={stand.root}/tasks/t/repo.git", "ls-tree", "-r", "--name-only", change.tree
    )
    assert (change.files, sorted(change.brought)) == (3, ["a.txt", "new.txt"])
    assert set(listed.splitlines()) == set(EDITED)


def test_where_the_kernel_cannot_every_workspace_is_whole(stand: Stand) -> None:
    stand.missing = "not here"
    lent, below = run(stand.joining.lay_out(stand.subagent()))
    assert (bool(lent), below) == (True, ())
    assert held(stand.workspace()) == FILES
    assert not (stand.root / "bases").exists()


@pytest.mark.parametrize(
    "lack",
    [
        {"boundary": Boundary(mode="inherited")},
        {"boundary": Boundary(launch_prefix=("ssh", "elsewhere"))},
        {"boundary": Boundary(workspaces="whole")},
        {"permissions": Permissions(can_spawn_children=True, max_delegation_depth=1)},
    ],
)
def test_a_subagent_that_cannot_share_gets_a_whole_workspace(
    stand: Stand, lack: dict[str, Any]
) -> None:
    assert run(stand.joining.lay_out(stand.subagent(**lack)))[1] == ()
    assert held(stand.workspace()) == FILES
    assert stand.asked == 0


def test_one_that_can_no_longer_share_becomes_whole(stand: Stand) -> None:
    run(stand.joining.lay_out(stand.subagent()))
    edit(stand.workspace())
    stand.missing = "another kernel"
    assert run(stand.joining.lay_out(stand.subagent()))[1] == ()
    assert held(stand.workspace()) == EDITED
    stand.missing = None
    assert run(stand.joining.lay_out(stand.subagent()))[1] == ()  # and stays so
    successor = stand.subagent("two", continues="one")
    assert run(stand.joining.lay_out(successor))[1] == ()
    assert run(stand.joining.take_in(stand.subagent())).files == 3
    assert run(stand.joining.take_in(successor)).files == 3


def test_a_base_that_is_lost_is_there_again_before_output_is_taken(stand: Stand) -> None:
    run(stand.joining.lay_out(stand.subagent()))
    edit(stand.workspace())
    shutil.rmtree(stand.root / "bases")
    assert run(stand.joining.take_in(stand.subagent())).files == 3


def test_a_large_file_is_left_alone_where_it_is_as_it_was(stand: Stand) -> None:
    outputs = replace(stand.subagent().contract.outputs, max_file_mb=1e-6)
    subagent = stand.subagent(outputs=outputs)
    _, (below,) = run(stand.joining.lay_out(subagent))
    (stand.workspace() / "b").mkdir()
    os.setxattr(stand.workspace() / "b", "user.overlay.opaque", b"y")
    shutil.copy(below / "b/d.txt", stand.workspace() / "b")  # in a folder that was made anew
    change: Change = run(stand.joining.take_in(subagent))
    assert (change.files, change.brought) == (1, ())  # b/c.txt is gone
    (stand.workspace() / "b/d.txt").chmod(0o755)
    with pytest.raises(JoinFailed, match=r"b/d\.txt"):
        run(stand.joining.take_in(subagent))


def test_however_much_is_ignored_the_rest_is_taken(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(stand.joining.lay_out(stand.subagent()))
    (stand.workspace() / ".gitignore").write_text("/build/\n")
    (stand.workspace() / "build").mkdir()
    for number in range(100):
        (stand.workspace() / "build" / f"{number}-{'x' * 200}").touch()
    monkeypatch.setattr(git, "MAX_OUTPUT", 10_000)
    assert run(stand.joining.take_in(stand.subagent())).brought == (".gitignore",)


def test_an_incomplete_checkout_is_made_again(stand: Stand) -> None:
    run(stand.joining.lay_out(stand.subagent()))
    for missing in (None, "another kernel"):
        shutil.rmtree(stand.workspace())
        stand.missing = missing
        _, below = run(stand.joining.lay_out(stand.subagent()))
        assert held(stand.workspace()) == ({} if below else FILES)
    assert not below


@pytest.mark.parametrize("point", ["_fill", "_clear_marks", "detach_workspace"])
def test_one_that_was_left_half_whole_is_finished_before_anything_else(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    def die(*given: Any) -> None:
        raise KeyboardInterrupt

    run(stand.joining.lay_out(stand.subagent()))
    edit(stand.workspace())
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(overlay, point, die)
        run(stand.joining.make_whole(stand.subagent()))
    assert run(stand.joining.take_in(stand.subagent())).files == 3
    run(stand.joining.make_whole(stand.subagent()))
    assert held(stand.workspace()) == EDITED
    assert overlay.find_base(stand.workspace()) is None
    assert run(stand.joining.take_in(stand.subagent())).files == 3


def test_a_folder_that_its_child_locked_is_made_whole_by_one_without_privileges(
    stand: Stand,
) -> None:
    _, (below,) = run(stand.joining.lay_out(stand.subagent()))
    workspace = stand.workspace()
    edit(workspace)
    (workspace / "new").mkdir()
    (workspace / "anew").mkdir()
    os.setxattr(workspace / "anew", "user.overlay.opaque", b"y")
    shutil.copytree(below, overlay.get_fill_folder(workspace))
    (overlay.get_fill_folder(workspace) / "anew").mkdir()
    (overlay.get_fill_folder(workspace) / "anew" / "gone").touch()
    for name in ("b", "new", "anew", "."):
        (workspace / name).chmod(0)
    lesser = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    script = "import sys, pathlib; from retinue.workspaces import overlay; "
    script += "overlay.make_whole(pathlib.Path(sys.argv[1]))"
    argv = [*(lesser if os.geteuid() == 0 else []), sys.executable, "-c", script, str(workspace)]
    subprocess.run(argv, check=True)
    assert held(workspace) == EDITED
    assert not (workspace / "b" / "c.txt").exists()


def test_where_there_is_no_room_to_make_it_whole_none_is_taken(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any) -> None:
        raise StorageFailed("no space left on device")

    run(stand.joining.lay_out(stand.subagent()))
    edit(stand.workspace())
    with monkeypatch.context() as patched, pytest.raises(StorageFailed):
        patched.setattr(TrustedRepository, "write_git_folder", full)  # when all files are there
        run(stand.joining.make_whole(stand.subagent()))
    assert not overlay.get_fill_folder(stand.workspace()).exists()
    assert run(stand.joining.take_in(stand.subagent())).files == 3
    run(stand.joining.make_whole(stand.subagent()))
    assert held(stand.workspace()) == EDITED


def test_a_replaced_workspace_is_not_filled(stand: Stand, tmp_path: Path) -> None:
    run(stand.joining.lay_out(stand.subagent()))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    stand.workspace().rename(tmp_path / "aside")
    stand.workspace().symlink_to(elsewhere)
    run(stand.joining.make_whole(stand.subagent()))
    assert list(elsewhere.iterdir()) == []


def test_a_workspace_is_ready_long_before_a_worktree(stand: Stand) -> None:
    """At any size; here by far less than the benchmark asks for, so that no neighbour matters."""
    more = {f"more/{number % 20}/{number}": f"{number}\n" for number in range(1000)}
    stand.repository.write(more)
    stand.repository.commit("more")
    taken: dict[str, list[float]] = {"ours": [], "theirs": []}
    for number in range(4):
        began = time.perf_counter()
        run(stand.joining.lay_out(stand.subagent(f"s{number}")))
        between = time.perf_counter()
        stand.repository.git("worktree", "add", "-q", "--detach", f"../w{number}")
        taken["ours"].append(between - began)
        taken["theirs"].append(time.perf_counter() - between)
    assert min(taken["ours"]) < min(taken["theirs"]) / 2


@pytest.mark.parametrize(
    ("script", "layers_of_it"),
    [
        ("echo more >> a.txt; echo n > n; rm b/c.txt; chmod +x b/d.txt", 2),
        ("rm -r b; mkdir -p x/y; echo z > x/y/z", 2),
        ("rm -r b; echo file > b", 1),
        ("rm a.txt; mkdir a.txt; echo in > a.txt/in", 1),
        ("ln -s a.txt link", 1),
        ("for n in $(seq 1001); do echo $n > $n; done", 1),
    ],
)
def test_a_base_is_made_over_another_where_the_difference_is_plain(
    stand: Stand, script: str, layers_of_it: int
) -> None:
    run(stand.joining.lay_out(stand.subagent()))
    subprocess.run(["sh", "-ec", script], cwd=stand.repository.path, check=True)
    stand.repository.commit("another")
    _, below = run(stand.joining.lay_out(stand.subagent("two")))
    assert len(below) == layers_of_it
    listed = stand.repository.git("ls-tree", "-r", "--name-only", "main").splitlines()
    assert sorted(overlay.list_names(stand.workspace("two"), 5000)) == sorted(listed)
    (stand.workspace("two") / "mine").write_text("mine\n")
    assert run(stand.joining.take_in(stand.subagent("two"))).brought == ("mine",)
    run(stand.joining.make_whole(stand.subagent("two")))
    kept = {str(path.relative_to(stand.workspace("two"))): path.stat().st_mode & 0o111
            for path in stand.workspace("two").rglob("*")
            if ".git" not in path.parts and not path.is_dir()}  # fmt: skip
    assert sorted(kept) == sorted([*listed, "mine"])
    assert "chmod" not in script or kept["b/d.txt"]


def test_a_file_that_went_takes_no_folder_with_it_that_has_others(stand: Stand) -> None:
    stand.repository.write(dict.fromkeys(("x/y/gone", "x/y/left", "x/z", ":x/gone", ":x/left"), ""))
    stand.repository.commit("deep, and with a name that git could take for more")
    run(stand.joining.lay_out(stand.subagent()))
    for name in ("x/y/gone", ":x/gone"):
        (stand.repository.path / name).unlink()
    stand.repository.commit("without")
    _, below = run(stand.joining.lay_out(stand.subagent("two")))
    assert len(below) == 2
    seen = set(overlay.list_names(stand.workspace("two"), 100))
    assert seen == {*FILES, "x/y/left", "x/z", ":x/left"}


@pytest.mark.parametrize(("meanwhile", "layers_of_it"), [(True, 2), (False, 1)])
def test_a_base_is_not_set_aside_once_another_is_made_over_it(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, meanwhile: bool, layers_of_it: int
) -> None:
    run(stand.joining.lay_out(stand.subagent()))
    overlay.detach_workspace(stand.workspace())  # nobody is over it any more
    stand.repository.write({"new": ""})
    stand.repository.commit("new")
    run_git, whole = Git.run, SharedCheckouts._list_full_bases

    async def compare(git: Git, where: Any, *words: str, **more: Any) -> Any:
        if words[0] == "diff-tree":
            set_aside(stand.root)
        return await run_git(git, where, *words, **more)

    def look(bases: SharedCheckouts) -> list[Path]:
        found = whole(bases)
        set_aside(stand.root)
        return found

    monkeypatch.setattr(
        *((Git, "run", compare) if meanwhile else (SharedCheckouts, "_list_full_bases", look))
    )
    below = run(stand.joining.lay_out(stand.subagent("two")))[1]
    assert len(below) == layers_of_it
    assert set(overlay.list_names(stand.workspace("two"), 100)) == {*FILES, "new"}


def test_siblings_that_start_at_once_make_one_base(stand: Stand) -> None:
    async def at_once() -> list[Any]:
        some = [stand.subagent(name) for name in ("one", "two", "three")]
        return await asyncio.gather(*map(stand.joining.lay_out, some))

    assert len({below for _, below in run(at_once())}) == 1
    assert len(list((stand.root / "bases").iterdir())) == 1


def test_sharing_is_tried_out_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    async def tried(folder: Path) -> str | None:
        runtime = ProcessRuntime()
        try:
            return await runtime.layers_missing(folder)
        finally:
            runtime.close()

    assert run(tried(tmp_path)) is None
    assert list(tmp_path.iterdir()) == []
    assert "nowhere" in (run(tried(tmp_path / "nowhere")) or "")
