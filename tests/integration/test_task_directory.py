"""The folder of a task: what people read there, and what they may write."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from support.roots import Root, Row, command, held, sh, until

ASKS = 'printf \'{"status":"blocked","questions":["which?"]}\' > "$RETINUE_FINAL"'
HOLDS = "while ! test -e go; do sleep 0.02; done"
TESTIFIES = """
import json, os, pathlib
logs = pathlib.Path(os.environ["RETINUE_LOGS"])
status = {
    "meta": {"elapsed_seconds": 1.5, "start_time": 1700000000.0},
    "costs": {"total_input_tokens": 100, "total_output_tokens": 20, "total_estimated_cost": 0.5},
    "coordination": {"phase": "enforcement", "completion_percentage": 50},
    "agents": {"one": {"status": "answered"}, "two": {"status": "answered"}},
    "results": {"winner": None, "votes": {"agent1.1": 0, "agent2.1": 2}},
    "historical_workspaces": [
        {"agentId": "one", "answerLabel": "agent1.1", "timestamp": "20260101_000000"},
        {"agentId": "two", "answerLabel": "agent2.1", "timestamp": "20260101_000001"},
    ],
}
for entry in status["historical_workspaces"]:
    snapshot = logs / entry["agentId"] / entry["timestamp"]
    (snapshot / "workspace").mkdir(parents=True)
    (snapshot / "answer.txt").write_text("answer of " + entry["agentId"])
(logs / "status.json").write_text(json.dumps(status))
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Root]:
    """One steward for all of them; each test has a task of its own."""
    project = tmp_path_factory.mktemp("project")
    with held(project / ".retinue") as root:
        yield root
        root.sound()


def written(path: Path) -> Any:
    return json.loads(path.read_text())


def task_yaml(root: Root, task: str) -> Row:
    document: Row = YAML(typ="safe").load(root.task_folder(task) / "task.yaml")
    return document


def roster(root: Root, task: str) -> dict[str, str]:
    return {entry["instance"]: entry["state"] for entry in task_yaml(root, task)["roster"]}


def let_go(root: Root, task: str, name: str) -> None:
    (root.folder(task, name) / "workspace" / "go").touch()


def test_a_new_task_has_its_file_and_its_log(root: Root) -> None:
    answer = root.call(
        "task.create", title="My site", description="All of it", max_concurrent=2, timeout_seconds=9
    )
    assert Path(answer["path"]) == root.task_folder(answer["task_id"])
    document = task_yaml(root, answer["task_id"])
    assert list(document) == [
        "id", "title", "description", "createdAt", "config", "updatedAt", "state", "gates",
        "roster",
    ]  # fmt: skip
    assert (document["id"], document["title"]) == (answer["task_id"], "My site")
    assert document["config"] == {"maxConcurrentAgents": 2, "timeoutSeconds": 9}
    assert [e["type"] for e in root.events(answer["task_id"])] == ["task.created", "run.started"]


@pytest.mark.requirement("R25", "R80", "R154", "R232", "R233", "R234", "R259")
def test_a_subagents_folder_holds_its_records_and_products(root: Root, task: str) -> None:
    script = 'echo made > made; echo said >&2; printf answer > "$RETINUE_ANSWER"; echo out'
    root.run(task, sh(script, subagent_id="bio"))
    folder = root.folder(task, "bio")
    assert folder.name == "bio"
    expected = [
        "contract.json",
        "session.json",
        "result.json",
        "conversation.jsonl",
        "workspace/made",
        "runtime/stdout.log",
        "runtime/stderr.log",
        "runtime/attempts.jsonl",
        "artifacts/answer.txt",
        "artifacts/step-0-result.md",
        "full_logs",
    ]
    assert [name for name in expected if not (folder / name).exists()] == []
    assert (folder / "artifacts" / "answer.txt").read_text() == "answer"
    assert (folder / "runtime" / "stdout.log").read_text() == "out\n"
    said = [json.loads(line) for line in (folder / "conversation.jsonl").open()]
    assert [(each["role"], each["content"]) for each in said][-1] == ("assistant", "answer")
    assert said[0]["role"] == "user"
    result = written(folder / "result.json")
    assert result == root.call("subagent.result", task=task, subagent="bio")
    assert result["workspace"] == str(folder / "workspace")


