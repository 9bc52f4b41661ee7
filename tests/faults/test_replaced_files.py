"""Something else where a file of ours was: nobody waits on it, and everyone is told."""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import retinue
from retinue.core.errors import StewardUnavailable, StorageFailed
from retinue.files import NotPlainFile, append, append_once, open_plain, read_plain
from retinue.settings import read_settings
from retinue.steward import maintenance
from retinue.steward.app import open_app
from retinue.steward.verbs.params import Params
from retinue.steward.verbs.subagent_verbs import spawn_subagents
from retinue.steward.verbs.task_verbs import create_task
from retinue.store.task_yaml import replace_text
from retinue.trust import make_root
from retinue.workspaces.agent_folder import read_own
from support.roots import CONFIG as LIMITED
from support.roots import Root, held, sh


def socket_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


CONFIG = LIMITED.format(limit=2)
STRANGERS: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a folder": os.mkdir,
    "a link": lambda path: path.symlink_to("/dev/zero"),
    "a socket": socket_at,
}
IN_PLACE = {
    "a pipe": "mkfifo events.jsonl",
    "a folder": "mkdir events.jsonl",
    "a link": "ln -s /dev/zero events.jsonl",
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_only_a_regular_file_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's name must be short
    path = Path("file")
    STRANGERS[kind](path)
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_CREAT):
        with pytest.raises(NotPlainFile):
            open_plain(path, flags)
    with pytest.raises(NotPlainFile):
        read_plain(path)
    for way in (append, append_once):
        with pytest.raises(StorageFailed, match="file is not a regular file") as refused:
            way(path, b"x")
        assert refused.value.code == "not_a_file"
    assert read_own(path) == b""


@pytest.mark.parametrize("kind", ["a pipe", "a link", "a socket"])
def test_a_new_text_replaces_anything_at_its_temporary_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    STRANGERS[kind](Path(".task.yaml.new"))
    assert replace_text(Path("task.yaml"), "id: x\n", None)
    assert {path.name: path.read_text() for path in Path().iterdir()} == {"task.yaml": "id: x\n"}


@pytest.mark.parametrize("kind", IN_PLACE)
def test_a_log_that_a_child_replaced_blocks_no_caller_and_is_restored(
    fresh: Root, kind: str
) -> None:
    task, other = fresh.create_task(), fresh.create_task()
    folder = fresh.task_folder(task)
    script = f"cd {folder}; mv events.jsonl old; {IN_PLACE[kind]}; echo done"
    (result,) = fresh.run(task, sh(script))
    assert (result["status"], result["answer"]) == ("completed", "done")
    for _ in ("this steward", "the next"):
        assert fresh.rows(task)["subagent-1"]["status"] == "completed"
        refusal = fresh.refusal("subagent.spawn", task=task, tasks=[sh("echo more")])
        assert (refusal.code, str(folder / "events.jsonl") in refusal.message) == (
            "not_a_file",
            True,
        )
        (problem,) = fresh.call("verify")["problems"]
        assert (problem["kind"], problem["message"]) == ("log_replaced", "not a regular file")
        assert fresh.run(other, sh("echo fine"))[0]["answer"] == "fine"
        fresh.kill()
    (folder / "events.jsonl").rename(folder / "stranger")
    fresh.sound()
    assert fresh.events(task)[-1]["type"] == "agent.subagent_closed"
    assert fresh.run(task, sh("echo more"))[0]["answer"] == "more"


@pytest.mark.parametrize("kind", IN_PLACE)
def test_a_rebuild_puts_what_replaced_a_log_aside(fresh: Root, kind: str) -> None:
    task = fresh.create_task()
    fresh.run(task, sh("echo done"))
    fresh.stop()
    log = fresh.task_folder(task) / "events.jsonl"
    before = log.read_bytes()
    log.unlink()
    STRANGERS[kind](log)
    report = maintenance.rebuild_root(fresh.path)
    assert (report["ok"], log.read_bytes()) == (True, before)
    assert [path for path in report["kept"] if Path(path).parent == log.parent]
    fresh.sound()


SPOILT: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (lambda path: None, "file_missing"),
    "empty": (Path.touch, "bad_yaml"),
    "a pipe": (os.mkfifo, "not_a_file"),
    "a folder": (os.mkdir, "not_a_file"),
    "not YAML": (lambda path: path.write_text(": [ {") and None, "bad_yaml"),
}


