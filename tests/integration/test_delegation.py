"""A subagent that asks the steward for subagents of its own: only as far as its contract goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.roots import CONFIG, Root, python

ASK = """
import json, os, socket, sys
path = os.environ.get("RETINUE_STEWARD") or sys.argv[1]
link = socket.socket(socket.AF_UNIX)
link.settimeout(20)
try:
    link.connect(path)
except OSError as error:
    print(json.dumps([{"unreachable": error.strerror}]))
    sys.exit()
lines = link.makefile("rwb")
answers = []
for number, (verb, params) in enumerate(json.loads(sys.argv[2])):
    request = {"v": 1, "id": number, "verb": verb, "params": params}
    lines.write(json.dumps(request).encode() + b"\\n")
    lines.flush()
    answers.append(json.loads(lines.readline()))
print(json.dumps(answers))
"""
GRANDCHILD = {"argv": ["/bin/echo", "from below"], "context_paths": [], "subagent_id": "below"}


def asked(root: Root, task: str, calls: list[Any], **terms: Any) -> list[Any]:
    """What the steward answers to a child that makes these calls."""
    script = root.path.parent / "ask.py"
    script.write_text(ASK)
    argv = ["/bin/sh", "-c", 'exec /usr/bin/python3 "$RETINUE_CONTEXT/files/ask.py" "$@"', "sh"]
    brief = {
        "argv": [*argv, str(root.path / "steward.sock"), json.dumps(calls)],
        "context_paths": [],
        "context_files": [str(script)],
        "max_retries": 0,
        "subagent_id": "above",
        **terms,
    }
    (result,) = root.run(task, brief, cwd=str(root.path.parent))
    assert result["success"], result
    answers: list[Any] = json.loads(result["answer"])
    return answers


def kinds(root: Root, task: str) -> list[str]:
    return [event["type"] for event in root.events(task)]


def new_task(root: Root, mode: str) -> str:
    text = CONFIG.replace("runtime_mode: inherited", f"runtime_mode: {mode}").format(limit=5)
    return str(root.call("task.create", title="t", config_text=text)["task_id"])


@pytest.fixture(params=["isolated", "inherited"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.requirement("R102", "R104", "R142")
def test_delegation_is_refused_and_recorded_unless_the_contract_grants_it(
    root: Root, mode: str
) -> None:
    task = new_task(root, mode)
    answers = asked(root, task, [["subagent.spawn", {"tasks": [GRANDCHILD]}]])
    if mode == "isolated":
        assert answers == [{"unreachable": "No such file or directory"}]
        return
    assert answers[0]["error"]["message"] == "delegation disabled by contract"
    assert "agent.delegation_denied" in kinds(root, task)
    assert [row["agentInstance"] for row in root.call("subagent.list", task=task)] == ["above"]


@pytest.mark.requirement("R103", "R104")
def test_a_granted_child_has_subagents_of_its_own_and_no_deeper(root: Root, mode: str) -> None:
    task = new_task(root, mode)
    deeper = GRANDCHILD | {"subagent_id": "deeper", "max_delegation_depth": 1}
    answers = asked(
        root,
        task,
        [
            ["subagent.spawn", {"tasks": [GRANDCHILD], "wait": True}],
            ["subagent.spawn", {"tasks": [deeper]}],
            ["subagent.result", {"subagent": "above"}],
            ["task.cancel", {"task": task}],
            ["subagent.spawn", {"tasks": [GRANDCHILD], "member": "somebody"}],
            ["parent.take", {"absent": ["somebody"]}],
        ],
        max_delegation_depth=1,
    )
    assert answers[0]["result"]["results"][0]["answer"] == "from below"
    assert answers[1]["error"]["code"] == "contract_too_wide"
    assert answers[2]["error"]["code"] == "unknown_subagent"
    assert answers[3]["error"]["code"] == "delegation_disabled"
    for claim in answers[4:]:
        assert claim["error"]["message"] == "above has no member 'somebody'"
    told = kinds(root, task)
    assert told.count("agent.delegation_granted") == 1
    assert told.count("agent.delegation_denied") == 2
    contract = root.call("subagent.show", task=task, subagent="below")["contract"]
    assert (contract["delegated_by"], contract["depth"]) == ("above", 1)


@pytest.mark.requirement("R103")
def test_a_grandchild_that_is_continued_has_no_more_time_than_its_parent(root: Root) -> None:
    task = new_task(root, "isolated")
    more = {"subagent": "below", "message": "more", "timeout_seconds": 500}
    calls = [["subagent.spawn", {"tasks": [GRANDCHILD], "wait": True}], ["parent.continue", more]]
    _, continued = asked(root, task, calls, max_delegation_depth=1)
    name = continued["result"]["subagent_id"]
    (warning,) = continued["result"]["warnings"]
    assert warning.startswith(f"{name} has 20 s for an attempt, not 500 s as asked: ")
    contracts = [
        root.call("subagent.show", task=task, subagent=each)["contract"] for each in ("above", name)
    ]
    times = [contract["execution"]["attempt_timeout_ms"] for contract in contracts]
    assert times == [20_000, 20_000]


def test_where_every_parent_is_to_wait_a_child_cannot_do_otherwise(root: Root) -> None:
    text = CONFIG.format(limit=5) + "    background_subagents: {enabled: false}\n"
    task = str(root.call("task.create", title="t", config_text=text)["task_id"])
    calls = [["subagent.spawn", {"tasks": [GRANDCHILD], "wait": wait}] for wait in (False, True)]
    refused, waited = asked(root, task, calls, max_delegation_depth=1)
    assert refused["error"]["code"] == "background_disabled"
    assert waited["result"]["results"][0]["answer"] == "from below"


def test_a_grandchild_ends_with_the_child_that_wanted_it(root: Root) -> None:
    task = new_task(root, "isolated")
    sleeper = GRANDCHILD | {"argv": ["/bin/sleep", "600"]}
    answers = asked(root, task, [["subagent.spawn", {"tasks": [sleeper]}]], max_delegation_depth=1)
    assert answers[0]["result"]["subagents"][0]["status"] == "running"
    root.call("subagent.wait_all", task=task, timeout_seconds=20)
    shown = root.call("subagent.show", task=task, subagent="below")
    assert (shown["status"], shown["close_reason"]) == ("cancelled", "cancelled_by_parent")
    assert Path(shown["workspace"]).is_dir()


def test_a_grandchild_that_waits_when_its_parent_ends_is_not_begun(root: Root) -> None:
    task = root.create_task(limit=1, more="    subagent_admission: queue\n")
    spawn = ["subagent.spawn", {"tasks": [GRANDCHILD]}]
    (answer,) = asked(root, task, [spawn], max_delegation_depth=1)
    assert answer["result"]["subagents"][0]["status"] == "pending"
    root.call("subagent.wait_all", task=task, timeout_seconds=20)
    assert root.rows(task)["below"]["close_reason"] == "cancelled_by_parent"
    assert "started" not in root.types(task, "below")


FLOOD = """
import json, os, socket, threading
def line(number, verb, **params):
    return json.dumps({"v": 1, "id": number, "verb": verb, "params": params}).encode() + b"\\n"
