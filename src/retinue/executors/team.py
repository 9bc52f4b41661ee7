"""A team at work: from what lies around it to its answer, or as far as it came."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from retinue.domain.contract import TeamMember
from retinue.domain.conversation import Tool
from retinue.domain.coordination import NotNow
from retinue.domain.ids import MemberId
from retinue.executors import prompts
from retinue.executors.delegation import ChildDesk, Collector, add_delegation_tools
from retinue.executors.files import Files, Impossible
from retinue.executors.homes import give_git, mirror
from retinue.executors.inbox import Inbox
from retinue.executors.member import AgentBackend, Limits, Member
from retinue.executors.room import Room
from retinue.executors.surroundings import Surroundings, look_around
from retinue.executors.testimony import Witness
from retinue.executors.toolbox import (
    TEXT,
    Toolbox,
    add_command_tool,
    add_copy_tool,
    add_file_tools,
    schema,
)
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
        self._environment = environment
        self._witness = Witness(around.logs, [name for name, _ in around.members])
        self._room = Room(around, self._witness)
        self._members = [self._member(name, who, backends) for name, who in around.members]

    async def work(self) -> int:
        """The exit code: 0 with an answer, a question, or answers nobody has decided between."""
        try:
            agreed = await self._coordinate()
            if self._room.questions:
                return self._declare_blocked()
            if not any(seat.current for seat in self._room.table.seats):
                return self._fail()
            if agreed:
                await self._present()
            return 0
        finally:
            for member in self._members:
                await member.close()
            self._witness.close()

    async def _coordinate(self) -> bool:
        """Whether the team came to an end by itself; else its time was up."""
        team, terms = self._around.team, self._around.contract.execution
        limits = Limits(
            first_round=team.first_round_ms / 1000,
            later_round=team.later_round_ms / 1000,
            grace=team.round_grace_ms / 1000,
        )
        last = min(terms.grace_turn_ms, terms.attempt_timeout_ms / 5) / 1000
        parts = [self._part(member, limits) for member in self._members]
        over = asyncio.create_task(self._room.until(lambda table: False))
        await asyncio.wait([over], timeout=max(0.0, self._left() - last))
        in_time = self._room.table.over or bool(self._room.questions)
        for task in (over, *parts):
            task.cancel()
        await asyncio.gather(over, *parts, return_exceptions=True)
        if not in_time:
            left = self._left() - LAST_SECONDS
            await asyncio.gather(*(member.answer_now(left) for member in self._members))
        return self._room.table.over

    def _part(self, member: Member, limits: Limits) -> asyncio.Task[None]:
        """Its part, under way. A member that breaks leaves; the others go on."""

        def over(part: asyncio.Task[None]) -> None:
            fault = None if part.cancelled() else part.exception()
            if fault is not None:
                self._room.leave(member.name, f"it failed: {type(fault).__name__}: {fault}"[:400])

        part = asyncio.create_task(member.take_part(limits))
        part.add_done_callback(over)
        return part

    async def _present(self) -> None:
        """The answer lies where the steward looks for it."""
        winner = self._room.decide()
        assert winner is not None, "somebody has answered"
        answer = self._room.table.seat(winner).current
        assert answer is not None
        text = answer.text
        if len(self._members) > 1:
            member = next(each for each in self._members if each.name == winner)
            self._deliver_files(winner)  # should its presentation never end
            if self._around.team.refine:
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, self._left() - LAST_SECONDS)):
                        text = await member.present() or text
            self._deliver_files(winner)
        self._room.retell()
        write_atomic(self._around.answer, text.encode("utf-8", "replace"), 0o644)

    def _deliver_files(self, winner: MemberId) -> None:
        """What the winner made is what the subagent made: no less, and nothing of the others."""
        around = self._around
        mirror(around.home(winner), around.workspace, apart=around.apart)

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
            mirror(around.workspace, home, apart=around.apart)
            give_git(around.workspace, home)
            (around.homes / "temp").mkdir(exist_ok=True)
        box = Toolbox(around.contract, lambda tool, why: self._witness.refused(name, tool, why))
        self._add_tools(box, name, home, several=several)
        member = Member(
            name, backends(who, around), box, self._room, self._witness, Inbox(around.inbox)
        )
        system = prompts.system(
            around.contract,
            who.system_message,
            several=several,
            home=str(home),
            context=str(around.context),
        )
        member.begin(system, turns_from_text(around.session, name), around.brief)
        return member

    def _add_tools(self, box: Toolbox, name: MemberId, home: Path, *, several: bool) -> None:
        around = self._around
        paths = map(Path, around.contract.context.paths)
        files = Files(home, [around.context, around.homes / "snapshots", around.logs, *paths])
        add_file_tools(box, files)
        add_command_tool(box, files, self._environment, self._left)
        if around.steward:
            desk = ChildDesk(around.steward)
            add_delegation_tools(box, desk, around.terms)
            add_copy_tool(box, Collector(files, desk).copy)
        else:
            add_copy_tool(box, files.copy)

        def ask(questions: list[str]) -> str:
            self._room.ask(questions)
            return "asked; you stop here until there is an answer"

        box.add(
            Tool(
                name="ask",
                description="Ask whoever delegated this to you what only they can know. You "
                "stop, and go on once they have answered.",
                parameters=schema({"questions": {"type": "array", "items": TEXT}}),
            ),
            ask,
        )
        self._add_coordination(box, name, several=several)

    def _add_coordination(self, box: Toolbox, name: MemberId, *, several: bool) -> None:
        def new_answer(content: str) -> str:
            if not content.strip():
                raise Impossible("an answer cannot be empty")
            try:
                return f"your answer stands as {self._room.answer(name, content)}"
            except NotNow as why:
                raise Impossible(str(why)) from None

        def vote(agent_id: str, reason: str = "") -> str:
            try:
                self._room.vote(name, agent_id)
            except NotNow as why:
                raise Impossible(str(why)) from None
            return "your vote stands"

        box.add(
            Tool(
                name="new_answer",
                description="Give your whole answer to the brief.",
                parameters=schema({"content": TEXT}),
            ),
            new_answer,
            always=True,
        )
        if several and self._around.team.refine:
            box.add(
                Tool(
                    name="vote",
                    description="Vote for the best of the present answers, by its author's name.",
                    parameters=schema({"agent_id": TEXT}, reason=TEXT),
                ),
                vote,
                always=True,
            )

    def _left(self) -> float:
        return self._around.deadline - time.monotonic()


def run(environment: Mapping[str, str], backends: Backends) -> int:
    """The whole work of a team, in this process; its exit code."""

    async def work() -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            # All it knew is on disk already: taking an interpreter apart would only take time.
            loop.add_signal_handler(number, os._exit, STOPPED)
        return await Team(look_around(environment), backends, environment).work()

    return asyncio.run(work())
