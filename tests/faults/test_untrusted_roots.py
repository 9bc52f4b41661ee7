"""A root that its user did not make is looked at, and nothing in it is run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import retinue
from retinue.client.blocking_client import connect_if_running
from retinue.core.errors import BadInput
from retinue.settings import find_root
from support.mcp import SPAWN, Raw
from support.page import served
from support.people import CONFIG, Person, as_if_cloned, person
from support.roots import Root, sh, tree, until
from support.scenes import NOBODY, USERS, user
from support.traces import is_over

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")


@pytest.fixture(params=USERS)
def someone(request: pytest.FixtureRequest) -> Iterator[Person]:
    with person(request.param) as found:
        yield found


class Stock:
    """A project with two subagents that run, one with an answer, and a queued one, which leaves a
    mark when it runs.
    """

    def __init__(self, someone: Person) -> None:
        self.someone = someone
        self.project = someone.folder("project")
        self.root = self.project / ".retinue"
        self.mark = someone.place / "mark"
        config = someone.write(someone.place / "c.yaml", CONFIG)
        words = ("task", "create", "--title", "t", "--config", str(config))
        self.task = str(someone.json(self.project, *words)["task_id"])
        self.spawn("works", "sh", "-c", "echo begun; exec sleep 60")
        self.spawn("wrote", "sh", "-c", 'echo mine > "$RETINUE_ANSWER"; exec sleep 60')
        folder = self.root / "tasks" / self.task / "agents" / "wrote"
        until((folder / "full_logs" / "answer.txt").exists)
        self.spawn("waits", "touch", str(self.mark))

    def spawn(self, name: str, *argv: str) -> None:
        words = ("subagent", "spawn", self.task, "--id", name, "--queue", "--", *argv)
        self.someone.run(self.project, *words)

    def pid(self, project: Path, name: str = "works") -> int:
        shown = self.someone.json(project, "subagent", "show", self.task, name)
        return int(shown["attempts"][-1]["pid"])

    def states(self, project: Path) -> dict[str, str]:
        rows = self.someone.json(project, "subagent", "list", self.task)
        return {row["agentInstance"]: row["status"] for row in rows}


@pytest.fixture
def stock(someone: Person) -> Stock:
    return Stock(someone)


def lasting(top: Path) -> dict[str, object]:
    """What is in a folder, but for what SQLite itself keeps to share memory."""
    return {name: found for name, found in tree(top).items() if not name.endswith("-shm")}


def test_commands_that_look_work_in_a_clone_and_run_nothing(stock: Stock) -> None:
    someone = stock.someone
    clone = someone.copy(stock.project, "clone")
    as_if_cloned(clone)
    before = lasting(clone)
    (task,) = someone.json(clone, "task", "list")
    assert task["task_id"] == stock.task
    assert stock.states(clone) == {
        "works": "running",
        "wrote": "running",
        "waits": "pending",
    }
    assert someone.json(clone, "task", "show", stock.task)["title"] == "t"
    assert someone.run(clone, "task", "events", stock.task, "--follow").count("\n") > 3
    assert someone.run(clone, "timeline", stock.task)
    assert someone.json(clone, "verify") == {"ok": True, "problems": []}
    assert "begun" in someone.run(clone, "subagent", "logs", stock.task, "works", "--follow")
    someone.refusal(clone, "subagent", "result", stock.task, "waits", code=3)
    assert not stock.mark.exists()
    assert lasting(clone) == before
    assert someone.json(clone, "steward", "status")["running"] is False


def test_commands_that_do_more_are_refused_in_a_clone(stock: Stock) -> None:
    someone, task = stock.someone, stock.task
    clone = someone.copy(stock.project, "clone")
    as_if_cloned(clone)
    before = lasting(clone)
    for words in (
        ("task", "create", "--title", "mine"),
        ("subagent", "spawn", task, "--", "touch", str(stock.mark)),
        ("subagent", "cancel", task, "works"),
        ("subagent", "wait-any", task),
        ("subagent", "close", task, "waits"),
        ("task", "cancel", task),
        ("task", "close", task),
        ("task", "join", task),
        ("run", "say hello"),
        ("gc",),
        ("verify", "--rebuild"),
    ):
        refused = someone.refusal(clone, *words)
        assert refused["code"] == "root_not_trusted", words
        assert f"retinue trust {clone / '.retinue'}" in refused["hint"]
    assert not stock.mark.exists()
    assert lasting(clone) == before
    assert not is_over(stock.pid(stock.project))


def test_trust_shows_what_would_run_before_it_does(stock: Stock) -> None:
    someone = stock.someone
    clone = someone.copy(stock.project, "clone")
    as_if_cloned(clone)
    shown = someone.json(clone, "trust", "--show")
    assert shown["trusted"] is False and shown["root"] == str(clone / ".retinue")
    commands = {each["subagent_id"]: each["commands"] for each in shown["subagents"]}
    assert commands["waits"] == [["touch", str(stock.mark)]]
    assert f"touch {stock.mark}" in someone.run(clone, "trust", "--show")
    someone.refusal(clone, "task", "create", "--title", "mine")
    someone.run(someone.place, "trust", "clone")
    assert someone.json(clone, "trust", "--show")["trusted"] is True
    someone.run(clone, "task", "create", "--title", "mine")
    assert someone.json(clone, "trust", "--remove")["removed"] is True
    someone.run(clone, "steward", "stop", "--cancel")
    assert someone.refusal(clone, "gc")["code"] == "root_not_trusted"


def test_a_configuration_that_came_along_is_not_read(someone: Person) -> None:
    project = someone.folder("project")
    (project / ".retinue").mkdir(mode=0o700)
    os.chown(project / ".retinue", someone.who.uid, -1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        heard: list[bytes] = []
        threading.Thread(target=_hear, args=(listener, heard), daemon=True).start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        backend = f"{{type: openai, model: m, base_url: '{address}', api_key_env: MY_SECRET}}"
        text = f"agents:\n  - {{id: a, backend: {backend}}}\n"
        config = someone.write(project / ".retinue" / "config.yaml", text)
        known = someone.environment | {"MY_SECRET": "hunter2"}
        for words in (("run", "hello"), ("task", "create", "--title", "t")):
            refused = someone.refusal(project, *words, environment=known)
            assert refused["code"] == "root_not_trusted"
        someone.json(project, "model", "list", environment=known)
        assert not heard and os.listdir(project / ".retinue") == ["config.yaml"]
        named = someone.json(project, "trust", environment=known)["named"]
        assert named["variables"] == ["MY_SECRET"] and named["addresses"] == [address]
        someone.json(project, "task", "create", "--title", "t", environment=known)
        # What was approved is what was shown: a later change can name no other secret.
        someone.write(config, text.replace("MY_SECRET", "AWS_SECRET_ACCESS_KEY"))
        refused = someone.refusal(project, "task", "create", "--title", "t", environment=known)
        assert refused["code"] == "variable_not_trusted"
        assert "AWS_SECRET_ACCESS_KEY" in refused["message"]
        someone.write(config, text.replace("MY_SECRET", "GROQ_API_KEY"))
        someone.json(project, "task", "create", "--title", "t", environment=known)


def _hear(listener: socket.socket, heard: list[bytes]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            heard.append(connection.recv(4096))


def test_a_copy_signals_no_process_and_recovers_from_its_own_files(stock: Stock) -> None:
    someone = stock.someone
    running = stock.pid(stock.project)
    copy = someone.copy(stock.project, "copy")
    someone.refusal(copy, "subagent", "cancel", stock.task, "works")
    someone.run(copy, "trust")
    someone.run(copy, "subagent", "wait-all", stock.task, "--timeout-seconds", "30", code=None)
    shown = someone.json(copy, "subagent", "show", stock.task, "works")
    assert shown["status"] == "failed"
    (closed,) = [
        event
        for event in map(
            json.loads, someone.run(copy, "--json", "task", "events", stock.task).splitlines()
        )
        if event["type"] == "agent.subagent_closed" and event["agentInstance"] == "works"
    ]
    assert closed["payload"]["close_reason"] == "supervisor_lost"
    assert shown["workspace"].startswith(str(copy))
    recovered = someone.json(copy, "subagent", "result", stock.task, "wrote")
    assert recovered["answer"].strip() == "mine" and recovered["workspace"].startswith(str(copy))
    someone.run(copy, "task", "cancel", stock.task, code=None)
    assert someone.json(copy, "verify")["ok"]
    assert not is_over(running)
    states = stock.states(stock.project)
    assert (states["works"], states["wrote"]) == ("running", "running")


def test_a_copy_that_is_killed_while_it_starts_still_adopts_no_process(stock: Stock) -> None:
    someone = stock.someone
    running = stock.pid(stock.project)
    copy = someone.copy(stock.project, "copy")
    someone.run(copy, "trust")
    dying = someone.environment | {"RETINUE_FAILPOINT": "exited"}
    someone.run(copy, "subagent", "list", stock.task, code=None, environment=dying)
    someone.run(copy, "task", "cancel", stock.task, code=None)
    assert not is_over(running)
    assert stock.states(copy)["works"] in ("failed", "cancelled")


def test_a_root_that_is_moved_stays_the_same(stock: Stock) -> None:
    someone = stock.someone
    running = stock.pid(stock.project)
    someone.run(stock.project, "steward", "stop")
    moved = stock.project.rename(someone.place / "moved")
    assert stock.states(moved)["works"] == "running"
    someone.run(moved, "subagent", "cancel", stock.task, "works")
    until(lambda: is_over(running))


def test_a_restored_backup_is_not_the_root_that_it_was(stock: Stock) -> None:
    someone = stock.someone
    running, other = stock.pid(stock.project), stock.pid(stock.project, "wrote")
    backup = someone.copy(stock.project, "backup")
    someone.run(stock.project, "steward", "stop")
    shutil.rmtree(stock.project)
    restored = someone.copy(backup, "project")  # often with the very same inode number
    assert someone.refusal(restored, "gc")["code"] == "root_not_trusted"
    someone.run(restored, "trust")
    someone.run(restored, "task", "cancel", stock.task, code=None)
    assert not is_over(running)
    for pid in (running, other):
        os.kill(pid, signal.SIGKILL)


def test_the_environment_can_name_trusted_folders(stock: Stock) -> None:
    someone = stock.someone
    clone = someone.copy(stock.project, "clone")
    as_if_cloned(clone)
    for named in (clone, clone / ".retinue", someone.place):
        known = someone.environment | {"RETINUE_TRUST": f"/nowhere:{named}"}
        someone.json(clone, "task", "create", "--title", "t", environment=known)
        someone.run(clone, "steward", "stop", "--cancel")
    other = someone.environment | {"RETINUE_TRUST": str(stock.project)}
    assert someone.refusal(clone, "gc", environment=other)["code"] == "root_not_trusted"


def test_without_home_the_list_is_in_that_of_the_password_file(someone: Person) -> None:
    bare = {name: value for name, value in someone.environment.items() if name != "HOME"}
    program = "import os, retinue.trust as t; print(t.find_state_folder(os.environ))"
    done = subprocess.run(
        [*someone.who.prefix, someone.who.python, "-P", "-c", program],
        env=bare,
        capture_output=True,
        text=True,
        timeout=30,
    )
    import pwd

    home = pwd.getpwuid(someone.who.uid).pw_dir
    assert done.stdout.strip() == f"{home}/.local/state/retinue", done.stderr


def test_a_home_that_cannot_be_written_is_said_before_anything_is_made(someone: Person) -> None:
    project, blocked = someone.folder("project"), someone.place / "blocked"
    blocked.touch()  # no folder, so that root cannot make one below it either
    known = someone.environment | {"XDG_STATE_HOME": str(blocked / "state")}
    refused = someone.refusal(project, "task", "create", "--title", "t", environment=known)
    assert refused["code"] == "no_state_folder" and "RETINUE_TRUST" in refused["hint"]
    assert not (project / ".retinue").exists()
    someone.run(
        project,
        *("task", "create", "--title", "t"),
        environment=known | {"RETINUE_TRUST": str(project)},
    )


def test_python_looks_at_an_untrusted_root_and_does_no_more(tmp_path: Path) -> None:
    with person(USERS[0]) as someone:
        stock = Stock(someone)
        clone = someone.copy(stock.project, "clone")
        as_if_cloned(clone)
        program = f"""
