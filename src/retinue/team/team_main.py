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
        self, around: TeamEnvironment, backends: Backends, environment: Mapping[str, str]
    ) -> None:
        self._around = around
        names = {name: who.route for name, who in around.members}
        self._witness = TestimonyWriter(around.logs, list(names), configured=names)
        self._room = TeamState(around, self._witness)
        self._equipment = ToolSetup(around, self._room, environment, self._compute_time_left)
        self._servers: dict[MemberId, MemberServers] = {}
        self._withheld: dict[MemberId, list[Path]] = {}  # files that could not be copied to a home
        several = len(around.members) > 1
        # An earlier attempt had a winner: all members start again from the winner's files.
        self._anew = several and around.winner.is_symlink()
        self._members: list[Member] = [
            self._make_member(name, who, backends) for name, who in around.members
        ]
        # Only once all homes are copied: after a crash before this, the next attempt starts over.
        if self._anew:
            around.winner.unlink(missing_ok=True)
        seconds = around.contract.execution.attempt_timeout_ms / 1000
        self._reserve = min(LAST_SECONDS, seconds / 20)

    async def work(self) -> int:
        """Run the team; return 0 if there is an answer or a question, else 1.

        A team that ran out of time waits to be stopped, so that its end shows the timeout.
        """
        try:
            in_time = await self._run_rounds()
            if self._room.questions:
                return self._report_blocked()
            if self._room.table.agreed:
                in_time = await self._present()
            if not in_time:
                await self._wait_stopped()
            if any(seat.current for seat in self._room.table.seats):
                return 0
            return self._fail()
        finally:
            await asyncio.gather(
                *(servers.close() for servers in self._servers.values()),
                *(each.close() for each in self._members if isinstance(each, AgentMember)),
            )
            self._witness.close()

    async def _run_rounds(self) -> bool:
        """Run the members until they agree; return False if the time was up.

        Then each member that the team waits for has one last turn, or is left out.
        """
        team = self._around.team
        terms = self._around.contract.execution
        limits = RoundLimits(
            first_round=team.first_round_ms / 1000,
            later_round=team.later_round_ms / 1000,
            grace=team.round_grace_ms / 1000,
        )
        # Time kept for that last turn: at most a fifth of the attempt.
        last = min(terms.grace_turn_ms, terms.attempt_timeout_ms / 5) / 1000
        parts = [
            self._start_part(member, self._run_member(member, limits)) for member in self._members
        ]
        try:
            async with asyncio.timeout(max(0.0, self._compute_time_left() - last)):
                await self._room.wait_until(lambda table: False)
            in_time = True
        except TimeoutError:
            in_time = False
        await _stop_parts(parts)
        if not in_time:
            left = self._compute_time_left() - self._reserve
            parts = [self._start_part(member, member.answer_now(left)) for member in self._members]
            over = asyncio.create_task(self._room.wait_until(lambda table: False))
            hurried = asyncio.create_task(_wait_ended(parts))
            await asyncio.wait({over, hurried}, return_when=asyncio.FIRST_COMPLETED)
            await _stop_parts([over, *parts])
            await hurried
        return in_time

    async def _run_member(self, member: Member, limits: RoundLimits) -> None:
        """Start the member's MCP servers, then run its rounds."""
        if (servers := self._servers.get(member.name)) is not None:
            for lacking in await servers.open():
                member.add_message(lacking)
        await member.take_part(limits)

    def _start_part(
        self, member: Member, course: Coroutine[None, None, None]
    ) -> asyncio.Task[None]:
        """Start a member's coroutine. If it raises, the member leaves and the others go on."""

        def on_done(part: asyncio.Task[None]) -> None:
            fault = None if part.cancelled() else part.exception()
            if fault is not None:
                self._room.leave(member.name, f"it failed: {type(fault).__name__}: {fault}"[:400])

        part = asyncio.create_task(course)
        part.add_done_callback(on_done)
        return part

    async def _present(self) -> bool:
        """Write the winner's answer and files; return False if there was no time for it."""
        winner = self._room.table.winner
        assert winner is not None, "agreement implies a winner"
        answer = self._room.table.find_seat(winner).current
        assert answer is not None
        text = answer.text
        in_time = True
        several = len(self._members) > 1
        presents = several and self._around.team.refine
        delivers = several and not self._around.contract.is_read_only
        # Before the presentation, which may not end in time; and after it, if it changed files.
        if delivers:
            self._deliver_files(winner)
        if presents:
            text, in_time = await self._request_presentation(winner, text)
        if in_time:
            write_atomic(self._around.answer, text.encode("utf-8", "replace"), 0o644)
        if presents and delivers:
            self._deliver_files(winner)
        return in_time

    async def _request_presentation(self, winner: MemberId, text: str) -> tuple[str, bool]:
        """Return the winner's final wording, and whether the attempt has time left.

        If only the round's limit passed, the answer keeps its first wording.
        """
        member = next(each for each in self._members if each.name == winner)
        team = self._around.team
        left = max(0.0, self._compute_time_left() - self._reserve)
        round_ = (team.later_round_ms + team.round_grace_ms) / 1000 if team.later_round_ms else left
        try:
            async with asyncio.timeout(min(left, round_)):
                return await member.present() or text, True
        except TimeoutError:
            return text, round_ < left

    def _deliver_files(self, winner: MemberId) -> None:
        """Make the workspace equal to the winner's home."""
        around = self._around
        # Files that could not be copied to the home are not deletions of the winner.
        apart = [*around.apart, *self._withheld.get(winner, ())]
        lacking = sync_folder(around.find_home(winner), around.workspace, apart=apart)
        self._witness.record_missing("the workspace is not as its winner left it:", lacking)
        # Without this link, the other members keep their own files in the next attempt.
        with suppress(OSError):
            around.winner.unlink(missing_ok=True)
            around.winner.symlink_to(os.path.relpath(around.find_home(winner), around.snapshots))

    async def _wait_stopped(self) -> None:
        """Wait for the child's timer to stop this process at the deadline."""
        await asyncio.sleep(max(0.0, self._compute_time_left()) + 1.0)

    def _report_blocked(self) -> int:
        document = {"status": "blocked", "questions": list(self._room.questions)}
        write_atomic(self._around.final, json.dumps(document).encode(), 0o644)
        return 0

    def _fail(self) -> int:
        gone = [seat for seat in self._room.table.seats if seat.gone]
        alone = len(self._members) == 1
        reasons = [seat.gone if alone else f"{seat.id}: {seat.gone}" for seat in gone]
        words = "; ".join(reasons) or "no member answered in time"
        if self._around.contract.agents:
            # The reason is the agent's or the gateway's, and not that of an exit code.
            document = {"status": "failed", "summary": words}
            write_atomic(self._around.final, json.dumps(document).encode(), 0o644)
            return 0
        if alone:
            words = "; ".join(f"{seat.id}: {seat.gone}" for seat in gone) or words
        print(words, file=sys.stderr, flush=True)
        return 1

    def _make_member(self, name: MemberId, who: TeamMember, backends: Backends) -> Member:
        around = self._around
        several = len(self._around.team.members) > 1
        home = around.find_home(name)
        if several and not around.contract.is_read_only:
            around.temporary.mkdir(parents=True, exist_ok=True)
            making = around.temporary / name
            lacking = prepare_home(
                around.workspace, home, making=making, apart=around.apart, anew=self._anew
            )
            self._withheld[name] = list(lacking.paths)
            self._witness.record_missing(f"{name} was not given", lacking)
            git = give_git(around.workspace, home)
            self._witness.record_missing(f"{name} was not given, of {GIT}:", git)
        note = partial(self._witness.record_refusal, name)
        box = Toolbox(around.contract, note)
        if not around.contract.permissions.can_spawn_children:
            told = partial(self._witness.record_delegation_refusal, name)
            box.hide_tools((*DELEGATING, SUBMIT), NO_DELEGATION, told)
        inbox = Inbox(around.inbox)
        self._equipment.fill(box, name, home, inbox)
        if who.servers:
            self._servers[name] = self._equipment.prepare_servers(box, who, home, note)
        member: Member
        if who.agent is not None:
            member = AgentMember(name, who, box, self._room, self._witness, inbox, around)
        else:
            backend = backends(who, around)
            member = MemberAgent(name, backend, box, self._room, self._witness, inbox)
        system = member_prompts.format_system_prompt(
            around.contract,
            who.system_message,
            several=several,
            home=str(home),
            context=str(around.context),
            in_part=(home / GIT / "info" / "sparse-checkout").exists(),
            own_program=who.agent is not None,
        )
        member.begin(system, turns_from_text(around.session, name), around.brief)
        return member

    def _compute_time_left(self) -> float:
        return self._around.deadline - time.monotonic()


async def _wait_ended(parts: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.gather(*parts, return_exceptions=True)


async def _stop_parts(parts: Sequence[asyncio.Task[None]]) -> None:
    for part in parts:
        part.cancel()
    await _wait_ended(parts)


def run(environment: Mapping[str, str], backends: Backends) -> NoReturn:
    """Run a team in this process and exit."""
    # Writing to the socket of a stopped steward must not kill the team.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    around = read_environment(environment)
    loop = asyncio.new_event_loop()

    def stop(*_: object) -> None:
        # Through the loop, so that a write in progress ends first. Everything is on disk then,
        # and os._exit skips the interpreter's slow shutdown.
        loop.call_soon_threadsafe(os._exit, STOPPED)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    code = loop.run_until_complete(work(around, backends, environment))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def work(around: TeamEnvironment, backends: Backends, environment: Mapping[str, str]) -> int:
    return await TeamRun(around, backends, environment).work()