@pytest.mark.requirement("R100")
def test_a_child_behind_its_boundary_cannot_change_its_contract(root: Root) -> None:
    if not root.call("doctor")["isolation"]["available"]:
        pytest.skip("children cannot be isolated here")
    task = root.call("task.create", title="isolated")["task_id"]
    ruins = 'for f in "$RETINUE_CONTRACT" "$RETINUE_BRIEF"; do rm -f $f; echo x > $f; mv $f y; done'
    script = f'cat "$RETINUE_CONTRACT" > copy; {ruins}; echo tried'
    (result,) = root.run(task, sh(script, subagent_id="bio"))
    assert result["answer"] == "tried"
    file = root.folder(task, "bio") / "contract.json"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert {event["contract_sha256"] for event in root.events(task, "bio")} == {digest}
    assert Path(result["workspace"], "copy").read_bytes() == file.read_bytes()


@pytest.mark.requirement("R83", "R84", "R106", "R114", "R140")
def test_the_contract_is_stored_hashed_and_read_only(root: Root, task: str) -> None:
    (result,) = root.run(task, sh('cp "$RETINUE_CONTRACT" copy; echo x', subagent_id="bio"))
    file = root.folder(task, "bio") / "contract.json"
    with closing(sqlite3.connect(f"file:{root.path / 'retinue.db'}?mode=ro", uri=True)) as database:
        asked = "SELECT context_json, contract_sha256 FROM sub_agents WHERE task_id = ?"
        text, digest = database.execute(asked, (task,)).fetchone()
    assert file.read_text() == text
    assert stat.S_IMODE(file.stat().st_mode) & 0o222 == 0
    assert Path(result["workspace"], "copy").read_text() == text
    assert digest == hashlib.sha256(text.encode()).hexdigest()
    assert {event["contract_sha256"] for event in root.events(task, "bio")} == {digest}
    contract = json.loads(text)
    assert {"parent", "step", "permissions", "execution", "outputs", "context"} <= set(contract)
    assert contract["parent"]["step_idx"] == 0
    assert contract["parent"]["run_id"] == root.events(task)[0]["run_id"]


@pytest.mark.requirement("R24", "R30", "R32", "R33", "R34")
def test_the_roster_follows_a_subagent_through_its_life(root: Root) -> None:
    task = root.create_task(limit=2)
    root.spawn(task, sh(f"{HOLDS}; echo ok", subagent_id="good"))
    root.spawn(task, sh(f"{HOLDS}; exit 1", subagent_id="bad"))
    root.spawn(task, sh("sleep 60", subagent_id="cut"), queue=True)
    until(lambda: roster(root, task) == {"good": "active", "bad": "active", "cut": "pending"})
    assert task_yaml(root, task)["roster"][0] == {
        "instance": "good",
        "agent": "command",
        "state": "active",
        "skills": [],
    }
    let_go(root, task, "good")
    let_go(root, task, "bad")
    until(lambda: roster(root, task) == {"good": "completed", "bad": "failed", "cut": "active"})
    root.call("subagent.cancel", task=task, subagent="cut", kill=True)
    until(lambda: roster(root, task)["cut"] == "failed")
    cancelled = [e["agentInstance"] for e in root.events(task) if e["type"] == "agent.cancelled"]
    assert cancelled == ["cut"]


