"""Context paths: a recorded one is never resolved again, and shows nothing of Retinue itself."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import RetinueError
from support.roots import Root, held, sh, until
from support.scenes import PYTHON, Scene, needs_python

pytestmark = needs_python

ASK = """
import json, os, socket, sys, time
link = socket.socket(socket.AF_UNIX)
link.settimeout(30)
link.connect(os.environ["RETINUE_STEWARD"])
lines = link.makefile("rwb")
def ask(verb, **params):
    request = {"v": 1, "id": 1, "verb": verb, "params": params}
    lines.write(json.dumps(request).encode() + b"\\n")
    lines.flush()
    told = json.loads(lines.readline())
    return told.get("result") or told["error"]
def spawn(argv, wait=True, **terms):
    brief = {"argv": argv, "context_paths": [], "max_retries": 0, **terms}
    return ask("subagent.spawn", tasks=[brief], wait=wait)
def until(path):
    for _ in range(3000):
        if os.path.lexists(path):
            return
        time.sleep(0.01)
    sys.exit(f"{path} did not come")
def outcome(told):
    if "code" in told:
        return told["code"]
    (result,) = told["results"]
    return result["answer"] or result["error"]
"""


def asker(script: str, **terms: Any) -> dict[str, Any]:
    """A command that may delegate, and runs this script."""
    return {
        "argv": [PYTHON, "-I", "-S", "-c", ASK + script],
        "context_paths": [],
        "max_retries": 0,
        "max_delegation_depth": 1,
        **terms,
    }


# -- a recorded path is never resolved again

PARENT = """
secret, below = json.loads(sys.argv[1])
here = os.environ["RETINUE_WORKSPACE"]
os.mkdir("given")
argv = ["/usr/bin/python3", "-I", "-S", "-c", below, here, secret]
spawn(argv, wait=False, subagent_id="middle", context_paths=["given"], max_delegation_depth=1)
os.rename("given", "before")
os.symlink(os.path.dirname(secret), "given")
open("before/go", "w").close()
ask("parent.wait", timeout_seconds=20)
print(ask("subagent.result", subagent="middle")["answer"])
"""
MIDDLE = """
here, secret = sys.argv[1:]
until(f"{here}/given/go")
name = os.path.basename(secret)
tried = {
    "the link": f"{here}/given",
    "what it leads to": os.path.dirname(secret),
    "a file behind it": f"{here}/given/{name}",
}
script = f"cat {secret} {here}/given/{name} $(find $RETINUE_CONTEXT -type f)"
argv = ["/bin/sh", "-c", script]
told = {what: outcome(spawn(argv, context_paths=[path])) for what, path in tried.items()}
print(json.dumps(told))
"""


def test_a_delegated_context_that_became_a_link_leads_nowhere(scene: Scene) -> None:
    secret = scene.home / ".ssh" / "id_ed25519"
    brief = asker(PARENT, max_delegation_depth=2)
    brief["argv"].append(json.dumps([str(secret), ASK + MIDDLE]))
    (result,) = scene.root.run(scene.task(), brief, cwd=str(scene.project))
    assert result["success"], result
    tried = json.loads(result["answer"])
    assert tried == dict.fromkeys(tried, "context_outside"), tried
    assert len(tried) == 3


def test_a_context_in_a_workspace_that_was_exchanged_is_not_given_again(scene: Scene) -> None:
    """Its writer replaces the folder by a link, or by another folder, between two delegations."""
    task = scene.task()
    secret = scene.home / ".ssh"
    swaps = "mkdir out other; touch up; until [ -e go ]; do sleep 0.02; done; mv out gone; {}"
    for name, swap in (("links", f"ln -s {secret} out"), ("moves", "mv other out")):
        writer = sh(swaps.format(swap) + "; touch gone/swapped; sleep 60", subagent_id=name)
        scene.root.spawn(task, writer)
        workspace = scene.root.folder(task, name) / "workspace"
        until((workspace / "up").exists)
        script = f"""
