"""Plan of a run: its steps, the paths each may change, and their dependencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from itertools import combinations
from pathlib import PurePosixPath

from retinue.core.brief import Brief
from retinue.core.command_variables import SecretSource, format_secret
from retinue.core.contract import READ, REPORT_PATTERN, require_report_inside
from retinue.core.errors import PYTHON, BadInput
from retinue.core.globs import can_overlap, find_overlap_candidates, require_glob
from retinue.core.ids import is_id
from retinue.core.subagent import Counts, Task

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
    # Patterns of paths it may change; empty: any path, and it runs alone.
    owns: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    tools: tuple[str, ...] | None = None  # None: the default tools
    command: tuple[str, ...] = ()  # empty: a team of models works on it
    type: str | None = None
    refine: bool = True  # False: the team's first answer counts
    verify: tuple[str, ...] = ()
    integration: str = MERGE
    destination: str = ""  # of a copy, relative to the project
    timeout_seconds: float | None = None
    retries: int | None = None  # None: the default for a team or a command
    allow: tuple[str, ...] = ()  # what a merge may contain besides plain files
    agent: str = ""  # coding agent that works on it
    model: str = ""  # of that agent
    access: str = ""  # read: it cannot change its workspace
    answer_schema: Mapping[str, object] | None = None  # JSON schema of its answer
    on: tuple[str, ...] = ()  # labels of the node to run it, or host=NAME
    env: Mapping[str, str] | None = None  # variables of its command
    secrets: tuple[str, ...] = ()  # names of its secrets, with their sources once these are given
    redact: bool = False  # replace the values of its secrets in what it prints and answers
    approve: bool = False  # a person approves its output before it is joined
    reviews: str = ""  # the step whose output is joined only if this one approves it
    candidate_of: str = ""  # one of several steps of this name, of which one is joined
    votes_on: str = ""  # the candidates among which this step chooses

    @property
    def judges(self) -> bool:
        """Whether it only decides about the output of other steps."""
        return bool(self.reviews or self.votes_on)

    @property
    def unit(self) -> str:
        """The name that steps share if they are joined as one.

        These are a step and its reviewers, or candidates and their voters.
        """
        return self.reviews or self.votes_on or self.candidate_of or self.id

    @property
    def alone(self) -> bool:
        """Whether no other merged step may run at the same time: it could change any path."""
        return self.integration == MERGE and not self.owns


@dataclass(frozen=True, kw_only=True)
class Plan:
    goal: str
    steps: tuple[PlanStep, ...]
    repository: str = ""  # empty: no step is merged
    ref: str = "HEAD"
    on_failure: str = STOP
    inspect: tuple[str, ...] = ()  # command that receives the files each merge would change
    max_file_mb: float | None = None  # size limit of one changed file
    report_path_pattern: str = REPORT_PATTERN


def require_sound_plan(plan: Plan) -> None:
    """Check that the plan can be carried out as written.

    Raises:
        BadInput: names the step or steps, and the problem.
    """
    if not 0 < len(plan.steps) <= MAX_STEPS:
        raise _make_error(f"a plan has 1 to {MAX_STEPS} steps, not {len(plan.steps)}")
    # Ids name folders, so ids that differ only in case are the same id.
    taken: set[str] = set()
    for step in plan.steps:
        if not is_id(step.id):
            raise _make_error(f"{step.id[:80]!a} is not a valid id of a step")
        if step.id.lower() in taken:
            raise _make_error(f"two steps have the id {step.id}", "case does not count")
        taken.add(step.id.lower())
    require_report_inside(plan.report_path_pattern)
    names = {step.id for step in plan.steps}
    for step in plan.steps:
        _require_sound_step(step, names)
        _require_sound_judgement(step, plan)
        if step.integration == MERGE and not plan.repository:
            raise _make_error(
                f"step {step.id} is to be merged, but the plan has no base.repository"
            )
    _require_boundaries(order_for_integration(plan))


def list_unenforced(plan: Plan) -> tuple[str, ...]:
    """Return a warning about steps whose `owns` is not enforced.

    Only output that is merged or copied is checked against `owns`.
    """
    names = [step.id for step in plan.steps if step.owns and step.integration == NONE]
    if not names:
        return ()
    return (
        f"the output of {', '.join(names)} is not joined, so 'owns' is not enforced for it: "
        "give the plan a base, or such a step 'integration: copy'",
    )


def order_for_integration(plan: Plan) -> tuple[PlanStep, ...]:
    """Return the steps in the order in which their output is joined.

    That is the order of the plan, except that a step follows its dependencies, and reviewers and
    voters come directly before what they judge.

    Raises:
        BadInput: the dependencies form a cycle.
    """
    unit_of = {step.id: step.unit for step in plan.steps}
    units: dict[str, list[PlanStep]] = {}
    place: dict[str, int] = {}
    for number, step in enumerate(plan.steps):
        units.setdefault(step.unit, []).append(step)
        if not step.judges:
            place.setdefault(step.unit, number)
    needs = {
        unit: {unit_of[name] for step in steps for name in step.depends_on}
        for unit, steps in units.items()
    }
    sorter = TopologicalSorter(needs)
    try:
        sorter.prepare()
    except CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        raise _make_error(f"steps depend on each other in a circle: {circle}") from None
    ready: list[str] = []
    order: list[PlanStep] = []
    # Take one step at a time, always the earliest of the plan that is ready. TopologicalSorter
    # alone gives no stable order among steps that are ready together.
    while sorter.is_active():
        ready = sorted([*ready, *sorter.get_ready()], key=place.__getitem__)
        first, *ready = ready
        order += sorted(units[first], key=lambda step: not step.judges)
        sorter.done(first)
    return tuple(order)


def find_prerequisites(order: Sequence[PlanStep]) -> Mapping[str, frozenset[str]]:
    """Return for each step the steps that must have ended before it starts, in any state.

    These are its dependencies and theirs. A step that runs alone also waits for every earlier
    merged step, and later ones wait for it: the commit that a step starts from must not depend
    on which step was faster. Candidates do not wait for each other.
    """
    before: dict[str, frozenset[str]] = {}
    for number, step in enumerate(order):
        direct = {*step.depends_on}
        if step.integration == MERGE:
            earlier = [
                each
                for each in order[:number]
                if each.integration == MERGE and each.unit != step.unit
            ]
            direct |= {each.id for each in earlier if step.alone or each.alone}
        found: set[str] = set()
        # Backwards, because the prerequisites of a late step often include the earlier ones.
        for each in reversed(order[:number]):
            if each.id in direct and each.id not in found:
                found |= {each.id, *before[each.id]}
        before[step.id] = frozenset(found)
    return before


def select_unfinished(plan: Plan, completed: AbstractSet[str]) -> Plan:
    """Return the plan without its completed steps; the others no longer depend on those.

    Candidates are complete when one of them is. What is done again is judged again.
    """
    chosen = {step.candidate_of for step in plan.steps if step.id in completed} - {""}
    done = {step.id for step in plan.steps if step.id in completed or step.candidate_of in chosen}
    units = {step.unit for step in plan.steps if step.id not in done and not step.judges}
    left = [
        step for step in plan.steps if step.unit in units and (step.judges or step.id not in done)
    ]
    names = {step.id for step in left}
    return replace(
        plan,
        steps=tuple(
            replace(step, depends_on=tuple(n for n in step.depends_on if n in names))
            for step in left
        ),
    )


def _require_sound_step(step: PlanStep, names: set[str]) -> None:
    unknown = [name for name in step.depends_on if name not in names]
    if unknown:
        raise _make_error(
            f"step {step.id} depends on {unknown[0][:80]!a}, which is no step",
            f"steps: {', '.join(sorted(names))}"[:500],
        )
    if step.integration not in INTEGRATIONS:
        raise _make_error(
            f"step {step.id}: unknown integration {step.integration[:40]!a}",
            f"known: {', '.join(INTEGRATIONS)}",
        )
    for pattern in step.owns:
        require_glob(pattern, f"step {step.id}: owns")
    if step.destination and step.integration != COPY:
        raise _make_error(f"step {step.id}: destination belongs to integration copy")
    odd = [name for name in step.allow if name not in ALLOWANCES]
    if odd:
        raise _make_error(
            f"step {step.id}: unknown allowance {odd[0][:40]!a}", ", ".join(ALLOWANCES)
        )


def _require_sound_judgement(step: PlanStep, plan: Plan) -> None:
    """Check what a step reviews, votes on or is a candidate of."""
    by_id = {each.id: each for each in plan.steps}
    groups = {each.candidate_of for each in plan.steps} - {""}
    if sum(map(bool, (step.reviews, step.votes_on, step.candidate_of))) > 1:
        raise _make_error(f"step {step.id}: only one of reviews, votes_on and candidate_of")
    if step.candidate_of in by_id:
        raise _make_error(
            f"step {step.id}: candidate_of {step.candidate_of} is the id of a step",
            "give the candidates a name of their own",
        )
    if step.candidate_of and step.integration != MERGE:
        raise _make_error(f"step {step.id}: only what is merged can be a candidate")
    if step.votes_on and step.votes_on not in groups:
        raise _make_error(
            f"step {step.id} votes on {step.votes_on[:80]!a}, of which no step is a candidate",
            "name what the candidates name in candidate_of",
        )
    if step.reviews:
        judged = by_id.get(step.reviews)
        if judged is None or judged.integration != MERGE or judged.candidate_of:
            raise _make_error(
                f"step {step.id} reviews {step.reviews[:80]!a}, which is no step that is merged",
                "candidates are judged by 'votes_on'",
            )
    if step.judges and (step.integration != NONE or step.owns or step.verify):
        raise _make_error(f"step {step.id} only judges: nothing of it is joined, owned or verified")
    for name in step.depends_on:
        if by_id[name].judges:
            raise _make_error(
                f"step {step.id} depends on {name}, which only judges",
                f"depend on {by_id[name].unit} instead",
            )
        if by_id[name].unit == step.unit and name != step.id:
            raise _make_error(f"step {step.id} cannot depend on {name}: they are joined as one")


def _require_boundaries(order: Sequence[PlanStep]) -> None:
    """Check that steps that may run at the same time own no common path.

    Copied steps are exempt: each has a destination of its own.
    """
    before = find_prerequisites(order)
    _require_places(order, before)
    owned = [(step, each) for step in order if step.integration != COPY for each in step.owns]
    for place, later in find_overlap_candidates([pattern for _, pattern in owned]):
        (one, mine) = owned[place]
        (other, theirs) = owned[later]
        # `order` puts every prerequisite first, so `other` is never a prerequisite of `one`.
        if one.unit == other.unit or one.id in before[other.id]:
            continue
        if can_overlap(mine, theirs):
            raise _make_error(
                f"steps {one.id} and {other.id} could work at the same time and own the same "
                f"paths: {mine!a} and {theirs!a}",
                "make one depend on the other, or let them own different paths",
            )


def _require_places(order: Sequence[PlanStep], before: Mapping[str, frozenset[str]]) -> None:
    """Check that no two copies share a destination: a copy creates its own folder."""
    copied = [step for step in order if step.destination]
    # `other` is never joined before `one`, so only `other` may lie inside the folder of `one`.
    for one, other in combinations(copied, 2):
        here = PurePosixPath(one.destination)
        there = PurePosixPath(other.destination)
        later_within = here in there.parents and one.id in before[other.id]
        if not later_within and (here == there or here in there.parents or there in here.parents):
            raise _make_error(
                f"steps {one.id} and {other.id} are copied to the same place: "
                f"{one.destination!a} and {other.destination!a}",
                "give each a destination of its own",
            )


def _make_error(sentence: str, hint: str = "") -> BadInput:
    return BadInput(sentence, code="invalid_plan", hint=hint)


def to_brief(step: PlanStep) -> Brief:
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
        agent=step.agent,
        model=step.model,
        access="read" if step.access == READ else "write",
        answer_schema=step.answer_schema,
        on=step.on,
        env=step.env,
        secrets=step.secrets,
        redact=step.redact,
    )


def grant_secrets(plan: Plan, given: Sequence[SecretSource]) -> Plan:
    """Return the plan with the sources of the secrets that its steps name.

    A plan file alone cannot read anything: the user who starts it names each secret again.

    Raises:
        BadInput: a step names a secret that is not given, or no step names a given one.
    """
    sources = {secret.name: secret for secret in given}
    for step in plan.steps:
        missing = [name for name in step.secrets if name not in sources]
        if missing:
            raise BadInput(
                f"step {step.id} needs the secret {missing[0]}, which is not handed out",
                code="no_secret",
                hint=f"retinue run --plan FILE --secret {missing[0]}, or "
                f"--secret {missing[0]}=file:PATH",
                hints={PYTHON: f"run_plan(..., secrets=['{missing[0]}'])"},
            )
    named = {name for step in plan.steps for name in step.secrets}
    unused = [name for name in sources if name not in named]
    if unused:
        raise BadInput(
            f"no step of the plan names the secret {unused[0]}",
            code="invalid_secret",
            hint=f"write 'secrets: [{unused[0]}]' in the step that needs it",
        )
    return replace(plan, steps=tuple(_grant_step(step, sources) for step in plan.steps))


def _grant_step(step: PlanStep, sources: Mapping[str, SecretSource]) -> PlanStep:
    return replace(step, secrets=tuple(format_secret(sources[name]) for name in step.secrets))


class RunOutcome(StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


def decide_outcome(*, unclosed: int, failed: int) -> RunOutcome:
    """Return RUNNING until all subagents are closed; then FAILED if any of them failed."""
    if unclosed:
        return RunOutcome.RUNNING
    return RunOutcome.FAILED if failed else RunOutcome.SUCCEEDED


def decide_run_outcome(counts: Counts) -> RunOutcome:
    """Return the outcome of a run; a cancelled subagent counts as failed."""
    return decide_outcome(unclosed=counts.unclosed, failed=counts.failed + counts.cancelled)


def estimate_outcome(task: Task, counts: Counts) -> RunOutcome:
    """Return the outcome of a closed task's run; for an open task, the outcome if it closed now.

    An open task has not succeeded before it has a subagent and every planned step has begun.
    """
    if task.state == "closed":
        return RunOutcome(task.outcome)
    by_now = decide_run_outcome(counts)
    early = counts.total < max(1, task.next_step)
    return RunOutcome.RUNNING if early and by_now is RunOutcome.SUCCEEDED else by_now