@pytest.mark.requirement("R24")
def test_the_roster_has_the_skills_of_a_type(root: Root) -> None:
    folder = root.path.parent / ".agent" / "subagent_types" / "prover"
    folder.mkdir(parents=True)
    words = "---\nname: prover\ndescription: Proves.\nskills: [logic, 'a: b']\n---\nProve it.\n"
    (folder / "SUBAGENT.md").write_text(words)
    task = root.create_task()
    root.run(task, sh("echo ok", subagent_id="one", subagent_type="prover"))
    until(lambda: roster(root, task) == {"one": "completed"})
    (entry,) = task_yaml(root, task)["roster"]
    assert (entry["agent"], entry["skills"]) == ("prover", ["logic", "a: b"])
    contract = json.loads((root.folder(task, "one") / "contract.json").read_text())
    assert contract["skills"] == entry["skills"]


@pytest.mark.requirement("R24")
def test_a_task_is_shown_with_all_that_its_file_says(root: Root) -> None:
    task = root.create_task()
    root.run(task, sh("echo ok", subagent_id="done"), sh(ASKS, subagent_id="asks"))
    until(lambda: roster(root, task) == {"done": "completed", "asks": "awaiting"})
    shown, file = root.call("task.show", task=task), task_yaml(root, task)
    assert [gate["gate_id"] for gate in shown["gates"]] == [gate["id"] for gate in file["gates"]]
    assert {key: shown[key] for key in file if key != "gates"} == {
        key: value for key, value in file.items() if key != "gates"
    }


@pytest.mark.requirement("R31")
def test_a_blocked_one_is_awaiting_and_its_questions_lie_open(root: Root, task: str) -> None:
    root.run(task, sh(ASKS, subagent_id="bio"))
    until(lambda: roster(root, task) == {"bio": "awaiting"})
    notes = root.task_folder(task) / "shared" / "human-notes.md"
    assert "which?" in notes.read_text() and "bio-1" in notes.read_text()
    root.call("subagent.continue", task=task, subagent="bio", message="red")
    root.call("subagent.wait_all", task=task, timeout_seconds=20)
    until(lambda: roster(root, task) == {"bio": "awaiting"})
    assert notes.read_text().count("which?") == 2


def test_text_written_by_people_survives_our_writes(root: Root, task: str) -> None:
    path = root.task_folder(task) / "task.yaml"
    text = path.read_text().replace("config:", "# why three\nowner: me  # not you\nconfig:")
    path.write_text(text)
    root.run(task, command("echo", "x", subagent_id="bio"))
    until(lambda: roster(root, task) == {"bio": "completed"})
    kept = path.read_text()
    assert "# why three\nowner: me  # not you\nconfig:" in kept


@pytest.mark.requirement("R23")
def test_a_hand_edit_of_the_limit_counts_at_once(root: Root) -> None:
    task = root.create_task(limit=1)
    root.spawn(task, sh("sleep 60"))
    edit_limit(root, task, 1, 2)
    root.spawn(task, sh("sleep 60"))
    edit_limit(root, task, 2, 1)
    refused = root.refusal("subagent.spawn", task=task, tasks=[sh("echo x")])
    assert refused.message == "concurrency limit exceeded: active=2, limit=1"
    root.call("task.cancel", task=task, kill=True)


@pytest.mark.requirement("R40")
def test_without_its_own_a_wait_takes_the_time_of_the_task(root: Root) -> None:
    task = root.create_task(timeout_seconds=0.2)
    root.spawn(task, sh("sleep 60"))
    refused = root.refusal("subagent.wait_any", task=task)
    assert (refused.code, refused.message) == ("wait_timed_out", "nothing settled within 0.2 s")
    root.call("task.cancel", task=task, kill=True)


def test_a_broken_file_is_named_with_its_line_and_nothing_is_started(root: Root) -> None:
    task = root.create_task(limit=3)
    path = root.task_folder(task) / "task.yaml"
    whole = path.read_text()
    edit_limit(root, task, 3, "many")
    before = root.state()
    refused = root.refusal("subagent.spawn", task=task, tasks=[sh("echo x")])
    line = 1 + whole[: whole.index("maxConcurrentAgents")].count("\n")
    assert f"task.yaml: line {line}: config.maxConcurrentAgents" in refused.message
    assert root.call("task.show", task=task)["problem"] == refused.message
    assert root.state() == before
    path.write_text(whole)
    assert root.run(task, command("echo", "ok"))[0]["success"]