open("up", "w").close()
until("{workspace}/out/swapped")
print(outcome(spawn(["/bin/ls", "{workspace}/out/"], context_paths=["{workspace}/out"])))
"""
        reader = asker(script, subagent_id=f"reads-{name}", context_paths=[str(workspace / "out")])
        scene.root.spawn(task, reader)
        until((scene.root.folder(task, f"reads-{name}") / "workspace" / "up").exists)
        _create_as(scene, workspace / "go")
        until(lambda: scene.root.rows(task)[f"reads-{name}"]["state"] == "closed")  # noqa: B023
        result = scene.root.call("subagent.result", task=task, subagent=f"reads-{name}")
        assert result["answer"] == "context_outside", (name, json.dumps(result))
        scene.root.call("subagent.cancel", task=task, subagent=name, kill=True)


def _create_as(scene: Scene, path: Path) -> None:
    path.touch()
    os.chown(path, scene.who.uid, -1)


def test_an_exchanged_folder_is_not_mounted(scene: Scene) -> None:
    task = scene.task(limit=1)
    swap = (
        "mkdir out other; touch up; until [ -e go ]; do sleep 0.02; done; mv out gone; mv other out"
    )
    scene.root.spawn(task, sh(swap, subagent_id="writer"))
    workspace = scene.root.folder(task, "writer") / "workspace"
    until((workspace / "up").exists)
    reader = sh("echo ran", subagent_id="reader", max_retries=0)
    reader["context_paths"] = [str(workspace / "out")]
    scene.root.spawn(task, reader, queue=True)
    _create_as(scene, workspace / "go")
    until(lambda: scene.root.rows(task)["reader"]["state"] == "closed")
    result = scene.root.call("subagent.result", task=task, subagent="reader")
    assert (result["status"], result["answer"]) == ("error", None)
    assert "was replaced since it was given" in result["error"]


def test_a_file_that_its_owner_saved_anew_is_still_given(scene: Scene) -> None:
    """Editors replace the file that they save: outside of workspaces only the path counts."""
    task = scene.task()
    note = scene.write(scene.project / "note.txt", "old", 0o644)
    brief = sh("cat $RETINUE_CONTEXT/paths/note.txt", subagent_id="reader")
    (result,) = scene.root.run(
        task, brief | {"context_paths": ["note.txt"]}, cwd=str(scene.project)
    )
    assert result["answer"] == "old"
    scene.write(scene.project / "note.new", "new", 0o644).rename(note)
    again = scene.root.call("subagent.continue", task=task, subagent="reader", message="again")
    name = again["subagent_id"]
    until(lambda: scene.root.rows(task)[name]["state"] == "closed")
    assert scene.root.call("subagent.result", task=task, subagent=name)["answer"] == "new"


def test_the_contract_records_what_was_given(scene: Scene) -> None:
    task = scene.task()
    scene.root.run(
        task,
        sh("true; echo x", subagent_id="x") | {"context_paths": ["./src", "src/main.py"]},
        cwd=str(scene.project),
    )
    context = scene.root.call("subagent.show", task=task, subagent="x")["contract"]["context"]
    for path, identity in zip(context["paths"], context["identities"], strict=True):
        status = os.lstat(path)
        assert (identity["device"], identity["inode"]) == (status.st_dev, status.st_ino)
        assert identity["uid"] == scene.who.uid


def test_a_link_in_a_workspace_leads_no_person_out_of_it(scene: Scene) -> None:
    """A person gives what a subagent left; where that is a link to the project, it is refused."""
    task = scene.task()
    made = sh(f"ln -s {scene.project}/src out; ln -s src in; mkdir src; echo x", subagent_id="made")
    scene.root.run(task, made)
    workspace = scene.root.folder(task, "made") / "workspace"
    brief = sh("echo ran") | {"context_paths": [str(workspace / "out")]}
    refused = scene.root.refusal("subagent.spawn", task=task, tasks=[brief], cwd=str(scene.project))
    assert refused.code == "context_outside"
    brief["context_paths"] = [str(workspace / "in")]
    (result,) = scene.root.run(task, brief, cwd=str(scene.project))
    assert result["answer"] == "ran"


# -- what a delegating child learns, and what it hands on


def test_a_child_does_not_learn_whether_a_path_exists(scene: Scene) -> None:
    present, absent = scene.home / ".ssh", scene.home / "absent"
    script = f"""
