"""What closed tasks leave behind is removed while everyone else goes on."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from retinue.client.blocking_client import Client
from retinue.core.errors import RetinueError
from retinue.runtime import probes
from retinue.workspaces.git.git_command import Git
from retinue.workspaces.git.task_repository import TrustedRepository
from retinue.workspaces.owned_files import is_stale
from support import repositories
from support.repositories import ISOLATED, Repository, carry_out, plan, start, step
from support.roots import Root, at_once, held, rounds, sh, until

repository = repositories.repository
FOLDERS, EACH = 20, 1000
FILL = f"for d in $(seq {FOLDERS}); do mkdir $d; (cd $d; touch $(seq {EACH})); done; touch first"


@pytest.fixture
def planned(repository: Repository) -> Iterator[Root]:
    with held(repository.path / ".retinue") as root:
        yield root


def filled(root: Root) -> tuple[str, Path]:
    """A closed task, and a workspace in it that takes a while to remove; first its one file."""
    task = root.create_task()
    (result,) = root.run(task, sh(f"{FILL}; echo ok", subagent_id="large"))
    root.call("task.close", task=task)
    return task, Path(result["workspace"])


def test_others_are_answered_while_a_large_workspace_is_removed(fresh: Root) -> None:
    task, workspace = filled(fresh)
    collecting = threading.Thread(target=lambda: fresh.call("gc", force=True))
    client = fresh.client()
    collecting.start()
    until(lambda: not (workspace / "first").exists())
    client.call("steward.status")
    refused = fresh.refusal("subagent.continue", task=task, subagent="large", message="more")
    assert workspace.exists(), "nobody was answered before it was gone"
    collecting.join()
    assert refused.code == "task_closed"
    assert not workspace.exists()
    fresh.sound()


def test_two_that_remove_at_once_remove_everything_once(fresh: Root) -> None:
    _, workspace = filled(fresh)
    ends = at_once(*[partial(fresh.client().call, "gc", force=True) for _ in range(2)])
    assert [end["kept"] for end in ends] == [[], []]
    gone = [each["path"] for end in ends for each in end["removed"]]
    assert gone.count(str(workspace)) == 1
    assert not workspace.exists()


def test_of_several_that_delete_a_task_at_once_one_deletes_it(fresh: Root) -> None:
    task, _ = filled(fresh)
    delete = [partial(fresh.client().call, "task.delete", task=task, force=True) for _ in range(3)]
    ends = at_once(*delete)
    refused = [end for end in ends if isinstance(end, RetinueError)]
    (deleted,) = [end for end in ends if not isinstance(end, RetinueError)]
    assert {error.code for error in refused} == {"unknown_task"}
    assert deleted["subagents"] == 1 and deleted["bytes"] > 0


@pytest.mark.parametrize("tasks", [True, False], ids=["whole tasks", "workspaces"])
def test_a_task_that_got_the_id_of_a_deleted_one_meanwhile_stays(fresh: Root, tasks: bool) -> None:
    old = fresh.create_task(task_id="same")
    fresh.run(old, sh("echo ok", subagent_id="old"))
    fresh.call("task.close", task=old)
    _, workspace = filled(fresh)  # newer: it is removed first
    clients = [fresh.client() for _ in range(2)]
    collect = partial(fresh.client().call, "gc", force=True, tasks=tasks)
    removing = threading.Thread(target=partial(clients[0].call, "gc", force=True))
    removing.start()  # holds the turn for a while
    until(lambda: not (workspace / "first").exists())
    deleting = threading.Thread(
        target=partial(clients[1].call, "task.delete", task="same", force=True)
    )
    deleting.start()  # next in turn
    collecting = threading.Thread(target=collect)
    collecting.start()
    until(lambda: all(each["task_id"] != "same" for each in fresh.call("task.list")))
    until(lambda: not fresh.task_folder("same").exists())
    fresh.create_task(task_id="same")
    wait = "while ! [ -e go ]; do sleep 0.02; done; cat go"
    fresh.spawn("same", sh(wait, subagent_id="new"))
    for thread in (removing, deleting, collecting):
        thread.join()
    (fresh.folder("same", "new") / "workspace" / "go").write_text("kept")
    fresh.call("subagent.wait_all", task="same", timeout_seconds=20)
    assert fresh.call("subagent.result", task="same", subagent="new")["answer"] == "kept"
    fresh.sound()


def test_one_that_goes_while_it_removes_is_out_of_the_way_of_the_next(fresh: Root) -> None:
    _, workspace = filled(fresh)
    client = fresh.client()
    collecting = threading.Thread(target=partial(_interrupted, client))
    collecting.start()
    until(lambda: not (workspace / "first").exists())
    client.shut_down()
    end = fresh.call("gc", force=True)
    collecting.join()
    assert end["kept"] == []
    assert not workspace.exists()


def _interrupted(client: Client) -> None:
    with suppress(RetinueError):
        client.call("gc", force=True)


def test_leftovers_of_a_killed_steward_are_removed_once_they_are_unused(
    repository: Repository, planned: Root
) -> None:
    task = carry_out(planned, plan(step("one", "echo 1 > one; echo x")))["task_id"]
    left = left_behind(planned, task)
    left.append(planned.folder(task, "one") / ".workspace.new")
    left[-1].mkdir()
    planned.kill()
    elsewhere = repository.path / "tmp_elsewhere"
    elsewhere.touch()
    pack = planned.task_folder(task) / "repo.git" / "objects" / "pack"
    pack.rename(pack.with_name("unpacked"))
    pack.symlink_to(repository.path)
    index = planned.task_folder(task) / "repo.git" / "indexes" / "one"
    new = Path(tempfile.mkdtemp(prefix=probes.FOLDER_PREFIX, dir=planned.path))
    removed = [Path(each["path"]) for each in planned.call("gc")["removed"]]
    assert set(left) <= set(removed)
    assert not any(place.exists() for place in left)
    assert index.exists() and elsewhere.exists()
    assert new.is_dir() and new not in removed  # it may be in use


def test_what_an_open_task_works_with_stays(repository: Repository, planned: Root) -> None:
    task = start(planned, plan(step("one", "until [ -e ../go ]; do sleep 0.02; done; echo x")))
    until(lambda: (planned.folder(task, "one") / "workspace" / "a.txt").exists())
    left = left_behind(planned, task)
    planned.call("gc", force=True)
    assert [place.exists() for place in left] == [place.name[0] != "." for place in left]
    (planned.folder(task, "one") / "go").touch()
    assert planned.call("run.wait", task=task)["status"] == "completed"


def test_runs_that_begin_meanwhile_find_what_they_start_from(
    repository: Repository, planned: Root
) -> None:
    over, faults = threading.Event(), list[Exception]()

    def collect() -> None:
        while not over.is_set():
            try:
                planned.call("gc")
            except RetinueError as error:
                faults.append(error)

    collecting = threading.Thread(target=collect)
    collecting.start()
    try:
        for number in range(rounds(5)):
            repository.write({f"{number}/{name}": "x\n" for name in range(200)})
            repository.commit(f"{number}")
            text = plan(step("one", f"ls {number} | wc -l; echo {number} > own"))
            end = carry_out(planned, text, config=ISOLATED)
            assert (end["status"], end["results"][0]["answer"]) == ("completed", "200")
    finally:
        over.set()
        collecting.join()
    assert faults == []


def test_a_missing_folder_is_not_stale(tmp_path: Path) -> None:
    assert not is_stale(tmp_path / ".base.new")


def left_behind(root: Root, task: str) -> list[Path]:
    """What is there for a moment while work is taken in, or something tried; long ago."""
    ours = TrustedRepository(Git(), root.task_folder(task) / "repo.git")
    with ours.copy_index(ours.get_index("one")) as index:
        pass
    index.touch()
    bases, hashed, sparse = root.path / "bases", ours.objects / "ab", ours.folder / "sparse"
    for folder in (bases, hashed, sparse):
        folder.mkdir(exist_ok=True)
    left = [
        index,
        Path(tempfile.mkdtemp(dir=ours.folder)),
        Path(tempfile.mkdtemp(prefix="tmp_objdir-bulk-fsync-", dir=ours.objects)),
        Path(tempfile.mkdtemp(prefix="tmp_obj_", dir=hashed)),
        Path(tempfile.mkdtemp(dir=sparse)),
        Path(tempfile.mkdtemp(prefix=probes.FOLDER_PREFIX, dir=root.path)),
        Path(tempfile.mkdtemp(prefix=".", suffix=".gone", dir=bases)),
    ]
    for place in left:
        os.utime(place, (0, 0))
    return left
