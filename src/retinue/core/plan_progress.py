"""Progress of a plan: which steps can start, are joined next, or never start."""

from __future__ import annotations

from dataclasses import dataclass, field

from retinue.core.lifecycle import State
from retinue.core.plan import (
    MERGE,
    STOP,
    Plan,
    PlanStep,
    find_prerequisites,
    order_for_integration,
)
from retinue.core.plan_review import (
    CandidateChoice,
    CheckedOutput,
    choose_candidate,
    find_objection,
)
from retinue.core.subagent import Subagent

STOPPED_BEFORE = "the run was stopped before"


@dataclass
class PlanProgress:
    """A plan and the progress of its subagents. It can be rebuilt from the records."""

    plan: Plan
    base: str  # the commit the run starts from; empty if nothing is merged
    closed: dict[str, Subagent] = field(default_factory=dict)  # by step
    active: dict[str, Subagent] = field(default_factory=dict)  # started, not closed
    refused: dict[str, str] = field(default_factory=dict)  # why a step could not be started
    commits: dict[str, str] = field(default_factory=dict)  # merge commit by step
    checked: dict[str, CheckedOutput] = field(default_factory=dict)  # output to be judged, by step
    answers: dict[str, object] = field(default_factory=dict)  # of completed reviewers and voters
    stopped: bool = False  # a stop was requested

    def __post_init__(self) -> None:
        self.order = order_for_integration(self.plan)
        self.place = {step.id: number for number, step in enumerate(self.order)}
        self._before = find_prerequisites(self.order)
        self._by_id = {step.id: step for step in self.order}
        self.candidates: dict[str, list[str]] = {}  # in the order of the plan
        self._judges: dict[str, list[str]] = {}  # reviewers by step, voters by candidates' name
        for step in self.order:
            if step.candidate_of:
                self.candidates.setdefault(step.candidate_of, []).append(step.id)
            if step.judges:
                self._judges.setdefault(step.unit, []).append(step.id)

    @property
    def stopping(self) -> bool:
        """Whether no further step is started."""
        failed = bool(self.refused) or any(map(self._has_failed, self.closed))
        return self.stopped or (failed and self.plan.on_failure == STOP)

    @property
    def ended(self) -> bool:
        return not self.active and len(self._list_done()) == len(self.order)

    @property
    def waits_for_answer(self) -> bool:
        """Whether the run can continue only after a blocked step is answered."""
        asking = any(each.standing.blocked for each in self.active.values())
        return asking and not self.list_startable()

    def list_unstartable(self) -> dict[str, str]:
        """Return the steps that will never start, each with the reason."""
        dead = self._list_dead_work()
        unneeded = self.list_unneeded()
        for step in self.order:
            if not step.judges or step.id in unneeded or self._has_begun(step):
                continue
            if step.id in self.refused:
                dead[step.id] = self.refused[step.id]
            elif step.reviews in dead:
                dead[step.id] = f"{step.reviews}, which it reviews, was not started"
            # After a failure, output that waits is still judged and joined.
            elif self.stopped:
                dead[step.id] = STOPPED_BEFORE
        return dead

    def _list_dead_work(self) -> dict[str, str]:
        """Return the steps that will never start, without reviewers and voters."""
        dead: dict[str, str] = {}
        stopping = self.stopping
        # Steps come after their dependencies, so one pass is enough.
        for step in self.order:
            if step.judges or self._has_begun(step):
                continue
            lacking = [name for name in step.depends_on if name in dead or self._has_failed(name)]
            if step.id in self.refused:
                dead[step.id] = self.refused[step.id]
            elif lacking:
                dead[step.id] = f"{lacking[0]}, which it depends on, did not complete"
            elif stopping:
                dead[step.id] = STOPPED_BEFORE
        return dead

    def _has_begun(self, step: PlanStep) -> bool:
        return step.id in self.closed or step.id in self.active

    def list_unneeded(self) -> set[str]:
        """Return the reviewers and voters that are not started: there is nothing to decide."""
        names = set()
        for step in self.order:
            if not step.judges or self._has_begun(step):
                continue
            # A step that was closed without its reviewer had no change, or failed before.
            too_late = step.reviews in self.closed
            is_decided = bool(step.votes_on) and self._are_settled(step.votes_on)
            if too_late or (is_decided and len(self.list_passed(step.votes_on)) < 2):
                names.add(step.id)
        return names

    def list_startable(self) -> list[PlanStep]:
        """Return the steps that only need a free slot, in order."""
        done = self._list_done()
        return [
            step
            for step in self.order
            if step.id not in done
            and step.id not in self.active
            and self._before[step.id] <= done
            and self._has_something_to_judge(step)
        ]

    def find_next_to_join(self) -> Subagent | None:
        """Return the next step to check or join: its output waits, all steps before it are done.

        Steps that are joined as one are checked in any order, and the chosen candidate is joined
        first: if that fails, another one can be.
        """
        done = self._list_done()
        unit = next((step.unit for step in self.order if step.id not in done), None)
        left = [step for step in self.order if step.unit == unit and step.id not in done]
        if not left:
            return None
        first = left[0]
        names = [step.id for step in left if self.needs_check(step)]
        if not names and first.candidate_of:
            if not self._are_settled(first.candidate_of):
                return None
            names = [self.choose(first.candidate_of).winner]
        for name in (*names, first.id):
            subagent = self.active.get(name)
            if subagent and subagent.standing.in_review:
                return None
            if subagent and subagent.standing.state is State.WAITING_FOR_MERGE:
                return subagent
        return None

    def list_reviews(self) -> list[Subagent]:
        """Return the subagents whose output waits for a person's approval."""
        return [each for each in self.active.values() if each.standing.in_review]

    def needs_check(self, step: PlanStep) -> bool:
        """Return whether the step's output is judged and was not checked before."""
        judged = bool(step.candidate_of) or step.id in self._judges
        return judged and step.id not in self.checked

    def get_step(self, name: str) -> PlanStep:
        return self._by_id[name]

    def find_objection(self, step: PlanStep) -> str:
        """Return why a reviewed step must not be joined; empty if nothing is against it."""
        return find_objection(self._judges.get(step.id, ()), self.answers)

    def list_passed(self, name: str) -> list[str]:
        """Return the candidates that passed their checks and can be joined, or were."""
        return [
            each
            for each in self.candidates[name]
            if each in self.checked and not (each in self.closed and has_failed(self.closed[each]))
        ]

    def choose(self, name: str) -> CandidateChoice:
        answers = [self.answers.get(voter) for voter in self._judges.get(name, ())]
        return choose_candidate(self.list_passed(name), answers)

    def count_failed(self) -> int:
        """Return the number of steps that failed; of candidates, one if none was merged."""
        plain = [name for name in self.closed if not self._by_id[name].candidate_of]
        lost = [name for name in self.candidates if self._has_no_winner(name)]
        return len(lost) + sum(map(self._has_failed, plain))

    def _list_done(self) -> set[str]:
        """Return the steps of which nothing more will come: closed, or never started."""
        return {*self.closed, *self.list_unstartable(), *self.list_unneeded()}

    def _has_something_to_judge(self, step: PlanStep) -> bool:
        if step.votes_on:
            return self._are_settled(step.votes_on)
        return not step.reviews or step.reviews in self.checked

    def _are_settled(self, name: str) -> bool:
        """Return whether each of these candidates is closed, was checked, or is never started."""
        settled = {*self.closed, *self.checked, *self._list_dead_work()}
        return settled.issuperset(self.candidates[name])

    def _has_no_winner(self, name: str) -> bool:
        """Return whether all of these candidates are closed and none of them was merged."""
        members = self.candidates[name]
        return all(each in self.closed for each in members) and not self.commits.keys() & members

    def list_stuck(self) -> list[Subagent]:
        """Return the blocked subagents of a stopping run in which nothing else moves.

        Those in review are left out: their work is done, and a person can still approve it.
        """
        if not self.stopping:
            return []
        waiting = (State.WAITING_FOR_MERGE, State.COMPLETED, State.FAILED)
        moving = [
            each
            for each in self.active.values()
            if not each.standing.blocked and each.standing.state not in waiting
        ]
        asking = [e for e in self.active.values() if e.standing.blocked]
        return [] if moving else [each for each in asking if not each.standing.in_review]

    def find_base(self, step: PlanStep) -> str:
        """Return the commit that a step starts from: the last merge up to its prerequisites.

        All steps up to there are done when it starts, so the result does not depend on timing.
        A reviewer starts from what it reviews, and a voter where the candidates started.
        """
        if step.reviews:
            return self.checked[step.reviews].commit
        if step.votes_on:
            step = self._by_id[self.candidates[step.votes_on][0]]
        built_on = [
            place
            for name in self._before[step.id]
            if self.order[place := self.place[name]].integration == MERGE
        ]
        for earlier in reversed(self.order[: max(built_on, default=-1) + 1]):
            if earlier.id in self.commits:
                return self.commits[earlier.id]
        return self.base

    def _has_failed(self, name: str) -> bool:
        step = self._by_id[name]
        if step.candidate_of:
            return self._has_no_winner(step.candidate_of)
        # Without some of the votes, the others decide.
        return name in self.closed and has_failed(self.closed[name]) and not step.votes_on


def has_failed(subagent: Subagent) -> bool:
    return subagent.standing.final_status != "completed"
