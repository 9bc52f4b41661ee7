"""Tasks on the repository: the plan they become, and what is told of their output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from retinue.core.errors import BadInput
from retinue.delegation.plan_tool import describe_background_plan, needs_plan, to_plan
from retinue.delegation.result_view import count_statuses, describe_integration, read_diffstat
from retinue.formats.plan_document import parse_plan

PATCH = """\
diff --git a/one.md b/one.md
--- a/one.md
+++ b/one.md
@@ -1,2 +1,2 @@
-old
--- a line of content
+new
diff --git a/new file b/new file
new file mode 100644
--- /dev/null
+++ b/new file
@@ -0,0 +1 @@
+one
"""


def test_tasks_become_a_valid_plan() -> None:
    given = {
        "tasks": [
            {"task": "Write one", "subagent_id": "one", "context_paths": [], "owns": ["one.md"]},
            {
                "task": "Write two",
                "subagent_id": "two",
                "context_paths": ["./"],
                "depends_on": ["one"],
                "timeout_seconds": 90.0,
            },
        ],
    }
    assert needs_plan(given)
    plan = parse_plan(to_plan(given), where="tasks")
    assert [step.id for step in plan.steps] == ["one", "two"]
    assert plan.steps[1].depends_on == ("one",) and plan.steps[1].timeout_seconds == 90
    assert [step.integration for step in plan.steps] == ["merge", "merge"]
    assert not needs_plan({"tasks": [{"task": "x", "context_paths": []}]})


def test_a_planned_task_cannot_have_other_context() -> None:
    task = {"task": "x", "subagent_id": "x", "context_paths": ["docs"]}
    given = {"tasks": [task], "apply": True}
    with pytest.raises(BadInput, match="sees the repository alone"):
        to_plan(given)


def test_a_diffstat_counts_content_and_not_headers(tmp_path: Path) -> None:
    patch = tmp_path / "changes.patch"
    patch.write_text(PATCH)
    assert read_diffstat(patch) == ["one.md +1 -2", "new file +1 -0"]
    assert read_diffstat(tmp_path / "missing") == []


@pytest.mark.parametrize("reason", ["merged", "merge_conflict"])
def test_the_patch_is_named_where_it_was_not_merged(tmp_path: Path, reason: str) -> None:
    patch = tmp_path / "artifacts" / "changes.patch"
    patch.parent.mkdir()
    patch.write_text(PATCH)
    joined = {"mode": "merge", "reason": reason, "files": ["one.md"]}
    result = {"log_path": str(tmp_path / "runtime"), "integration": joined}
    view = describe_integration(result)["integration"]
    assert view["diffstat"] and view.get("patch") == (None if reason == "merged" else str(patch))
    assert json.dumps(result["integration"]) == json.dumps(joined), "the result is left as it is"


def test_the_number_of_files_is_left_out_where_the_diffstat_names_them(tmp_path: Path) -> None:
    patch = tmp_path / "artifacts" / "changes.patch"
    patch.parent.mkdir()
    patch.write_text(PATCH)
    joined = {"mode": "merge", "reason": "merged", "files": 2}
    result = {"log_path": str(tmp_path / "runtime"), "integration": joined}
    assert "files" not in describe_integration(result)["integration"]
    patch.unlink()
    assert describe_integration(result)["integration"]["files"] == 2


def test_a_background_plan_names_its_tasks_before_they_start() -> None:
    shown = {"path": "/t", "subagents": [{"agentInstance": "a", "status": "running"}]}
    document = describe_background_plan(shown, ["a", "b"])
    rows = [(row["subagent_id"], row["status"]) for row in document["subagents"]]
    assert rows == [("a", "running"), ("b", "pending")]
    assert document["subagents"][1]["workspace"] == "/t/agents/b/workspace"


def test_counts_name_an_error_a_failure_and_include_tasks_without_a_result() -> None:
    found = count_statuses([{"status": "completed"}, {"status": "error"}], 3)
    assert found == {"total": 3, "completed": 1, "failed": 1, "timeout": 0}
