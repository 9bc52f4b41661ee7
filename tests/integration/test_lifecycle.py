"""What is recorded of a subagent's life, from its creation to its end, by real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from retinue.runtime.procfs import list_process_tree
from support.reader import CLOSE_REASONS, Reader
from support.roots import Root, Row, command, held, sh, until

ASKS = 'printf \'{"status":"blocked","questions":["which?"]}\' > "$RETINUE_FINAL"'
STUBBORN = "trap '' INT; touch up; while :; do sleep 0.02; done"
SUCCESS = [
    "subagent_created",
    "subagent_started",
    "started",
    "completed",
    "subagent_attempt",
    "subagent_waiting_for_merge",
    "output_accepted",
    "subagent_closed",
]
FAILURE = [
    "subagent_created",
    "subagent_started",
    "started",
    "failed",
    "subagent_attempt",
    "subagent_failed",
    "subagent_closed",
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Root]:
    """One steward for all of them; each test has a task of its own."""
    project = tmp_path_factory.mktemp("project")
    with held(project / ".retinue") as root:
        yield root
        root.sound()
        root.stop()
        Reader(root.path).check(finished=False)


def payload(root: Root, task: str, name: str, kind: str) -> Row:
    (event,) = [e for e in root.events(task, name) if e["type"] == f"agent.{kind}"]
    return dict(event["payload"])


def closed(root: Root, task: str, name: str) -> tuple[str, str]:
    last = root.events(task, name)[-1]
    assert last["type"] == "agent.subagent_closed"
    assert last["payload"]["sub_agent_id"] == name
    assert last["payload"]["step_idx"] == root.rows(task)[name]["step_idx"]
    assert last["payload"]["final_status"] in ("completed", "failed")
    assert last["payload"]["close_reason"] in CLOSE_REASONS
    return last["payload"]["final_status"], last["payload"]["close_reason"]


class TestSuccess:
    @pytest.mark.requirement(
        "R49", "R50", "R54", "R126", "R127", "R128", "R129", "R132", "R133", "R134", "R135", "R143"
    )
    def test_it_is_created_started_attempted_delivered_and_closed(
        self, root: Root, task: str
    ) -> None:
        (result,) = root.run(task, command("echo", "ok", subagent_id="bio"))
        assert result["success"]
        assert root.types(task, "bio") == SUCCESS
        assert payload(root, task, "bio", "subagent_attempt")["attempt"] == 1
        assert closed(root, task, "bio") == ("completed", "accepted")

    @pytest.mark.requirement("R108", "R109", "R117", "R120")
    def test_its_own_end_is_not_final_before_its_output_was_accepted(
        self, root: Root, task: str
    ) -> None:
        root.run(task, command("echo", "ok", subagent_id="bio"))
        types = root.types(task, "bio")
        order = ["completed", "subagent_waiting_for_merge", "output_accepted", "subagent_closed"]
        assert all(types.index(a) < types.index(b) for a, b in pairwise(order))
        artifacts = root.folder(task, "bio") / "artifacts"
        assert (artifacts / "step-0-result.md").read_text().endswith("ok\n")

    @pytest.mark.requirement("R44", "R46", "R47", "R124", "R125")
    def test_every_event_is_numbered_named_and_summed_up(self, root: Root, task: str) -> None:
        root.run(task, command("echo", "x" * 500, subagent_id="bio"), sh("exit 1"))
        events = root.events(task)
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        for event in events:
            assert set(event) == {
                "seq", "id", "ts", "type", "taskId", "run_id", "agentInstance", "attempt", "by",
                "contract_sha256", "payload",
            }  # fmt: skip
            assert event["taskId"] == task
            assert 0 < len(event["payload"]["summary"]) <= 120
            if event["agentInstance"]:
                assert event["type"].startswith("agent.")
                assert event["payload"]["agentInstance"] == event["agentInstance"]
                assert event["payload"]["sub_agent_id"] == event["agentInstance"]
                assert len(event["contract_sha256"]) == 64

    @pytest.mark.requirement("R107")
    def test_running_means_that_a_process_of_its_own_runs(self, root: Root, task: str) -> None:
        root.spawn(task, sh("while ! test -e go; do sleep 0.02; done; echo ok", subagent_id="bio"))
        assert root.rows(task)["bio"]["state"] == "running"
        pid = payload(root, task, "bio", "started")["pid"]
        assert Path(f"/proc/{pid}").exists() and pid != root.pid
        Path(root.rows(task)["bio"]["workspace"], "go").touch()
        root.call("subagent.wait_all", task=task, timeout_seconds=20)
        assert not list_process_tree(pid)

    @pytest.mark.requirement("R145", "R152")
    def test_all_of_a_call_run_at_once_in_workspaces_of_their_own(
        self, root: Root, task: str
    ) -> None:
        meets = "touch up; until test -e ../../{}/workspace/up; do sleep 0.02; done; echo met"
        briefs = [sh(meets.format(b), subagent_id=a) for a, b in ("ab", "bc", "ca")]
        results = root.run(task, *briefs)
        assert [result["answer"] for result in results] == ["met"] * 3
        assert len({result["workspace"] for result in results}) == 3


class TestFailure:
    @pytest.mark.requirement("R48", "R51", "R96", "R110", "R128", "R130")
    def test_an_execution_error_is_tried_once_more_and_then_final(
        self, root: Root, task: str
    ) -> None:
        (result,) = root.run(task, sh("echo oops >&2; exit 3", subagent_id="bio", max_retries=1))
        assert (result["status"], result["success"]) == ("error", False)
        assert root.types(task, "bio") == [
            *FAILURE[:5],
            *("started", "failed", "subagent_attempt"),
            *FAILURE[5:],
        ]
        attempts = [e for e in root.events(task, "bio") if e["type"] == "agent.subagent_attempt"]
        assert [e["payload"]["attempt"] for e in attempts] == [1, 2]
        assert [e["payload"]["next"] for e in attempts] == ["retry", "finish"]
        failed = payload(root, task, "bio", "subagent_failed")
        assert failed["failure_kind"] == "execution"
        assert "code 3" in failed["reason"]
        assert closed(root, task, "bio") == ("failed", "execution_failed")

    def test_a_second_attempt_that_works_is_a_success(self, root: Root, task: str) -> None:
        script = 'test "$RETINUE_ATTEMPT" = 2 || exit 1; echo second'
        (result,) = root.run(task, sh(script, subagent_id="bio", max_retries=1))
        assert (result["success"], result["answer"]) == (True, "second")
        assert "subagent_failed" not in root.types(task, "bio")
        assert closed(root, task, "bio") == ("completed", "accepted")

    @pytest.mark.requirement("R59", "R60", "R110", "R115")
    def test_one_that_runs_out_of_time_is_ended_recovered_and_not_tried_again(
        self, root: Root, task: str
    ) -> None:
        script = 'printf half > "$RETINUE_ANSWER.tmp"; echo x > file; sleep 60'
        (result,) = root.run(
            task, sh(script, subagent_id="bio", timeout_seconds=1.0, max_retries=3)
        )
        assert (result["status"], result["answer"]) == ("timeout", None)
        assert Path(result["workspace"], "file").read_text() == "x\n"
        assert result["workspace_files"] == ["file"]
        assert root.types(task, "bio") == FAILURE
        assert payload(root, task, "bio", "failed")["ended"] == "deadline"
        assert payload(root, task, "bio", "subagent_failed")["failure_kind"] == "timeout"
        assert closed(root, task, "bio") == ("failed", "timeout")

    @pytest.mark.requirement("R60")
    @pytest.mark.parametrize(
        ("end", "error"),
        [
            ("", "no output"),
            ("""echo '{"status": "failed", "summary": "lost"}' > "$RETINUE_FINAL" """, "lost"),
        ],
    )
    def test_one_that_ends_by_itself_without_an_answer_has_its_files_named(
        self, root: Root, task: str, end: str, error: str
    ) -> None:
        (result,) = root.run(task, sh(f"echo x > file; {end}", subagent_id="bio", max_retries=0))
        assert (result["status"], result["error"]) == ("error", error)
        assert result["workspace_files"] == ["file"]
        (finished,) = root.run(task, sh("echo x > file; echo done", subagent_id="well"))
        assert finished["success"] and "workspace_files" not in finished

    def test_one_that_runs_out_of_time_is_tried_again_if_its_contract_says_so(
        self, root: Root, task: str
    ) -> None:
        script = 'test "$RETINUE_ATTEMPT" = 2 || sleep 60; echo second'
        (result,) = root.run(
            task,
            sh(
                script, subagent_id="bio", timeout_seconds=0.5, max_retries=1, retry_on_timeout=True
            ),
        )
        assert (result["status"], result["answer"]) == ("completed", "second")
        assert root.types(task, "bio").count("subagent_attempt") == 2

    @pytest.mark.requirement("R115")
    def test_each_attempt_has_a_line_of_its_own(self, root: Root, task: str) -> None:
        script = 'test "$RETINUE_ATTEMPT" = 1 && exit 3; sleep 0.2; echo second'
        (result,) = root.run(task, sh(script, subagent_id="bio", max_retries=1))
        file = root.folder(task, "bio") / "runtime" / "attempts.jsonl"
        first, second = map(json.loads, file.read_text().splitlines())
        assert (first["attempt"], first["status"]) == (1, "error")
        assert (second["attempt"], second["answer"]) == (2, "second")
        spent = first["execution_time_seconds"] + second["execution_time_seconds"]
        assert result["execution_time_seconds"] == pytest.approx(spent, abs=0.002)

    @pytest.mark.requirement("R55", "R63", "R217", "R222", "R223")
    def test_finished_work_of_one_that_ran_out_of_time_is_a_success(
        self, root: Root, task: str
    ) -> None:
        status = (
            '{"costs":{"total_input_tokens":7,"total_output_tokens":5,"total_estimated_cost":0.25}}'
        )
        script = f"printf '{status}' > \"$RETINUE_LOGS/status.json\";"
        script += ' printf done > "$RETINUE_ANSWER"; sleep 60'
        (result,) = root.run(task, sh(script, subagent_id="bio", timeout_seconds=1.0))
        assert (result["status"], result["success"]) == ("completed_but_timeout", True)
        assert result["answer"] == "done"
        assert result["token_usage"] == {
            "input_tokens": 7,
            "output_tokens": 5,
            "estimated_cost": 0.25,
        }
        assert closed(root, task, "bio") == ("completed", "accepted")

    @pytest.mark.requirement("R15")
    def test_a_command_that_cannot_be_executed_fails_with_its_errno(
        self, root: Root, task: str
    ) -> None:
        tries = {"max_retries": 3}  # of which none could help
        (result,) = root.run(task, command("/no/such/command", subagent_id="bio", **tries))
        assert result["status"] == "error"
        assert "No such file" in result["error"] or "ENOENT" in result["error"]
        assert Path(result["workspace_path"]).is_dir()
        types = root.types(task, "bio")
        assert types[:2] == ["subagent_created", "subagent_started"]
        assert types[-2:] == ["subagent_failed", "subagent_closed"]
        assert types.count("subagent_attempt") == 1
        assert closed(root, task, "bio") == ("failed", "execution_failed")


class TestCancel:
    @pytest.mark.requirement("R34", "R42", "R43", "R53")
    def test_a_running_one_is_signalled_step_by_step_and_ends_as_cancelled(
        self, root: Root, task: str
    ) -> None:
        root.spawn(task, sh(STUBBORN, subagent_id="bio"))
        until((root.folder(task, "bio") / "workspace" / "up").exists)
        answer = root.call("subagent.cancel", task=task, subagent="bio", reason="enough")
        assert answer["result"]["status"] == "cancelled"
        assert root.types(task, "bio") == [
            *FAILURE[:3],
            "cancel_requested",
            "cancelled",
            *FAILURE[4:],
        ]
        cancelled = payload(root, task, "bio", "cancelled")
        assert cancelled["signals"] == ["SIGINT", "SIGTERM"]
        assert cancelled["reason"] == "enough"
        assert payload(root, task, "bio", "subagent_failed")["failure_kind"] == "cancelled"
        assert closed(root, task, "bio") == ("failed", "cancelled_by_user")
        assert root.rows(task)["bio"]["status"] == "cancelled"

    def test_one_that_its_parent_cancels_says_so(self, root: Root, task: str) -> None:
        root.spawn(task, sh("sleep 60", subagent_id="bio"))
        root.call("subagent.cancel", task=task, subagent="bio", by="parent", kill=True)
        assert closed(root, task, "bio") == ("failed", "cancelled_by_parent")

    def test_a_pending_one_never_has_a_process(self, root: Root) -> None:
        task = root.create_task(limit=1)
        root.spawn(task, sh("sleep 60", subagent_id="first"))
        root.spawn(task, sh("touch ran", subagent_id="second"), queue=True)
        answer = root.call("subagent.cancel", task=task, subagent="second", reason="no")
        assert answer["result"]["status"] == "cancelled"
        assert Path(answer["result"]["workspace"]).is_dir()
        assert root.types(task, "second") == [
            "subagent_created",
            "cancel_requested",
            "subagent_started",
            "cancelled",
            "subagent_failed",
            "subagent_closed",
        ]
        assert payload(root, task, "second", "subagent_started")["launched"] is False
        assert payload(root, task, "second", "cancelled")["signals"] == []
        root.call("task.cancel", task=task, kill=True)
        assert not Path(answer["result"]["workspace"], "ran").exists()

    def test_a_blocked_one_ends_without_another_attempt(self, root: Root, task: str) -> None:
        (result,) = root.run(task, sh(ASKS, subagent_id="bio"))
        assert (result["status"], result["questions"]) == ("blocked", ["which?"])
        root.call("subagent.cancel", task=task, subagent="bio")
        assert root.types(task, "bio")[-4:] == [
            "cancel_requested",
            "cancelled",
            "subagent_failed",
            "subagent_closed",
        ]
        assert [gate["state"] for gate in root.call("gate.list", task=task)] == ["rejected"]
        assert root.refusal("gate.approve", task=task, gate="bio-1").code == "gate_closed"


class TestBlocked:
    @pytest.mark.requirement("R45", "R52")
    def test_a_block_is_an_event_with_its_questions_and_an_open_gate(
        self, root: Root, task: str
    ) -> None:
        root.run(task, sh(ASKS, subagent_id="bio"))
        types = [event["type"] for event in root.events(task, "bio")]
        assert types[-3:] == ["agent.blocked", "agent.subagent_attempt", "gate.blocked"]
        assert payload(root, task, "bio", "blocked")["questions"] == ["which?"]
        assert payload(root, task, "bio", "blocked")["reason"] == "which?"
        (gate,) = root.call("gate.list", task=task)
        assert (gate["gate_id"], gate["state"]) == ("bio-1", "open")

    @pytest.mark.requirement("R52")
    def test_a_second_question_blocks_again_and_gets_every_answer(
        self, root: Root, task: str
    ) -> None:
        asks = """