@pytest.mark.parametrize("kind", SPOILT)
def test_a_configuration_that_cannot_be_read_is_named_by_verify(root: Root, kind: str) -> None:
    task = root.create_task()
    root.run(task, sh("echo done"))
    path = root.task_folder(task) / "task.yaml"
    aside = path.rename(path.with_name("aside"))
    spoil, code = SPOILT[kind]
    spoil(path)
    (problem,) = root.call("verify", task=task)["problems"]
    assert (problem["kind"], problem["where"]) == (code, str(path))
    path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
    aside.rename(path)
    root.sound()


def test_what_could_not_be_shown_is_shown_with_what_comes_next(tmp_path: Path) -> None:
    complaints: list[str] = []

    async def story() -> str:
        app = open_app(read_settings(tmp_path / ".retinue", {}), complaints.append)
        try:
            task = (await create_task(app, Params({"title": "t", "config_text": CONFIG})))[
                "task_id"
            ]
            status = app.folders.get_folder(task) / "status.json"
            status.mkdir()
            for name in ("one", "two"):
                brief = sh("echo done", subagent_id=name)
                await spawn_subagents(app, Params({"task": task, "tasks": [brief], "wait": True}))
                app.projector.flush()
                if name == "one":
                    status.rmdir()
            return (app.folders.get_folder(task) / "task.yaml").read_text()
        finally:
            await app.close()

    roster = asyncio.run(story())
    assert "status.json" in complaints[0]
    assert [name for name in ("one", "two") if f'instance: "{name}"' in roster] == ["one", "two"]


def test_a_roster_that_could_not_be_written_is_not_said_to_be(tmp_path: Path) -> None:
    complaints: list[str] = []

    async def story() -> tuple[int, int]:
        app = open_app(read_settings(tmp_path / ".retinue", {}), complaints.append)
        try:
            made = await create_task(app, Params({"title": "t", "config_text": CONFIG}))
            folder = app.folders.get_folder(made["task_id"])
            app.projector.flush()
            (folder / ".task.yaml.new").mkdir()
            await app.tasks.close(made["task_id"], by="user")
            app.projector.flush()
            shown = json.loads((folder / "status.json").read_text())["last_seq"]
            return shown, app.records.get_task(made["task_id"]).last_seq
        finally:
            await app.close()

    shown, last = asyncio.run(story())
    assert "task.yaml" in complaints[0] and shown < last


def test_the_steward_of_a_removed_root_leaves_the_next_one_its_sockets(fresh: Root) -> None:
    old = fresh.pid
    fresh.call("model.list")  # which opens the gateway
    shutil.rmtree(fresh.path)
    with held(fresh.path) as anew:
        holder = anew.pid
        assert holder != old
        anew.call("model.list")
        ended = os.pidfd_open(old)
        os.kill(old, signal.SIGTERM)
        assert select.select([ended], [], [], 20)[0], "it goes on"
        os.close(ended)
        anew.create_task()
        anew.release()
        assert anew.pid == holder
        assert (anew.path / "gateway.sock").is_socket()
        anew.sound()


def test_a_root_stays_locked_after_its_lock_file_was_removed(fresh: Root) -> None:
    task, pid, lock = fresh.create_task(), fresh.pid, fresh.path / "steward.lock"
    held_by = lock.read_bytes()
    lock.unlink()

    async def hold_too() -> None:
        async with retinue.open(fresh.path):
            pytest.fail("two hold the root")

    with pytest.raises(StewardUnavailable) as refused:
        asyncio.run(hold_too())
    assert refused.value.code == "root_held"
    lock.write_bytes(held_by)
    (result,) = fresh.run(task, sh("echo ok"))
    assert (result["answer"], fresh.pid) == ("ok", pid)


@pytest.mark.parametrize(("name", "kind"), [("steward.sock", "a folder"), ("desk", "a pipe")])
def test_what_keeps_a_steward_from_its_door_is_named(fresh: Root, name: str, kind: str) -> None:
    make_root(fresh.path, os.environ)
    place = fresh.path / name
    STRANGERS[kind](place)
    refused = fresh.refusal("task.create", title="t")
    assert isinstance(refused, StorageFailed)
    assert f"{name}: " in refused.message and "errno" in refused.message
    place.rmdir() if place.is_dir() else place.unlink()
    fresh.create_task()
