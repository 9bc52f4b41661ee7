"""A child that asks the steward for all it can, about its own subagents: others are served."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.roots import Root, python, until
from support.scenes import Scene, needs_python
from support.steward_watch import watched

pytestmark = [pytest.mark.timeout(180), needs_python]

QUEUE = "    subagent_admission: queue\n"
LINK = """
import json, os, socket, sys, threading, time
def link():
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(100)
    made.connect(os.environ["RETINUE_STEWARD"])
    return made
def line(number, verb, **params):
    return json.dumps({"v": 1, "id": number, "verb": verb, "params": params}).encode() + b"\\n"
def ask(verb, **params):
    with link() as one:
        one.sendall(line(1, verb, **params))
        return json.loads(one.makefile("rb").readline())
def spawn(script, wait, **terms):
    work = {"argv": ["/usr/bin/python3", "-I", "-S", "-c", script], "context_paths": [],
            "max_retries": 0, "subagent_id": "below", **terms}
    said = ask("subagent.spawn", tasks=[work], wait=wait)
    assert "result" in said, said
def flood(connections, each, verb, **params):
    links = [link() for _ in range(connections)]
    for one in links:
        one.sendall(b"".join(line(n, verb, subagent="below", **params) for n in range(each)))
    return links
def answers(links, each):
    said = []
    def read(one):
        lines = one.makefile("rb")
        for _ in range(each):
            said.append(json.loads(lines.readline()))
    readers = [threading.Thread(target=read, args=[one]) for one in links]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return said
"""
MANY_FOLDERS = """
spawn("import os\\nfor n in range(3000): os.mkdir(str(n))\\nprint(1)", True)
said = answers(flood(40, 1, "parent.files"), 1)
print(len(said), all(each["result"] == [] for each in said))
"""
LARGE_STATUS = """
spawn('''
import os, json, time
votes = {f"agent{n}.1": n for n in range(40000)}
text = json.dumps({"coordination": {"phase": "initial_answer"}, "results": {"votes": votes}})
path = os.environ["RETINUE_LOGS"] + "/status.json"
open("ready", "w").close()
while True:
    with open(path, "w") as file:
        file.write(text)
    time.sleep(%s)
''', False)
while True:
    row = ask("parent.look", subagent="below")["result"]
    if "phase" in row:
        break
    time.sleep(0.02)
said = answers(flood(60, 16, "parent.look"), 16)
print(len(said), all(each["result"]["phase"] == "initial_answer" for each in said))
"""
LARGE_FILE = """
spawn("open('large', 'wb').write(bytes(15 << 20))\\nprint(1)", True)
links = flood(14, 1, "parent.file", path="large")
open("asked", "w").close()
while not os.path.exists("read"):
    time.sleep(0.01)
said = answers(links, 1)
print(len(said), all(len(each["result"]["content"]) == 20 << 20 for each in said))
"""


SLOW_CHECK = """
schema = %s
said = ask("subagent.spawn", wait=True, tasks=[{
    "argv": ["/usr/bin/python3", "-I", "-S", "-c", "print(%s)"], "context_paths": [],
    "max_retries": 0, "subagent_id": "below", "answer_schema": schema}])
