"""A team at work: from what lies around it to its answer, or as far as it came."""

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

from retinue.delegating.planning import SUBMIT
from retinue.delegating.tools import NAMES as DELEGATING
from retinue.domain.contract import NO_DELEGATION, TeamMember
from retinue.domain.ids import MemberId
from retinue.executors import prompts
from retinue.executors.equipment import Equipment
from retinue.executors.homes import GIT, give_git, mirror, move_in
from retinue.executors.inbox import Inbox
from retinue.executors.member import AgentBackend, Limits, Member
from retinue.executors.room import Room
from retinue.executors.servers import Servers
from retinue.executors.surroundings import Surroundings, look_around
from retinue.executors.testimony import Witness
from retinue.executors.toolbox import Toolbox
from retinue.files import write_atomic
from retinue.wire.conversation import turns_from_text

LAST_SECONDS = 0.3  # before the deadline, to write down what there is
STOPPED = 130

Backends = Callable[[TeamMember, Surroundings], AgentBackend]


class Team:
    def __init__(
        self, around: Surroundings, backends: Backends, environment: Mapping[str, str]
    ) -> None:
        self._around = around
        self._witness = Witness(around.logs, [name for name, _ in around.members])
        self._room = Room(around, self._witness)
        self._equipment = Equipment(around, self._room, environment, self._left)
        self._servers: dict[MemberId, Servers] = {}
        self._withheld: dict[MemberId, list[Path]] = {}  # what a home could not be given
        several = len(around.members) > 1
        self._anew = several and around.winner.is_symlink()  # all begin with the winner's files
        self._members = [self._member(name, who, backends) for name, who in around.members]
        if self._anew:
            around.winner.unlink(missing_ok=True)
        seconds = around.contract.execution.attempt_timeout_ms / 1000
        self._reserve = min(LAST_SECONDS, seconds / 20)

    async def work(self) -> int:
        """The exit code: 0 with an answer, a question, or answers nobody has decided between.

        A team whose time was up stays until it is stopped: whoever judges it sees why it ended.
        """
        try:
            in_time = await self._coordinate()
            if self._room.questions:
                return self._declare_blocked()
            if self._room.table.agreed:
                in_time = await self._present()
            if not in_time:
                await self._until_stopped()
            if any(seat.current for seat in self._room.table.seats):
                return 0
            return self._fail()
        finally:
            await asyncio.gather(*(servers.close() for servers in self._servers.values()))
            self._witness.close()

    async def _coordinate(self) -> bool:
        """Whether the team came to an end by itself. Else those it waited for were told to hurry,
        and who did not is left out.
        """
        team, terms = self._around.team, self._around.contract.execution
        limits = Limits(
            first_round=team.first_round_ms / 1000,
            later_round=team.later_round_ms / 1000,
            grace=team.round_grace_ms / 1000,
        )
        last = min(terms.grace_turn_ms, terms.attempt_timeout_ms / 5) / 1000
        parts = [self._part(member, self._play(member, limits)) for member in self._members]
        try:
            async with asyncio.timeout(max(0.0, self._left() - last)):
                await self._room.until(lambda table: False)
            in_time = True
        except TimeoutError:
            in_time = False
        await _stopped(parts)
        if not in_time:
            left = self._left() - self._reserve
            parts = [self._part(member, member.answer_now(left)) for member in self._members]
            over = asyncio.create_task(self._room.until(lambda table: False))
            hurried = asyncio.create_task(_ended(parts))
            await asyncio.wait({over, hurried}, return_when=asyncio.FIRST_COMPLETED)
            await _stopped([over, *parts])
            await hurried
        return in_time

    async def _play(self, member: Member, limits: Limits) -> None:
        """Its part, once it has all the tools that can be had."""
        if (servers := self._servers.get(member.name)) is not None:
            for lacking in await servers.open():
                member.hear(lacking)
        await member.take_part(limits)

    def _part(self, member: Member, course: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Its part, under way. A member that breaks leaves; the others go on."""

        def over(part: asyncio.Task[None]) -> None:
            fault = None if part.cancelled() else part.exception()
            if fault is not None:
                self._room.leave(member.name, f"it failed: {type(fault).__name__}: {fault}"[:400])

        part = asyncio.create_task(course)
        part.add_done_callback(over)
        return part

    async def _present(self) -> bool:
        """The answer lies where the steward looks for it; False where there was no time to.

        The winner is known either way.
        """
        winner = self._room.table.winner
        assert winner is not None, "all agree on somebody"
        answer = self._room.table.seat(winner).current
        assert answer is not None
        text, in_time = answer.text, True
        several = len(self._members) > 1
        presents = several and self._around.team.refine
        if several:
            self._deliver_files(winner)  # should its presentation never end
        if presents:
            text, in_time = await self._presented(winner, text)
        if in_time:
            write_atomic(self._around.answer, text.encode("utf-8", "replace"), 0o644)
        if presents:
            self._deliver_files(winner)
        return in_time

    async def _presented(self, winner: MemberId, text: str) -> tuple[str, bool]:
        """The answer in the words of the winner, where it finds them in time; and whether there
        was time: a round's limit only costs it those words.
        """
        member = next(each for each in self._members if each.name == winner)
        team, left = self._around.team, max(0.0, self._left() - self._reserve)
        round_ = (team.later_round_ms + team.round_grace_ms) / 1000 if team.later_round_ms else left
        try:
            async with asyncio.timeout(min(left, round_)):
                return await member.present() or text, True
        except TimeoutError:
            return text, round_ < left

    def _deliver_files(self, winner: MemberId) -> None:
        """What the winner made is what the subagent made: no less, and nothing of the others.

        What it was never given is no deletion of its own.
        """
        around = self._around
        apart = [*around.apart, *self._withheld[winner]]
        lacking = mirror(around.home(winner), around.workspace, apart=apart)
        self._witness.lacks("the workspace is not as its winner left it:", lacking)
        with suppress(OSError):  # without it, the others may go on with their own files
            around.winner.unlink(missing_ok=True)
            around.winner.symlink_to(os.path.relpath(around.home(winner), around.snapshots))

    async def _until_stopped(self) -> None:
        """Whoever keeps the time stops us at the deadline; it is not for long."""
        await asyncio.sleep(max(0.0, self._left()) + 1.0)

    def _declare_blocked(self) -> int:
        document = {"status": "blocked", "questions": list(self._room.questions)}
        write_atomic(self._around.final, json.dumps(document).encode(), 0o644)
        return 0

    def _fail(self) -> int:
        reasons = [f"{seat.id}: {seat.gone}" for seat in self._room.table.seats if seat.gone]
        print("; ".join(reasons) or "no member answered in time", file=sys.stderr, flush=True)
        return 1

    def _member(self, name: MemberId, who: TeamMember, backends: Backends) -> Member:
        around, several = self._around, len(self._around.team.members) > 1
        home = around.home(name)
        if several:
            around.temporary.mkdir(parents=True, exist_ok=True)
            making = around.temporary / name
            lacking = move_in(
                around.workspace, home, making=making, apart=around.apart, anew=self._anew
            )
            self._withheld[name] = list(lacking.paths)
            self._witness.lacks(f"{name} was not given", lacking)
            git = give_git(around.workspace, home)
            self._witness.lacks(f"{name} was not given, of {GIT}:", git)
        note = partial(self._witness.refused, name)
        box = Toolbox(around.contract, note)
        if not around.contract.permissions.can_spawn_children:
            told = partial(self._witness.not_delegated, name)
            box.withhold((*DELEGATING, SUBMIT), NO_DELEGATION, told)
        inbox = Inbox(around.inbox)
        self._equipment.fill(box, name, home, inbox)
        if who.servers:
            self._servers[name] = self._equipment.servers(box, who, home, note)
        member = Member(name, backends(who, around), box, self._room, self._witness, inbox)
        system = prompts.system(
            around.contract,
            who.system_message,
            several=several,
            home=str(home),
            context=str(around.context),
            in_part=(home / GIT / "info" / "sparse-checkout").exists(),
        )
        member.begin(system, turns_from_text(around.session, name), around.brief)
        return member

    def _left(self) -> float:
        return self._around.deadline - time.monotonic()


async def _ended(parts: Sequence[asyncio.Task[None]]) -> None:
    """None of them is under way."""
    await asyncio.gather(*parts, return_exceptions=True)


async def _stopped(parts: Sequence[asyncio.Task[None]]) -> None:
    """Likewise, at once."""
    for part in parts:
        part.cancel()
    await _ended(parts)


def run(environment: Mapping[str, str], backends: Backends) -> NoReturn:
    """The whole work of a team, in this process, which ends with it."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a steward that is gone is no end of ours
    around = look_around(environment)
    loop = asyncio.new_event_loop()

    def stop(*_: object) -> None:
        """Once what is being written is written.

        All it knew is on disk then: taking an interpreter apart would only take time.
        """
        loop.call_soon_threadsafe(os._exit, STOPPED)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    code = loop.run_until_complete(work(around, backends, environment))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # likewise


async def work(around: Surroundings, backends: Backends, environment: Mapping[str, str]) -> int:
    return await Team(around, backends, environment).work()