def link():
    made = socket.socket(socket.AF_UNIX)
    made.connect(os.environ["RETINUE_STEWARD"])
    return made
"""
MANY_TRIES = """
TRIES = 3000
with link() as one:
    send = lambda: one.sendall(b"".join(line(n, "task.cancel") for n in range(TRIES)))
    sender = threading.Thread(target=send)
    sender.start()
    answers = [json.loads(each) for _, each in zip(range(TRIES), one.makefile("rb"))]
    sender.join()
print(len(answers), {each["error"]["code"] for each in answers})
"""
MANY_CONNECTIONS = """
links = [link() for _ in range(70)]
said = []
for each in links:
    try:
        each.sendall(line(1, "subagent.list"))
    except OSError:
        pass  # it is closed, and said why
    said.append(json.loads(each.makefile("rb").readline()))
print(sum("result" in each for each in said), {each["error"]["code"] for each in said[64:]})
"""
TOO_LARGE = """
def send():
    try:
        one.sendall(b"[" + b"[]," * 2**20)
    except OSError:
        pass  # it is closed, and said why
with link() as one:
    sender = threading.Thread(target=send)
    sender.start()
    print(json.loads(one.makefile("rb").readline())["error"]["message"])
    sender.join()
"""


@pytest.mark.requirement("R104")
def test_repeated_refusals_do_not_fill_the_log(root: Root) -> None:
    task = new_task(root, "isolated")
    brief = python(FLOOD + MANY_TRIES, subagent_id="above", max_delegation_depth=1)
    (result,) = root.run(task, brief)
    assert result["answer"] == "3000 {'delegation_disabled'}"
    told = [each for each in root.events(task) if each["type"] == "agent.delegation_denied"]
    times = [each["payload"]["times"] for each in told]
    assert times == [*range(1, 17), 32, 64, 128, 256, 512, 1024, 2048]


@pytest.mark.parametrize(
    ("script", "answer"),
    [
        (MANY_CONNECTIONS, "64 {'too_many_connections'}"),
        (TOO_LARGE, "a request may have 2 MiB at most"),
    ],
    ids=["connections", "one large request"],
)
def test_a_child_has_its_part_of_the_steward_and_no_more(
    root: Root, script: str, answer: str
) -> None:
    task = new_task(root, "isolated")
    (result,) = root.run(task, python(FLOOD + script, max_delegation_depth=1))
    assert result["answer"] == answer, result


LETS_GO = """
import json, os, socket, time
link = socket.socket(socket.AF_UNIX)
link.settimeout(20)
link.connect(os.environ["RETINUE_STEWARD"])
lines = link.makefile("rwb")
def send(number, verb, **params):
    request = {"v": 1, "id": number, "verb": verb, "params": params}
    lines.write(json.dumps(request).encode() + b"\\n")
    lines.flush()