def edit_limit(root: Root, task: str, before: object, after: object) -> None:
    path = root.task_folder(task) / "task.yaml"
    text = path.read_text()
    assert f"maxConcurrentAgents: {before}\n" in text
    path.write_text(
        text.replace(f"maxConcurrentAgents: {before}\n", f"maxConcurrentAgents: {after}\n")
    )


@pytest.mark.requirement("R235", "R236", "R240", "R247")
def test_a_running_subagent_is_shown_with_the_status_of_its_team(root: Root, task: str) -> None:
    script = f"python3 -I -c '{TESTIFIES}'; {HOLDS}"
    root.spawn(task, sh(script, subagent_id="bio", timeout_seconds=20))
    file = root.folder(task, "bio") / "full_logs" / "status.json"
    until(lambda: "phase" in root.rows(task)["bio"])
    row = root.rows(task)["bio"]
    assert set(row) >= {
        "subagent_id", "status", "phase", "completion_percentage", "task", "workspace",
        "started_at", "elapsed_seconds", "token_usage",
    }  # fmt: skip
    assert (row["status"], row["phase"], row["completion_percentage"]) == (
        "running",
        "enforcement",
        50,
    )
    before = file.read_bytes()
    result = root.call("subagent.cancel", task=task, subagent="bio")["result"]
    assert (result["status"], result["answer"]) == ("cancelled", "answer of two")
    assert file.read_bytes() == before
    snapshot = root.folder(task, "bio") / "full_logs" / "two" / "20260101_000001"
    assert (snapshot / "answer.txt").read_text() == "answer of two"
    assert (snapshot / "workspace").is_dir()


@pytest.mark.requirement("R65", "R237", "R248")
def test_metrics_sum_the_spending_of_subagents(root: Root, task: str) -> None:
    script = f"python3 -I -c '{TESTIFIES}'; echo done"
    root.run(task, sh(script), sh(script), command("echo", "free"))
    metrics = root.task_folder(task) / "metrics_summary.json"
    expected = {
        "totals": {
            "input_tokens": 200,
            "output_tokens": 40,
            "estimated_cost": 1.0,
            "agent_cost": 0.0,
            "subagent_cost": 1.0,
        },
        "subagents": {
            "total_subagents": 3,
            "total_input_tokens": 200,
            "total_output_tokens": 40,
            "total_estimated_cost": 1.0,
        },
    }
    until(lambda: written(metrics) == expected)
    assert root.call("task.show", task=task)["metrics"] == expected


@pytest.mark.requirement("R238")
def test_the_tasks_own_status_says_how_many_are_left(root: Root, task: str) -> None:
    root.run(task, command("echo", "x"), sh("exit 1"))
    path = root.task_folder(task) / "status.json"
    words = ("pending", "running", "blocked", "waiting_for_merge", "cancelled")
    none = dict.fromkeys(words, 0)
    counts = {"total": 2, "completed": 1, "failed": 1, **none}
    until(lambda: written(path)["counts"] == counts)
    assert (written(path)["unclosed"], written(path)["outcome"]) == (0, "failed")
    assert written(path)["last_seq"] == root.events(task)[-1]["seq"]
    root.call("task.close", task=task)
    until(lambda: written(path)["state"] == "closed")
    assert written(path)["outcome"] == "failed"
    until(lambda: task_yaml(root, task)["state"] == "closed")


