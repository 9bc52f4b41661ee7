"""A task, a subagent and a result, as plain as they can be; tests replace what concerns them."""

from __future__ import annotations

from retinue.core.contract import Contract, Execution, Parent, Step
from retinue.core.ids import RunId, SubagentId, TaskId
from retinue.core.lifecycle import Standing
from retinue.core.result import Result, Status, TokenUsage
from retinue.core.subagent import Subagent, Task
from retinue.formats.contract_json import contract_to_text

NOW = "2026-01-01T00:00:00.000Z"
TASK = Task(
    id=TaskId("site"),
    run=RunId("site-run-1"),
    title="Site",
    description="",
    state="open",
    outcome="running",
    created_at=NOW,
    updated_at=NOW,
)
CONTRACT = Contract(
    parent=Parent(run_id=TASK.run, step_idx=0, task_prompt="p", goal_summary="g"),
    step=Step(title="Bio", description="Write bio.md"),
    execution=Execution(attempt_timeout_ms=1000),
)
SUBAGENT = Subagent(
    id=SubagentId("bio"),
    task=TASK.id,
    run=TASK.run,
    step_idx=0,
    contract=CONTRACT,
    contract_text=contract_to_text(CONTRACT),
    contract_sha256="f" * 64,
    standing=Standing(),
    created_at=NOW,
)
RESULT = Result(
    subagent_id=SUBAGENT.id,
    status=Status.COMPLETED,
    answer="x",
    workspace="/w",
    execution_time_seconds=1.0,
    token_usage=TokenUsage(input_tokens=3),
    log_path="/l",
)