case $RETINUE_ATTEMPT in 3) sed 1,2d "$RETINUE_BRIEF"; exit 0 ;; esac
printf '{"status": "blocked", "questions": ["which   %s?"]}' $RETINUE_ATTEMPT > "$RETINUE_FINAL"
"""
        root.run(task, sh(asks, task="Paint it", subagent_id="bio"))
        root.call("gate.approve", task=task, gate="bio-1", answer="blue")
        assert root.call("subagent.wait_any", task=task, consumer="me")["status"] == "blocked"
        root.call("subagent.continue", task=task, subagent="bio", message="deep\nblue")
        assert root.call("subagent.wait_any", task=task, consumer="me")["status"] == "completed"
        assert root.call("subagent.result", task=task, subagent="bio")["answer"] == (
            "## Question: which 1?\n## Answer\n\nblue\n\n\n"
            "## Question: which 2?\n## Answer\n\ndeep\nblue"
        )
        types = [event["type"] for event in root.events(task, "bio")]
        assert types.count("agent.blocked") == types.count("gate.blocked") == 2

    def test_an_open_gate_is_shown_with_its_task_and_in_its_file(
        self, root: Root, task: str
    ) -> None:
        file = root.task_folder(task) / "task.yaml"
        root.run(task, sh(ASKS, subagent_id="bio"))
        entry = '  - id: "bio-1"\n    instance: "bio"\n    questions: ["which?"]\n'
        until(lambda: f"gates:\n{entry}" in file.read_text())
        assert root.call("task.show", task=task)["gates"] == [
            {
                "gate_id": "bio-1",
                "agentInstance": "bio",
                "state": "open",
                "questions": ["which?"],
                "answer": None,
            }
        ]
        root.call("subagent.cancel", task=task, subagent="bio")
        until(lambda: "gates: []\n" in file.read_text())
        assert root.call("task.show", task=task)["gates"] == []

    def test_the_answer_starts_the_next_attempt(self, root: Root, task: str) -> None:
        script = f'if [ $RETINUE_ATTEMPT = 1 ]; then {ASKS}; else cat "$RETINUE_BRIEF"; fi'
        root.run(task, sh(script, subagent_id="bio"))
        root.call("gate.approve", task=task, gate="bio-1", answer="the red one")
        root.call("subagent.wait_all", task=task, timeout_seconds=20)
        assert "the red one" in root.call("subagent.result", task=task, subagent="bio")["answer"]
        assert root.types(task, "bio").count("started") == 2
        assert root.types(task, "bio").count("subagent_started") == 1
        assert closed(root, task, "bio") == ("completed", "accepted")

    def test_an_unanswered_subagent_is_closed_with_its_task(self, root: Root, task: str) -> None:
        root.run(task, sh(ASKS, subagent_id="bio"))
        root.call("task.close", task=task)
        assert closed(root, task, "bio") == ("failed", "blocked_unresolved")
        reasons = [e["payload"].get("close_reason") for e in root.events(task, "bio")]
        assert set(reasons) == {None, "blocked_unresolved"}, "its failing gives the same reason"
        result = root.call("subagent.result", task=task, subagent="bio")
        assert (result["status"], result["success"]) == ("error", False)


class TestClosing:
    @pytest.mark.requirement("R97", "R112", "R113", "R118")
    def test_one_that_is_kept_open_is_not_done_until_its_parent_closes_it(
        self, root: Root, task: str
    ) -> None:
        root.run(task, command("echo", "x", subagent_id="good", close_on_completion=False))
        root.run(task, sh("exit 1", subagent_id="bad", close_on_completion=False))
        assert {name: row["state"] for name, row in root.rows(task).items()} == {
            "good": "completed",
            "bad": "failed",
        }
        assert root.call("task.show", task=task)["outcome"] == "running"
        root.call("subagent.close", task=task, subagent="good")
        root.call("subagent.close", task=task, subagent="bad")
        assert closed(root, task, "good") == ("completed", "accepted")
        assert closed(root, task, "bad") == ("failed", "execution_failed")
        assert root.call("task.show", task=task)["outcome"] == "failed"

    @pytest.mark.requirement("R80", "R119", "R122", "R123", "R137")
    def test_the_run_ends_as_its_children_did(self, root: Root) -> None:
        for scripts, outcome in (
            (["echo a", "echo b"], "succeeded"),
            (["echo a", "exit 1"], "failed"),
            ([], "succeeded"),
        ):
            task = root.create_task()
            for script in scripts:
                root.run(task, sh(script))
            root.call("task.close", task=task)
            assert root.call("task.show", task=task)["outcome"] == outcome
            ended = [e for e in root.events(task) if e["type"] == "run.ended"]
            assert [e["payload"]["outcome"] for e in ended] == [outcome]


class TestQueue:
    def test_waiting_ones_start_in_their_order_as_slots_free(self, root: Root) -> None:
        task = root.create_task(limit=1)
        briefs = [sh("sleep 0.05; echo x", subagent_id=f"s{n}") for n in range(5)]
        root.spawn(task, *briefs, queue=True)
        assert [row["status"] for row in root.rows(task).values()][1:] == ["pending"] * 4
        root.call("subagent.wait_all", task=task, timeout_seconds=20)
        story = [
            (event["type"].removeprefix("agent.subagent_"), event["agentInstance"])
            for event in root.events(task)
            if event["type"] in ("agent.subagent_started", "agent.subagent_closed")
        ]
        assert story == [(what, f"s{n}") for n in range(5) for what in ("started", "closed")]

    @pytest.mark.requirement("R23", "R26")
    def test_one_over_the_limit_is_refused_and_leaves_nothing(self, root: Root) -> None:
        task = root.create_task(limit=2)
        root.spawn(task, sh("sleep 60"), sh("sleep 60"))
        before = root.state()
        refused = root.refusal("subagent.spawn", task=task, tasks=[sh("echo x", subagent_id="bio")])
        assert refused.message == "concurrency limit exceeded: active=2, limit=2"
        assert (refused.code, refused.exit_code) == ("limit_exceeded", 5)
        assert root.state() == before
        root.call("task.cancel", task=task, kill=True)

    @pytest.mark.requirement("R23", "R26")
    def test_several_over_the_limit_are_refused_with_their_number(self, root: Root) -> None:
        task = root.create_task(limit=2)
        root.spawn(task, sh("sleep 60"))
        refused = root.refusal("subagent.spawn", task=task, tasks=[sh("echo x"), sh("echo y")])
        assert refused.message == "concurrency limit exceeded: active=1, limit=2, asked=2"
        root.call("task.cancel", task=task, kill=True)

    @pytest.mark.requirement("R23", "R26")
    def test_an_answer_for_which_no_slot_is_free_is_refused_as_any_start(self, root: Root) -> None:
        task = root.create_task(limit=1)
        asks = """echo '{"status": "blocked", "questions": ["Which?"]}' > "$RETINUE_FINAL" """
        root.run(task, sh(asks, subagent_id="bio"))
        root.spawn(task, sh("sleep 60"))
        before = root.state()
        given = {"task": task, "subagent": "bio", "message": "This"}
        refused = root.refusal("subagent.continue", **given)
        assert refused.message == "concurrency limit exceeded: active=1, limit=1"
        assert (refused.code, refused.exit_code) == ("limit_exceeded", 5)
        assert root.state() == before
        root.call("task.cancel", task=task, kill=True)
