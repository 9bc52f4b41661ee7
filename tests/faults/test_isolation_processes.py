"""Who an isolated child is, whose processes it can touch, and what stays when it is gone."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retinue.runtime.fork_server_client import PRELUDE, TEAMS
from support.reader import Reader
from support.roots import Root, rounds, sh, until
from support.scenes import SOURCE, USERS, Attack, Scene, needs_python, package, staged
from support.traces import is_over, processes_that_mention

pytestmark = needs_python

PRIVATE_KB = 3 * 1024
CHILDREN = rounds(100)
LANGUAGE = ("git", "python3", "python", "bwrap", "sh", "cat", "setpriv", "unshare", "retinue")
MODULES = ("sitecustomize.py", "usercustomize.py", "conftest.py", "json.py", "click.py", "a.pth")


@pytest.fixture(scope="module")
def ran(scene: Scene) -> Path:
    """Where whatever was planted would leave its name, if anybody ever ran it."""
    folder = scene.place / "ran"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


@pytest.fixture(scope="module")
def attack(scene: Scene, ran: Path) -> Iterator[Attack]:
    task = scene.task()
    (sibling,) = scene.root.spawn(task, sh("sleep 900", timeout_seconds=600))
    (init,) = pids(scene.root, task, sibling)
    planted = {name: f"#!/bin/sh\ntouch {ran}/{name}\n" for name in LANGUAGE}
    planted |= {name: f"import pathlib; pathlib.Path('{ran}/{name}').touch()" for name in MODULES}
    targets = {
        "processes": {"steward": scene.root.pid, "sibling": init, "us": os.getpid()},
        "planted": planted | {".envrc": f"touch {ran}/envrc\n"},
    }
    yield scene.attack(task, "looking", "prying", "planting", targets=targets)
    scene.root.call("subagent.cancel", task=task, subagent=sibling, kill=True)


def pids(root: Root, task: str, *names: str) -> list[int]:
    """The first processes of the subagents' attempts."""
    reader = Reader(root.path)
    return [row["pid"] for name in names for row in reader.attempts(task, name)]


def fork_server(steward: int) -> int:
    """The one that children of this steward are cloned from."""
    (found,) = [
        int(name)
        for name in os.listdir("/proc")
        if name.isdigit()
        and parent(int(name)) == steward
        and b"retinue-forkserver" in Path("/proc", name, "cmdline").read_bytes()
        and not processes_below(int(name))
        and leads_no_namespace(int(name))
    ]
    return found


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return -1


def processes_below(pid: int) -> list[int]:
    everyone = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [each for each in everyone if parent(each) == pid]