(result,) = said["result"]["results"]
print(result["status"], "seconds to check" in result["error"])
"""
CHOICES = {"anyOf": [{"$ref": "#/$defs/a"}] * 4}
SLOW_CHECKS = [
    ({"type": "string", "pattern": "^(a|a)*$"}, """'\\"' + 'a' * 60 + 'b' + '\\"'"""),
    ({"$defs": {"a": CHOICES}, "$ref": "#/$defs/a"}, "1"),
    ({"type": "array", "uniqueItems": True}, "list(range(100000))"),
]


@pytest.mark.parametrize(("schema", "value"), SLOW_CHECKS, ids=["pattern", "choices", "items"])
def test_the_check_of_an_answer_stops_no_steward(
    scene: Scene, schema: dict[str, Any], value: str
) -> None:
    script = SLOW_CHECK % (json.dumps(schema).replace("true", "True"), value)
    brief = python(LINK + script, max_delegation_depth=1, timeout_seconds=100)
    with watched(scene.root) as seen:
        (result,) = scene.root.run(scene.task(), brief)
    assert result["answer"] == "error True", result
    assert seen.longest_s < 2.5


@pytest.mark.parametrize(
    ("script", "answer"),
    [
        (MANY_FOLDERS, "40 True"),
        (LARGE_STATUS % "600", "960 True"),
        (LARGE_STATUS % "0.001", "960 True"),
    ],
    ids=["folders", "status", "changing status"],
)
def test_others_are_served_while_a_child_asks_again_and_again(
    scene: Scene, script: str, answer: str
) -> None:
    task = scene.task()
    brief = python(LINK + script, max_delegation_depth=1, timeout_seconds=100)
    with watched(scene.root) as seen:
        (result,) = scene.root.run(task, brief)
    assert result["answer"] == answer, result
    assert seen.longest_s < 2.5


def test_answers_that_a_child_does_not_read_fill_no_memory(scene: Scene) -> None:
    """Fourteen answers of 20 MB each are asked for before one is read."""
    task = scene.task()
    before = memory_mb(scene.root)
    brief = python(LINK + LARGE_FILE, max_delegation_depth=1, subagent_id="above")
    scene.root.spawn(task, brief | {"timeout_seconds": 100})
    workspace = scene.root.folder(task, "above") / "workspace"
    with watched(scene.root) as seen:
        until((workspace / "asked").exists, 60)
        for _ in range(20):  # of the steward's turns: what it could answer, it would have
            scene.root.call("steward.status")
        (workspace / "read").touch()
        scene.root.call("subagent.wait_all", task=task, timeout_seconds=100)
    result = scene.root.call("subagent.result", task=task, subagent="above")
    assert result["answer"] == "14 True", result
    assert seen.peak_mb - before < 300
    assert seen.longest_s < 2.5


def memory_mb(root: Root) -> int:
    with open(f"/proc/{root.pid}/status") as status:
        (size,) = (line.split()[1] for line in status if line.startswith("VmRSS"))
    return int(size) // 1024


SPAWNS = """
said = []
for count in {counts}:
    tasks = [dict(argv=["/bin/sleep", "60"], context_paths=[]) for _ in range(count)]
    answer = ask("subagent.spawn", tasks=tasks, queue=True)
    said.append(answer.get("error", {{}}).get("code") or len(answer["result"]["subagents"]))
with open("said.new", "w") as file:
    json.dump(said, file)
os.rename("said.new", "said")
while not os.path.exists("end"):
    time.sleep(0.01)
"""


def spawning(scene: Scene, task: str, counts: list[int]) -> list[Any]:
    """What a child that spawns so many, asking to be queued, is told; it goes on working."""
    script = LINK + SPAWNS.format(counts=counts)
    scene.root.spawn(task, python(script, max_delegation_depth=1, subagent_id="above"))
    told = scene.root.folder(task, "above") / "workspace" / "said"
    until(told.exists)
    said: list[Any] = json.loads(told.read_text())
    return said


def test_a_child_cannot_queue_where_the_configuration_refuses(scene: Scene) -> None:
    task = scene.task(limit=3)
    assert spawning(scene, task, [4, 1, 3, 1]) == ["too_many_tasks", 1, "limit_exceeded", 1]
    waiting = [each for each in scene.root.rows(task).values() if each["status"] == "pending"]
    assert not waiting
    scene.root.call("task.cancel", task=task, kill=True)


def test_where_calls_are_queued_a_child_has_a_bounded_part_of_the_queue(scene: Scene) -> None:
    task = scene.task(QUEUE, limit=1)
    with watched(scene.root) as seen:
        told = spawning(scene, task, [201, 150, 51, 50, 1])
    assert seen.longest_s < 2.5
    assert told == ["too_many_tasks", 150, "too_many_waiting", 50, "too_many_waiting"]
    (own,) = scene.root.spawn(task, python("print(1)"))  # the user's own is taken nevertheless
    assert scene.root.rows(task)[own]["status"] == "pending"
    scene.root.call("task.cancel", task=task, kill=True)