work = {"argv": ["/bin/sleep", "0.3"], "context_paths": [], "subagent_id": "below"}
send(1, "parent.spawn", tasks=[work], wait=True)
send(2, "parent.wait", timeout_seconds=10)
send(3, "request.forget", request=1, leave=True)
told = json.loads(lines.readline())
send(4, "parent.take")
again = json.loads(lines.readline())
print(json.dumps([told["id"], told["result"]["agentInstance"], again["result"]]))
"""


def test_a_child_that_stopped_waiting_gets_the_result_with_another_call(root: Root) -> None:
    task = new_task(root, "inherited")
    (result,) = root.run(
        task, python(LETS_GO, subagent_id="above", max_delegation_depth=1), cwd="/"
    )
    assert json.loads(result["answer"]) == [2, "below", []], result
    assert "agent.delegation_denied" not in kinds(root, task)


@pytest.mark.requirement("R253")
def test_a_background_call_is_refused_where_background_work_is_disabled(root: Root) -> None:
    task = root.create_task(more="    background_subagents: {enabled: false}\n")
    before = root.state()
    refused = root.refusal("subagent.spawn", task=task, tasks=[GRANDCHILD])
    assert (refused.code, "--wait" in refused.hint) == ("background_disabled", True)
    assert root.state() == before
    spawn = ["subagent.spawn", {"tasks": [GRANDCHILD]}]
    waiting = ["subagent.spawn", {"tasks": [GRANDCHILD], "wait": True}]
    left, awaited = asked(root, task, [spawn, waiting], max_delegation_depth=1)
    assert left["error"]["code"] == "background_disabled"
    assert awaited["result"]["results"][0]["answer"] == "from below"
    assert kinds(root, task).count("agent.delegation_denied") == 1


def test_a_parent_cannot_give_a_path_that_was_hidden_from_it(root: Root, mode: str) -> None:
    task = new_task(root, mode)
    (other,) = root.run(task, python("print('left')", subagent_id="other"))
    calls = [
        ["subagent.spawn", {"tasks": [GRANDCHILD | {"context_paths": [given]}], "wait": True}]
        for given in (f"{root.path}/retinue.db", other["workspace"], f"{root.path.parent}/ask.py")
    ]
    records, sibling, project = asked(
        root, task, calls, context_paths=["./"], max_delegation_depth=1
    )
    assert records["error"]["code"] == sibling["error"]["code"] == "context_outside"
    assert project["result"]["results"][0]["answer"] == "from below"


def test_a_subagent_cannot_hand_out_variables_or_files_of_the_steward(
    root: Root, mode: str
) -> None:
    task = new_task(root, mode)
    for secret in ("PATH", "X=file:/etc/hostname"):
        brief = GRANDCHILD | {"secrets": [secret], "argv": ["/usr/bin/env"]}
        calls = [["subagent.spawn", {"tasks": [brief], "wait": True}]]
        name = f"above-{secret[0].lower()}"
        (answer,) = asked(root, task, calls, max_delegation_depth=1, subagent_id=name)
        assert answer["error"]["code"] == "secrets_not_allowed"
