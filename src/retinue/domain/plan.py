"""A plan: the steps of a run, what each may change, and which wait for which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import combinations
from pathlib import PurePosixPath

from retinue.domain.brief import Brief
from retinue.domain.contract import REPORT_PATTERN
from retinue.domain.errors import BadInput
from retinue.domain.globs import could_meet, near, require_glob
from retinue.domain.ids import is_id
from retinue.domain.soundness import require_report_inside

MERGE, COPY, NONE = "merge", "copy", "none"
INTEGRATIONS = (MERGE, COPY, NONE)
STOP = "stop"
MAX_STEPS = 1000
ALLOWANCES = ("links", "submodules", "secrets")


@dataclass(frozen=True, kw_only=True)
class PlanStep:
    id: str
    title: str
    description: str = ""
    success_criteria: tuple[str, ...] = ()
    owns: tuple[str, ...] = ()  # what it may change; nothing named: anything, alone
    depends_on: tuple[str, ...] = ()
    tools: tuple[str, ...] | None = None  # None: the usual ones
    command: tuple[str, ...] = ()  # none: a team of models works on it
    type: str | None = None
    refine: bool = True  # False: the team's first answer counts
    verify: tuple[str, ...] = ()
    integration: str = MERGE
    destination: str = ""  # of a copy, below the project
    timeout_seconds: float | None = None
    retries: int = 1
    allow: tuple[str, ...] = ()  # what a merge may bring beyond plain files

    @property
    def alone(self) -> bool:
        """Whether nobody else may work meanwhile: it could change anything."""
        return self.integration == MERGE and not self.owns


@dataclass(frozen=True, kw_only=True)
class Plan:
    goal: str
    steps: tuple[PlanStep, ...]
    repository: str = ""  # none: no step is merged
    ref: str = "HEAD"
    on_failure: str = STOP
    inspect: tuple[str, ...] = ()  # a command that is given the files each merge would change
    max_file_mb: float | None = None  # that one changed file may have
    report_path_pattern: str = REPORT_PATTERN


def require_sound_plan(plan: Plan) -> None:
    """The plan can be carried out as it is written.

    Raises:
        BadInput: names the step, or both steps, and what is wrong.
    """
    if not 0 < len(plan.steps) <= MAX_STEPS:
        raise _wrong(f"a plan has 1 to {MAX_STEPS} steps, not {len(plan.steps)}")
    taken: set[str] = set()
    for step in plan.steps:
        if not is_id(step.id):
            raise _wrong(f"{step.id[:80]!a} is not a valid id of a step")
        if step.id.lower() in taken:
            raise _wrong(f"two steps have the id {step.id}", "case does not count")
        taken.add(step.id.lower())
    require_report_inside(plan.report_path_pattern)
    names = {step.id for step in plan.steps}
    for step in plan.steps:
        _require_sound_step(step, names)
        if step.integration == MERGE and not plan.repository:
            raise _wrong(f"step {step.id} is to be merged, and the plan names no base.repository")
    _require_boundaries(integration_order(plan))


def unheld(plan: Plan) -> tuple[str, ...]:
    """What the plan says of its steps and nothing holds them to: output that is not joined is
    not looked through.
    """
    names = [step.id for step in plan.steps if step.owns and step.integration == NONE]
    if not names:
        return ()
    return (
        f"nothing is joined of {', '.join(names)}, and nothing holds a step to what it owns then: "
        "give the plan a base, or such a step 'integration: copy'",
    )


def integration_order(plan: Plan) -> tuple[PlanStep, ...]:
    """The steps as their work is joined: as written, but none before what it depends on.

    Raises:
        BadInput: they wait for each other in a circle.
    """
    by_id = {step.id: step for step in plan.steps}
    place = {step.id: number for number, step in enumerate(plan.steps)}
    sorter = TopologicalSorter({step.id: step.depends_on for step in plan.steps})
    try:
        sorter.prepare()
    except CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        raise _wrong(f"steps depend on each other in a circle: {circle}") from None
    ready: list[str] = []
    order: list[PlanStep] = []
    while sorter.is_active():
        ready = sorted([*ready, *sorter.get_ready()], key=place.__getitem__)
        first, *ready = ready
        order.append(by_id[first])
        sorter.done(first)
    return tuple(order)


def foundations(order: Sequence[PlanStep]) -> Mapping[str, frozenset[str]]:
    """For each step those that must be over before it starts, whatever came of them.

    Its dependencies and theirs; and between a step that works alone and any
    other, the earlier one: so what a step starts from never depends on who was faster.
    """
    before: dict[str, frozenset[str]] = {}
    for number, step in enumerate(order):
        direct = {*step.depends_on}
        if step.integration == MERGE:
            earlier = [each for each in order[:number] if each.integration == MERGE]
            direct |= {each.id for each in earlier if step.alone or each.alone}
        found: set[str] = set()
        for each in reversed(order[:number]):  # a later one has mostly found the others already
            if each.id in direct and each.id not in found:
                found |= {each.id, *before[each.id]}
        before[step.id] = frozenset(found)
    return before


def _require_sound_step(step: PlanStep, names: set[str]) -> None:
    unknown = [name for name in step.depends_on if name not in names]
    if unknown:
        raise _wrong(
            f"step {step.id} depends on {unknown[0][:80]!a}, which is no step",
            f"steps: {', '.join(sorted(names))}"[:500],
        )
    if step.integration not in INTEGRATIONS:
        raise _wrong(
            f"step {step.id}: unknown integration {step.integration[:40]!a}",
            f"known: {', '.join(INTEGRATIONS)}",
        )
    for pattern in step.owns:
        require_glob(pattern, f"step {step.id}: owns")
    if step.destination and step.integration != COPY:
        raise _wrong(f"step {step.id}: destination belongs to integration copy")
    odd = [name for name in step.allow if name not in ALLOWANCES]
    if odd:
        raise _wrong(f"step {step.id}: unknown allowance {odd[0][:40]!a}", ", ".join(ALLOWANCES))


def _require_boundaries(order: Sequence[PlanStep]) -> None:
    """Two steps that could work at the same time never own the same path, but for copies: each
    has a place of its own.
    """
    before = foundations(order)
    _require_places(order, before)
    owned = [(step, each) for step in order if step.integration != COPY for each in step.owns]
    for place, later in near([pattern for _, pattern in owned]):
        (one, mine), (other, theirs) = owned[place], owned[later]
        if one is other or one.id in before[other.id]:  # the other one is never joined first
            continue
        if could_meet(mine, theirs):
            raise _wrong(
                f"steps {one.id} and {other.id} could work at the same time and own the same "
                f"paths: {mine!a} and {theirs!a}",
                "let one depend on the other, or part what they own",
            )


def _require_places(order: Sequence[PlanStep], before: Mapping[str, frozenset[str]]) -> None:
    """No copy comes to where something is already: each makes its folder itself."""
    copied = [step for step in order if step.destination]
    for one, other in combinations(copied, 2):  # the other one is never joined first
        here, there = PurePosixPath(one.destination), PurePosixPath(other.destination)
        later_within = here in there.parents and one.id in before[other.id]
        if not later_within and (here == there or here in there.parents or there in here.parents):
            raise _wrong(
                f"steps {one.id} and {other.id} are copied to the same place: "
                f"{one.destination!a} and {other.destination!a}",
                "give each a destination of its own",
            )


def _wrong(sentence: str, hint: str = "") -> BadInput:
    return BadInput(sentence, code="invalid_plan", hint=hint)


def brief_of(step: PlanStep) -> Brief:
    return Brief(
        step.description or step.title,
        id=step.id,
        argv=step.command,
        timeout_seconds=step.timeout_seconds,
        tools=step.tools,
        type=step.type,
        refine=step.refine,
        retries=step.retries,
        title=step.title,
        success_criteria=step.success_criteria,
    )
