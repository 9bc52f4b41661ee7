"""What a member is told of itself."""

from __future__ import annotations

from retinue.domain.contract import Contract, Execution, Outputs, Parent, Step, Team
from retinue.executors import prompts


def told(*, in_part: bool) -> str:
    contract = Contract(
        parent=Parent(run_id="r", step_idx=0, task_prompt="", goal_summary=""),
        step=Step(title="docs", description=""),
        execution=Execution(attempt_timeout_ms=1000),
        outputs=Outputs(integration="merge", base="0" * 40, owns=("docs/**",)),
        team=Team(members=()),
    )
    return prompts.system(contract, "", several=False, home="/w", context="/c", in_part=in_part)


def test_a_member_knows_whether_its_workspace_holds_the_whole_repository() -> None:
    assert "git sparse-checkout disable" in told(in_part=True)
    assert "sparse" not in told(in_part=False)
    assert "only what matches docs/**" in told(in_part=False)
