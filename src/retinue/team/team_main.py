"""Main program of a team: run the members, present the winner's answer, exit."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from retinue.core.contract import NO_DELEGATION, TeamMember
from retinue.core.ids import MemberId
from retinue.delegation.plan_tool import SUBMIT
from retinue.delegation.tool_definitions import NAMES as DELEGATING
from retinue.files import write_atomic
from retinue.formats.testimony_json import turns_from_text
from retinue.team import member_prompts
from retinue.team.agent_member import AgentMember
from retinue.team.environment import TeamEnvironment, read_environment
from retinue.team.inbox import Inbox
from retinue.team.member import AgentBackend, MemberAgent, RoundLimits
from retinue.team.member_dirs import GIT, give_git, prepare_home, sync_folder
from retinue.team.team_state import TeamState
from retinue.team.testimony_writer import TestimonyWriter
from retinue.team.tools.mcp_servers import MemberServers
from retinue.team.tools.tool_registry import Toolbox
from retinue.team.tools.tool_setup import ToolSetup

LAST_SECONDS = 0.3  # reserved before the deadline to write the results
STOPPED = 130  # exit code after a signal

Backends = Callable[[TeamMember, TeamEnvironment], AgentBackend]
Member = MemberAgent | AgentMember


class TeamRun:
    """One attempt of a team."""

    def __init__(
        self, environment: TeamEnvironment, backends: Backends, variables: Mapping[str, str]
    ) -> None:
        self._environment = environment
        names = {name: who.route for name, who in environment.members}
        self._testimony = TestimonyWriter(environment.logs, list(names), configured=names)
        self._state = TeamState(environment, self._testimony)
        self._equipment = ToolSetup(environment, self._state, variables, self._compute_time_left)
        self._servers: dict[MemberId, MemberServers] = {}
        self._withheld: dict[MemberId, list[Path]] = {}  # files that could not be copied to a home
        several = len(environment.members) > 1
        # An earlier attempt had a winner: all members start again from the winner's files.
        self._anew = several and environment.winner.is_symlink()
        self._members: list[Member] = [
            self._make_member(name, who, backends) for name, who in environment.members
        ]
        # Only once all homes are copied: after a crash before this, the next attempt starts over.
        if self._anew:
            environment.winner.unlink(missing_ok=True)
        seconds = environment.contract.execution.attempt_timeout_ms / 1000
        self._reserve = min(LAST_SECONDS, seconds / 20)

    async def work(self) -> int:
        """Run the team; return 0 if there is an answer or a question, else 1.

        A team that ran out of time waits to be stopped, so that its end shows the timeout.
        """
        try:
            in_time = await self._run_rounds()
            if self._state.questions:
                return self._report_blocked()
            if self._state.table.agreed:
                in_time = await self._present()
            if not in_time:
                await self._wait_stopped()
            if any(seat.current for seat in self._state.table.seats):
                return 0
            return self._fail()
        finally:
            await asyncio.gather(
                *(servers.close() for servers in self._servers.values()),
                *(each.close() for each in self._members if isinstance(each, AgentMember)),
            )
            self._testimony.close()

    async def _run_rounds(self) -> bool:
        """Run the members until they agree; return False if the time was up.

        Then each member that the team waits for has one last turn, or is left out.
        """
        team = self._environment.team
        terms = self._environment.contract.execution
        limits = RoundLimits(
            first_round=team.first_round_ms / 1000,
            later_round=team.later_round_ms / 1000,
            grace=team.round_grace_ms / 1000,
        )
        # Time kept for that last turn: at most a fifth of the attempt.
        last = min(terms.grace_turn_ms, terms.attempt_timeout_ms / 5) / 1000
        tasks = [
            self._start_task(member, self._run_member(member, limits)) for member in self._members
        ]
        try:
            async with asyncio.timeout(max(0.0, self._compute_time_left() - last)):
                await self._state.wait_until(lambda table: False)
            in_time = True
        except TimeoutError:
            in_time = False
        await _cancel_tasks(tasks)
        if not in_time:
            left = self._compute_time_left() - self._reserve
            tasks = [self._start_task(member, member.answer_now(left)) for member in self._members]
            # Until the team has agreed or asked, or every member has had its last turn.
            agreed = asyncio.create_task(self._state.wait_until(lambda table: False))
            all_done = asyncio.create_task(_wait_for_tasks(tasks))
            await asyncio.wait({agreed, all_done}, return_when=asyncio.FIRST_COMPLETED)
            await _cancel_tasks([agreed, *tasks])
            await all_done
        return in_time

    async def _run_member(self, member: Member, limits: RoundLimits) -> None:
        """Start the member's MCP servers, then run its rounds."""
        if (servers := self._servers.get(member.name)) is not None:
            for lacking in await servers.open():
                member.add_message(lacking)
        await member.take_part(limits)

    def _start_task(
        self, member: Member, coroutine: Coroutine[None, None, None]
    ) -> asyncio.Task[None]:
        """Start a member's coroutine. If it raises, the member leaves and the others go on."""

        def on_done(task: asyncio.Task[None]) -> None:
            fault = None if task.cancelled() else task.exception()
            if fault is not None:
                self._state.leave(member.name, f"it failed: {type(fault).__name__}: {fault}"[:400])

        task = asyncio.create_task(coroutine)
        task.add_done_callback(on_done)
        return task

    async def _present(self) -> bool:
        """Write the winner's answer and files; return False if there was no time for it."""
        winner = self._state.table.winner
        assert winner is not None, "agreement implies a winner"
        answer = self._state.table.find_seat(winner).current
        assert answer is not None
        text = answer.text
        in_time = True
        several = len(self._members) > 1
        contract = self._environment.contract
        # An answer that fits its schema is final: another wording might not fit.
        presents = several and self._environment.team.refine and not contract.answer_schema
        delivers = several and not contract.is_read_only
        # Before the presentation, which may not end in time; and after it, if it changed files.
        if delivers:
            self._deliver_files(winner)
        if presents:
            text, in_time = await self._request_presentation(winner, text)
        if in_time:
            write_atomic(self._environment.answer, text.encode("utf-8", "replace"), 0o644)
        if presents and delivers:
            self._deliver_files(winner)
        return in_time

    async def _request_presentation(self, winner: MemberId, text: str) -> tuple[str, bool]:
        """Return the winner's final wording, and whether the attempt has time left.

        If only the round's limit passed, the answer keeps its first wording.
        """
        member = next(each for each in self._members if each.name == winner)
        team = self._environment.team
        left = max(0.0, self._compute_time_left() - self._reserve)
        round_ = (team.later_round_ms + team.round_grace_ms) / 1000 if team.later_round_ms else left
        try:
            async with asyncio.timeout(min(left, round_)):
                return await member.present() or text, True
        except TimeoutError:
            return text, round_ < left

    def _deliver_files(self, winner: MemberId) -> None:
        """Make the workspace equal to the winner's home."""
        environment = self._environment
        # Files that could not be copied to the home are not deletions of the winner.
        apart = [*environment.apart, *self._withheld.get(winner, ())]
        lacking = sync_folder(environment.find_home(winner), environment.workspace, apart=apart)
        self._testimony.record_missing("the workspace is not as its winner left it:", lacking)
        # Without this link, the other members keep their own files in the next attempt.
        with suppress(OSError):
            environment.winner.unlink(missing_ok=True)
            environment.winner.symlink_to(
                os.path.relpath(environment.find_home(winner), environment.snapshots)
            )

    async def _wait_stopped(self) -> None:
        """Wait for the child's timer to stop this process at the deadline."""
        await asyncio.sleep(max(0.0, self._compute_time_left()) + 1.0)

    def _report_blocked(self) -> int:
        document = {"status": "blocked", "questions": list(self._state.questions)}
        write_atomic(self._environment.final, json.dumps(document).encode(), 0o644)
        return 0

    def _fail(self) -> int:
        gone = [seat for seat in self._state.table.seats if seat.gone]
        alone = len(self._members) == 1
        reasons = [seat.gone if alone else f"{seat.id}: {seat.gone}" for seat in gone]
        words = "; ".join(reasons) or "no member answered in time"
        if self._environment.contract.agents:
            # The reason is the agent's or the gateway's, and not that of an exit code.
            document = {"status": "failed", "summary": words}
            write_atomic(self._environment.final, json.dumps(document).encode(), 0o644)
            return 0
        if alone:
            words = "; ".join(f"{seat.id}: {seat.gone}" for seat in gone) or words
        print(words, file=sys.stderr, flush=True)
        return 1

    def _make_member(self, name: MemberId, who: TeamMember, backends: Backends) -> Member:
        environment = self._environment
        several = len(self._environment.team.members) > 1
        home = environment.find_home(name)
        if several and not environment.contract.is_read_only:
            environment.temporary.mkdir(parents=True, exist_ok=True)
            making = environment.temporary / name
            lacking = prepare_home(
                environment.workspace, home, making=making, apart=environment.apart, anew=self._anew
            )
            self._withheld[name] = list(lacking.paths)
            self._testimony.record_missing(f"{name} was not given", lacking)
            git = give_git(environment.workspace, home)
            self._testimony.record_missing(f"{name} was not given, of {GIT}:", git)
        note = partial(self._testimony.record_refusal, name)
        toolbox = Toolbox(environment.contract, note)
        if not environment.contract.permissions.can_spawn_children:
            told = partial(self._testimony.record_delegation_refusal, name)
            toolbox.hide_tools((*DELEGATING, SUBMIT), NO_DELEGATION, told)
        inbox = Inbox(environment.inbox)
        self._equipment.fill(toolbox, name, home, inbox)
        if who.servers:
            self._servers[name] = self._equipment.prepare_servers(toolbox, who, home, note)
        member: Member
        if who.agent is not None:
            member = AgentMember(
                name, who, toolbox, self._state, self._testimony, inbox, environment
            )
        else:
            backend = backends(who, environment)
            member = MemberAgent(name, backend, toolbox, self._state, self._testimony, inbox)
        system = member_prompts.format_system_prompt(
            environment.contract,
            who.system_message,
            several=several,
            home=str(home),
            context=str(environment.context),
            in_part=(home / GIT / "info" / "sparse-checkout").exists(),
            own_program=who.agent is not None,
        )
        member.begin(system, turns_from_text(environment.session, name), environment.brief)
        return member

    def _compute_time_left(self) -> float:
        return self._environment.deadline - time.monotonic()


async def _wait_for_tasks(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


async def _cancel_tasks(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await _wait_for_tasks(tasks)


def run(variables: Mapping[str, str], backends: Backends) -> NoReturn:
    """Run a team in this process and exit."""
    # Writing to the socket of a stopped steward must not kill the team.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    environment = read_environment(variables)
    loop = asyncio.new_event_loop()

    def stop(*_: object) -> None:
        # Through the loop, so that a write in progress ends first. Everything is on disk then,
        # and os._exit skips the interpreter's slow shutdown.
        loop.call_soon_threadsafe(os._exit, STOPPED)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    code = loop.run_until_complete(work(environment, backends, variables))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def work(
    environment: TeamEnvironment, backends: Backends, variables: Mapping[str, str]
) -> int:
    return await TeamRun(environment, backends, variables).work()