os.symlink("{present}", "present")
os.symlink("{absent}", "absent")
kinds = ("context_paths", "context_files")
paths = ("{present}", "{absent}", "{present}/id_ed25519", "present", "absent", "/proc/1/nope")
told = [ask("subagent.spawn", tasks=[{{"argv": ["true"], "context_paths": [], kind: [path]}}])
        for kind in kinds for path in paths]
print(json.dumps([[each["code"], each["message"], each["hint"]] for each in told]))
"""
    (result,) = scene.root.run(scene.task(), asker(script), cwd=str(scene.project))
    told = json.loads(result["answer"])
    assert {code for code, _, _ in told} == {"context_outside"}, told
    assert len({hint for _, _, hint in told}) == 1


def test_a_place_of_its_context_can_be_given_on(scene: Scene) -> None:
    script = """
place = os.environ["RETINUE_CONTEXT"] + "/paths/src"
argv = ["/bin/sh", "-c", "cat $(find $RETINUE_CONTEXT -name main.py)"]
for given in (place, place + "/main.py"):
    print(outcome(spawn(argv, context_paths=[given])))
"""
    brief = asker(script, context_paths=["src"])
    (result,) = scene.root.run(scene.task(), brief, cwd=str(scene.project))
    assert (result["answer"] or "").split() == ["print('project')"] * 2, result


@pytest.mark.skipif(os.geteuid() != 0, reason="a file of a third user needs root")
@pytest.mark.parametrize("given", ["file", "path", "folder", "in a folder"])
def test_a_child_hands_on_no_more_than_it_can_read(scene: Scene, given: str) -> None:
    """Of a third user's files in a lent folder a child reads what everybody may."""
    third = 54321
    folder = scene.project / f"mixed-{given.replace(' ', '-')}"
    closed, theirs = folder / "closed", folder / "theirs.txt"
    for path in (folder, closed):
        path.mkdir(mode=0o755)
    theirs.write_text("third user's")
    (closed / "open.txt").write_text("third user's")
    theirs.chmod(0o600)
    os.chown(folder, scene.who.uid, -1)
    for path in (closed, theirs, closed / "open.txt"):
        os.chown(path, third, third)
    closed.chmod(0o711 if given == "folder" else 0o700)
    (closed / "open.txt").chmod(0o600 if given == "folder" else 0o644)
    terms = {
        "file": {"context_files": [str(theirs)]},
        "path": {"context_paths": [str(theirs)]},
        "folder": {"context_paths": [str(closed)]},
        "in a folder": {"context_paths": [str(closed / "open.txt")]},
    }[given]
    script = f"""
own = [os.access("{theirs}", os.R_OK), os.access("{closed}/open.txt", os.R_OK)]
argv = ["/bin/sh", "-c", "cat {theirs} {closed}/* $(find $RETINUE_CONTEXT -type f) 2>&1; true"]
told = spawn(argv, **{terms!r})
print(json.dumps([own, outcome(told)]))
"""
    brief = asker(script, context_paths=[str(folder)])
    (result,) = scene.root.run(scene.task(), brief, cwd=str(scene.project))
    own, told = json.loads(result["answer"])
    assert own == [False, False], "the parent cannot read it"
    assert told == "context_unreadable" or "third user's" not in told, told