def leads_no_namespace(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return len(status.partition("NSpid:")[2].split("\n")[0].split()) == 1


# -- who it is


@pytest.mark.requirement("R107")
def test_it_has_no_capability_and_no_way_to_one(attack: Attack, scene: Scene) -> None:
    status = attack.value("status")
    held = {name: status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
    assert {int(value, 16) for value in held.values()} == {0}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    users, groups = (set(status[name].split()) for name in ("Uid", "Gid"))
    assert len(users) == len(groups) == 1
    assert (users == {str(scene.who.uid)}) is (scene.who.uid != 0)
    assert not {"0"} & (users | groups | set(status["Groups"].split()))


def test_it_holds_nothing_but_three_streams(attack: Attack) -> None:
    assert attack.value("descriptors") == [0, 1, 2]
    assert attack.value("standard input") == ""
    assert attack.value("terminal of the session") == 0
    assert attack.error("terminal") in ("ENXIO", "ENOENT", "EACCES")
    assert not attack.worked("push input")
    assert attack.value("session") is True
    assert attack.value("core") == [1, 1], "with 0, the machine's crash handler would run"


def test_it_can_open_its_output_by_name(scene: Scene) -> None:
    script = "echo said > /dev/stdout; echo more | tee /dev/stderr; echo $? > /proc/self/fd/2"
    (result,) = scene.root.run(scene.task(), sh(script))
    assert (result["status"], result["answer"]) == ("completed", "said\nmore")
    errors = Path(result["workspace"]).parent / "runtime" / "stderr.log"
    assert errors.read_text() == "more\n0\n"


def test_its_surroundings_are_its_own(attack: Attack) -> None:
    assert attack.value("host name") == "retinue"
    assert attack.value("umask") == 0o022
    assert attack.value("working folder") == attack.result["workspace"]
    assert attack.value("shared memory") == []


# -- others' processes


@pytest.mark.requirement("R78")
def test_no_other_process_can_be_signalled_traced_or_read(attack: Attack) -> None:
    verbs = ("signal ", "hold ", "trace ", "read memory", "renice ", "pin ", "limit ", "stop ")
    assert not attack.worked(*verbs, "/proc/")


def test_it_sees_its_own_processes_only(attack: Attack) -> None:
    seen = [int(each) for each in attack.value("processes")]
    assert max(seen) < 10
    assert 1 not in seen, "its init is not its to look at"


# -- what it leaves


def test_no_file_it_leaves_is_setuid_or_owned_by_another_user(attack: Attack, scene: Scene) -> None:
    bits = ("chmod ", "open ", "mknod ", "fchmodat2 ", "openat2", "disk", "memory")
    assert not attack.worked(*bits, "become root", "give away", "capability", "copy of a setuid")
    workspace = Path(attack.result["workspace"])
    found = [workspace, *workspace.rglob("*")]
    assert len(found) > len(LANGUAGE)
    for status in (path.lstat() for path in found):
        assert not status.st_mode & (stat.S_ISUID | stat.S_ISGID)
        assert stat.S_IFMT(status.st_mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
        assert status.st_uid != 0
        assert status.st_uid == int(attack.value("status")["Uid"].split()[0])


def test_the_steward_never_runs_what_it_planted(attack: Attack, scene: Scene, ran: Path) -> None:
    task, name = attack.folder.parents[1].name, attack.result["subagent_id"]
    root = scene.root
    root.call("subagent.close", task=task, subagent=name)
    root.call("subagent.continue", task=task, subagent=name, message="once more")
    until(lambda: root.rows(task)[f"{name}-3"]["status"] == "completed")
    for verb in ("subagent.logs", "subagent.result", "subagent.show"):
        root.call(verb, task=task, subagent=name)
    for verb in ("verify", "gc", "doctor"):
        root.call(verb)
    root.call("task.show", task=task)
    root.stop()
    assert json.loads(scene.start())["ready"]
    root.run(scene.task(), sh("echo after"))
    assert os.listdir(ran) == []


# -- the fork server


def test_the_fork_server_is_one_thread_with_nothing_in_hand(scene: Scene) -> None:
    scene.root.run(scene.task(), sh("echo warm"))
    server = Path("/proc", str(fork_server(scene.root.pid)))
    assert len(os.listdir(server / "task")) == 1
    held = {name: os.readlink(server / "fd" / name) for name in os.listdir(server / "fd")}
    assert [name for name, to in held.items() if to.startswith("socket:")] == ["3"]
    others = {to for name, to in held.items() if name != "3"}
    assert others <= {"/dev/null", str(scene.root.path / "steward.log")}
    environment = (server / "environ").read_bytes()
    assert environment in (b"", b"\0") or environment.startswith(b"LD_LIBRARY_PATH=")


def test_after_its_death_the_next_child_starts_all_the_same(scene: Scene) -> None:
    task = scene.task()
    scene.root.run(task, sh("echo first"))
    first = fork_server(scene.root.pid)
    os.kill(first, signal.SIGKILL)
    results = scene.root.run(task, *[sh("echo again") for _ in range(5)])
    assert [each["answer"].strip() for each in results] == ["again"] * 5
    assert fork_server(scene.root.pid) != first


def test_when_the_code_of_children_changes_they_stay_what_their_steward_is() -> None:
    with staged(USERS[0]) as scene:
        scene.start(environment={"PYTHONPATH": os.pathsep.join([package(), scene.who.path])})
        task = scene.task()
        scene.root.run(task, sh("echo first"))
        steward, first = scene.root.pid, fork_server(scene.root.pid)
        Path(package(), "retinue", "child", "order.py").touch()
        assert scene.root.run(task, sh("echo again"))[0]["success"]
        assert fork_server(steward) == first
        os.kill(first, signal.SIGKILL)
        errors = [""]

        def refused() -> bool:  # once those are used up that it had made before
            errors.append(scene.root.run(task, sh("echo more"))[0].get("error", ""))
            return bool(errors[-1])

        until(refused)
        assert f"retinue was changed on disk after process {steward} loaded it" in errors[-1]
        assert "retinue steward stop" in errors[-1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look into memory that is not dumped")
def test_an_idle_child_costs_little_memory_of_its_own(scene: Scene) -> None:
    task = scene.task()
    names = scene.root.spawn(task, *[sh("sleep 100") for _ in range(5)])
    for pid in pids(scene.root, task, *names):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        private = sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
        assert private <= PRIVATE_KB
    scene.root.call("task.cancel", task=task, kill=True)


CLONES = """
import asyncio, json, random, ssl, tempfile, uuid
from retinue.child import namespaces, syscalls
from retinue.team import team_main; from retinue.team import team_fork_server

def tell(*_):
    seen = {
        "random": random.random(),
        "uuid4": str(uuid.uuid4()),
        "uuid1": str(uuid.uuid1()),
        "temporary": tempfile.mktemp(),
        "ssl": ssl.RAND_bytes(16).hex(),
        "loop": asyncio._get_running_loop() is None,
    }
    os.write(1, json.dumps(seen).encode() + b"\\n")

team_main.run = tell
random.random(), ssl.RAND_bytes(8), tempfile.mktemp(), uuid.uuid4()
for each in (lambda: syscalls.clone(0), lambda: namespaces.clone_into(0)) * 2:
    if each() == 0:
        team_fork_server.work({})
        os._exit(0)
    os.wait()
"""


def test_children_of_one_server_share_no_chance() -> None:
    _, *options, _, paths, _ = TEAMS.build_argv("main")
    words = [sys.executable, *options, PRELUDE + CLONES, paths]
    said = subprocess.run(words, capture_output=True, text=True, timeout=30)
    seen = [json.loads(line) for line in said.stdout.splitlines()]
    assert len(seen) == 4, said.stderr
    for what in ("random", "uuid4", "uuid1", "temporary", "ssl"):
        assert len({each[what] for each in seen}) == 4, what
    assert all(each["loop"] for each in seen)


def test_the_fork_server_has_no_event_loop_to_share_and_little_to_map() -> None:
    program = "import sys; sys.path.insert(0, sys.argv[1]); import retinue.child.fork_server; "
    heavy = ("asyncio", "ssl", "sqlite3", "dataclasses", "inspect", "typing", "traceback")
    program += f"print([name for name in {heavy} if name in sys.modules])"
    words = [sys.executable, "-I", "-S", "-c", program, str(SOURCE)]
    assert subprocess.check_output(words, text=True).strip() == "[]"


# -- many


def kill_all(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.requirement("R111", "R35")
def test_of_100_trees_nothing_outlives_its_inits_and_nothing_dies_with_the_steward() -> None:
    with staged(USERS[-1]) as scene:
        scene.start()
        root, task = scene.root, scene.task(limit=CHILDREN)
        marker = f"86396.{os.getpid()}{time.monotonic_ns()}"
        tree = f"( setsid sh -c 'trap \"\" INT TERM HUP; exec sleep {marker}' & ); sleep {marker}"
        names = root.spawn(task, *[sh(tree, timeout_seconds=90) for _ in range(CHILDREN)])
        until(lambda: len(sleepers(marker)) == 2 * CHILDREN, 60)
        steward = root.pid
        kill_all(fork_server(steward), steward)
        root.release()
        until(lambda: is_over(steward))
        assert json.loads(scene.start())["ready"]
        statuses = [row["status"] for row in root.rows(task).values()]
        assert statuses == ["running"] * CHILDREN
        assert len(sleepers(marker)) == 2 * CHILDREN
        steward, inits = root.pid, pids(root, task, *names)
        kill_all(steward, *inits)
        root.release()
        until(lambda: not sleepers(marker), 3)
        until(lambda: is_over(steward))
        assert json.loads(scene.start())["ready"]
        assert_lost(root, task)


def sleepers(marker: str) -> list[int]:
    """Those that sleep, not those whose words only say so."""
    found = processes_that_mention(marker)
    return [pid for pid, words in found.items() if words.startswith("sleep ")]


def assert_lost(root: Root, task: str) -> None:
    until(lambda: all(row["state"] == "closed" for row in root.rows(task).values()), 60)
    results: list[Any] = [json.loads(text) for text in Reader(root.path).results(task).values()]
    assert {result["status"] for result in results} == {"error"}
    root.sound()