@pytest.mark.requirement("R98", "R99")
def test_a_report_of_its_own_is_copied_and_one_is_made_where_there_is_none(
    root: Root, task: str
) -> None:
    script = "mkdir -p .orchestrix; echo '# Mine' > .orchestrix/step-0-result.md; echo x"
    pattern = ".orchestrix/step-<idx>-result.md"
    root.run(task, sh(script, subagent_id="own", report_path_pattern=pattern))
    root.run(task, sh("mkdir .retinue; echo '# Ours' > .retinue/step-1-result.md; echo x"))
    root.run(task, command("echo", "the answer", subagent_id="none"))
    reports = [
        *root.task_folder(task).glob("agents/*/artifacts/step-*-result.md"),
    ]
    texts = {path.name: path.read_text() for path in reports}
    assert texts["step-0-result.md"] == "# Mine\n"
    assert texts["step-1-result.md"] == "# Ours\n"
    assert "the answer" in texts["step-2-result.md"]


@pytest.mark.requirement("R16", "R260")
@pytest.mark.parametrize("end", ["sleep 60", "exit 1", "kill -9 $$"])
def test_files_of_one_that_gave_no_answer_can_be_read_afterwards(
    root: Root, task: str, end: str
) -> None:
    (result,) = root.run(task, sh(f"mkdir d; echo work > d/file; {end}", timeout_seconds=1.0))
    assert (result["answer"], result["success"]) == (None, False)
    assert Path(result["workspace_path"], "d", "file").read_text() == "work\n"


@pytest.mark.requirement("R27", "R28", "R35")
def test_the_list_tells_every_status_apart(root: Root) -> None:
    task = root.create_task(limit=3)
    root.run(task, command("echo", "x", subagent_id="good"), sh("exit 1", subagent_id="bad"))
    root.run(task, sh(ASKS, subagent_id="asks"))
    root.spawn(task, sh("sleep 60", subagent_id="cut"))
    root.call("subagent.cancel", task=task, subagent="cut", kill=True)
    root.spawn(task, *(sh("sleep 60", subagent_id=f"r{n}") for n in range(4)), queue=True)
    statuses = {name: row["status"] for name, row in root.rows(task).items()}
    assert statuses == {
        "good": "completed", "bad": "failed", "asks": "blocked", "cut": "cancelled",
        "r0": "running", "r1": "running", "r2": "running", "r3": "pending",
    }  # fmt: skip
    root.call("task.cancel", task=task, kill=True)


@pytest.mark.requirement("R251")
def test_a_background_spawn_says_where_to_look(root: Root, task: str) -> None:
    answer = root.call("subagent.spawn", task=task, tasks=[sh("sleep 60", subagent_id="bio")])
    folder = root.folder(task, "bio")
    assert answer == {
        "success": True,
        "mode": "background",
        "subagents": [
            {
                "subagent_id": "bio",
                "status": "running",
                "workspace": str(folder / "workspace"),
                "workspace_path": str(folder / "workspace"),
                "status_file": str(folder / "full_logs" / "status.json"),
            }
        ],
        "note": "Poll for subagent completion to retrieve results when ready.",
    }
    root.call("task.cancel", task=task, kill=True)


@pytest.mark.requirement("R272")
def test_a_context_that_is_not_there_is_refused_before_anything_exists(
    root: Root, task: str
) -> None:
    before = root.state()
    for terms in ({"context_paths": ["nowhere"]}, {"context_files": ["nowhere.txt"]}):
        refused = root.refusal("subagent.spawn", task=task, tasks=[sh("echo x", **terms)])
        assert refused.code == "missing_context"
        assert "nowhere" in refused.message
    assert root.state() == before


def test_a_joined_summary_lies_in_the_shared_reports(root: Root, task: str) -> None:
    root.run(task, command("echo", "first", subagent_id="one"), sh("exit 4", subagent_id="two"))
    document = root.call("task.join", task=task)
    reports = root.task_folder(task) / "shared" / "reports"
    assert written(reports / "joined-summary.json") == document
    assert [part["agentInstance"] for part in document["subagents"]] == ["one", "two"]
    text = (reports / "joined-summary.md").read_text()
    assert "> first" in text and "code 4" in text