def test_a_named_pipe_in_a_context_cannot_be_opened(scene: Scene) -> None:
    """The project lies below /tmp, which Landlock lets a child write in."""
    pipe = scene.project / "src" / "pipe"
    os.mkfifo(pipe, 0o666)
    try:
        os.chmod(pipe, 0o666)
        script = f"""
import os
import socket
def tried(path, flags):
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK))
        return "opened"
    except OSError as fault:
        return fault.strerror
for path in ("{pipe}", os.environ["RETINUE_CONTEXT"] + "/paths/src/pipe"):
    for flags in (os.O_RDWR, os.O_WRONLY, os.O_RDONLY):
        print(tried(path, flags))
"""
        brief = {"argv": [PYTHON, "-I", "-S", "-c", script], "context_paths": ["src"]}
        (result,) = scene.root.run(scene.task(), brief, cwd=str(scene.project))
        assert "opened" not in result["answer"].split("\n"), result
        assert len(result["answer"].split("\n")) == 6
    finally:
        pipe.unlink()


# -- other roots within a lent folder


@pytest.fixture
def nested(scene: Scene) -> Iterator[Root]:
    """A root with its own steward, deep inside the project."""
    deep = scene.project / "packages" / "one"
    deep.mkdir(parents=True, exist_ok=True)
    (deep / "code.py").write_text("code")
    path = deep / ".retinue"
    path.mkdir(mode=0o700, exist_ok=True)
    for each in (deep.parent, deep, path, deep / "code.py"):
        os.chown(each, scene.who.uid, -1)
    outer = scene.root
    scene.root = Root(path)
    try:
        with held(path) as root:
            scene.start()
            root.call("task.create", title="inner")
            until((path / "retinue.db").exists)
            scene.root = outer
            yield root
    finally:
        scene.root = outer


@pytest.mark.parametrize("given", ["./", "packages", "packages/one"])
def test_another_root_within_a_lent_folder_is_hidden(
    scene: Scene, nested: Root, given: str
) -> None:
    (copied := scene.project / "packages" / "backup").mkdir(exist_ok=True)
    (copied / "gateway.key").write_text("key")
    script = f"""
cat {scene.project}/packages/one/code.py; echo
for top in {scene.project} $RETINUE_CONTEXT; do
  find $top -name retinue.db -o -name gateway.key -o -name '*.sock' -o -name steward.lock
done 2> errors || true
"""
    brief = sh(script, subagent_id=f"looks-{len(given)}") | {"context_paths": [given]}
    (result,) = scene.root.run(scene.task(), brief, cwd=str(scene.project))
    assert (result["answer"] or "").split() == ["code"], result


def test_nothing_of_another_root_but_what_work_left_can_be_given(
    scene: Scene, nested: Root
) -> None:
    task = nested.call("task.create", title="t")["task_id"]
    (made,) = nested.run(task, sh("echo left > f; echo done", subagent_id="maker"))
    for given in (nested.path, nested.path / "retinue.db", nested.path / "tasks"):
        brief = sh("true") | {"context_paths": [str(given)]}
        refused = scene.root.refusal(
            "subagent.spawn", task=scene.task(), tasks=[brief], cwd=str(scene.project)
        )
        assert refused.code == "context_outside", given
    brief = sh("cat $(find $RETINUE_CONTEXT -name f)") | {
        "context_paths": [made["workspace"], "./"]
    }
    (result,) = scene.root.run(scene.task(), brief, cwd=str(scene.project))
    assert result["answer"] == "left", result


def test_a_context_too_large_to_search_is_told_of(scene: Scene, monkeypatch: Any) -> None:
    from retinue.workspaces import contexts

    monkeypatch.setattr(contexts, "MOST_ENTRIES", 3)
    folder = scene.place / "large"
    folder.mkdir(exist_ok=True)
    for number in range(5):
        (folder / str(number)).touch()
    assert not contexts.find_hidden([str(folder)]).complete