import asyncio, retinue

async def main(opened):
    async with opened({str(clone / ".retinue")!r}) as r:
        (task,) = await r.tasks()
        rows = await r.task(task["task_id"]).subagents()
        try:
            await r.create_task(title="mine")
        except retinue.Refused as error:
            return [row["status"] for row in rows], error.code

for opened in (retinue.open, retinue.connect):
    print(asyncio.run(main(opened)))
"""
        words = [*someone.who.prefix, someone.who.python, "-P", "-c", program]
        done = subprocess.run(
            words, env=someone.environment, capture_output=True, text=True, timeout=60
        )
        expected = "(['running', 'running', 'pending'], 'root_not_trusted')\n"
        assert done.stdout == expected * 2, done.stderr
        assert not stock.mark.exists()


HOSTILE = """
import os, socket, sys
os.setresuid(65534, 65534, 65534)
os.umask(0)
root = sys.argv[1]
os.mkdir(root)
listener = socket.socket(socket.AF_UNIX)
listener.bind(root + "/steward.sock")
listener.listen()
print("ready", flush=True)
while True:
    connection, _ = listener.accept()
    print(connection.recv(4096) or "nothing", flush=True)
    connection.close()
"""


@needs_root
def test_no_client_talks_to_the_steward_of_another_user(tmp_path: Path) -> None:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="retinue-shared-") as top, person("root") as victim:
        shared = Path(top)
        shared.chmod(0o1777)
        project = shared / "project"
        project.mkdir()
        words = [sys.executable, "-P", "-c", HOSTILE, str(shared / ".retinue")]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as hostile:
            try:
                assert hostile.stdout is not None
                assert hostile.stdout.readline() == "ready\n"
                with pytest.raises(BadInput) as refused:
                    connect_if_running(shared / ".retinue")
                assert refused.value.code == "bad_root"
                named = ("--root", str(shared / ".retinue"), "task", "create", "--title", "t")
                assert victim.refusal(project, *named, code=2)["code"] == "bad_root"
                assert find_root(None, project, {}) == project / ".retinue"
                assert victim.json(project, "task", "list") == []
            finally:
                hostile.kill()
            assert hostile.stdout.read() == ""


@needs_root
@pytest.mark.parametrize("theirs", ["folder", "socket", "process"])
def test_the_answering_process_must_belong_to_the_owner(tmp_path: Path, theirs: str) -> None:
    """Each of the three is checked: the folder, the socket in it and the process behind it."""
    root = tmp_path / ".retinue"
    root.mkdir(mode=0o700)
    given = {"folder": root, "socket": root / "steward.sock"}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "steward.sock"))
        if theirs == "process":
            os.seteuid(NOBODY)  # the kernel remembers who listened
        try:
            listener.listen()
        finally:
            os.seteuid(0)
        if theirs in given:
            os.chown(given[theirs], NOBODY, -1)
        with pytest.raises(BadInput):
            connect_if_running(root)
    assert user("root").uid == 0 and retinue.__version__


@pytest.fixture
def foreign(fresh: Root, tmp_path: Path) -> Path:
    """A copy of a root with a task and a queued command, which nobody trusts."""
    task = fresh.create_task(limit=1, task_id="mcp")
    waits = sh("touch ran", subagent_id="waits")
    fresh.spawn(task, sh("exec sleep 60", subagent_id="works"), waits, queue=True)
    fresh.stop()
    project = tmp_path / "clone"
    shutil.copytree(fresh.path.parent, project, symlinks=True, ignore=_without_sockets)
    return project / ".retinue"


def _without_sockets(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if Path(folder, name).is_socket()]


def test_agents_cannot_spawn_in_an_untrusted_root(foreign: Path) -> None:
    with Raw(foreign) as server:
        server.open()
        tasks = [{"task": "touch ran", "context_paths": []}]
        for background in (False, True):
            arguments = {"tasks": tasks, "background": background}
            answer = server.answer(server.call(SPAWN, arguments))["result"]
            assert answer["isError"] and "root_not_trusted" in answer["content"][0]["text"]
    assert not list(foreign.rglob("ran"))


def test_the_page_shows_an_untrusted_root_and_acts_on_nothing(foreign: Path) -> None:
    with served(foreign) as page:
        page.enter()
        (task,) = page.get("/api/tasks").json
        assert task["task_id"] == "mcp"
        refused = page.post("/api/tasks/mcp/subagents/waits/cancel")
        assert refused.code == "root_not_trusted", refused.body
    assert not list(foreign.rglob("ran"))