def test_the_gateway_of_a_root_that_was_made_later_serves_no_child(scene: Scene) -> None:
    """The search for roots came before this one was there: its socket can be reached."""
    deep = scene.project / "later"
    deep.mkdir()
    socket_file = deep / ".retinue" / "gateway.sock"
    script = f"""
import os, socket, time
open("up", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
link = socket.socket(socket.AF_UNIX)
link.settimeout(10)
os.chdir("{socket_file.parent}")
try:
    link.connect("gateway.sock")
    link.sendall(b"GET /openai/v1/models HTTP/1.0\\r\\n\\r\\n")
    print("answered" if link.recv(10) else "closed")
except OSError as error:
    print(type(error).__name__)
"""
    task = scene.task()
    brief = {"argv": [PYTHON, "-I", "-S", "-c", script], "subagent_id": "caller"}
    scene.root.spawn(task, brief | {"context_paths": ["later"]}, cwd=str(scene.project))
    workspace = scene.root.folder(task, "caller") / "workspace"
    until((workspace / "up").exists)
    socket_file.parent.mkdir(mode=0o700)
    for each in (deep, socket_file.parent):
        os.chown(each, scene.who.uid, -1)
    outer, before = scene.root, os.getcwd()
    scene.root = Root(socket_file.parent)
    try:
        with held(socket_file.parent) as later:
            scene.start()
            later.call("model.list")  # which opens the gateway
            until(socket_file.exists)
            _create_as(scene, workspace / "go")
            until(lambda: outer.rows(task)["caller"]["state"] == "closed")
            with socket.socket(socket.AF_UNIX) as link:
                link.settimeout(10)
                os.chdir(socket_file.parent)
                link.connect("gateway.sock")
                link.sendall(b"GET /openai/v1/models HTTP/1.0\r\n\r\n")
                assert link.recv(10), "a program of this user is answered"
    finally:
        os.chdir(before)
        scene.root = outer
    result = outer.call("subagent.result", task=task, subagent="caller")
    assert result["answer"] in ("closed", "ConnectionResetError", "BrokenPipeError"), result


def test_the_whole_machine_is_no_context(scene: Scene) -> None:
    task = scene.task()
    brief = {"argv": ["true"], "subagent_id": "all", "context_paths": ["./"]}
    with pytest.raises(RetinueError, match="whole machine") as refused:
        scene.root.spawn(task, brief, cwd="/")
    assert refused.value.code == "invalid_context"
    assert scene.root.rows(task) == {}


def test_a_root_that_was_made_meanwhile_is_hidden_from_a_successor(scene: Scene) -> None:
    task = scene.task()
    folder = scene.project / "grown"
    folder.mkdir()
    look = sh(f"find {folder} $RETINUE_CONTEXT -name gateway.key; echo looked", subagent_id="first")
    brief = look | {"context_paths": ["grown"]}
    (result,) = scene.root.run(task, brief, cwd=str(scene.project))
    assert result["answer"] == "looked"
    (folder / ".retinue").mkdir()
    scene.write(folder / ".retinue" / "gateway.key", "key", 0o644)
    again = scene.root.call("subagent.continue", task=task, subagent="first", message="again")
    name = again["subagent_id"]
    until(lambda: scene.root.rows(task)[name]["state"] == "closed")
    result = scene.root.call("subagent.result", task=task, subagent=name)
    assert result["answer"] == "looked", result


def test_a_call_from_a_link_in_a_workspace_gives_nothing(scene: Scene) -> None:
    task = scene.task()
    made = sh(f"ln -s {scene.home}/.ssh out; echo x", subagent_id="linker")
    scene.root.run(task, made)
    workspace = scene.root.folder(task, "linker") / "workspace"
    brief = sh("cat $(find $RETINUE_CONTEXT -type f)") | {"context_paths": ["./"]}
    refused = scene.root.refusal(
        "subagent.spawn", task=task, tasks=[brief], cwd=str(workspace / "out")
    )
    assert refused.code == "context_outside"
