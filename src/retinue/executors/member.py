"""One member's part: it works on the brief, answers, looks at the others' answers, votes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from retinue.domain.conversation import Call, ModelFailed, OutOfBudget, Reply, Tool, Turn
from retinue.domain.coordination import NotNow, Table
from retinue.domain.ids import MemberId
from retinue.domain.team import Phase
from retinue.executors import prompts
from retinue.executors.equipment import ANSWER, ASK, VOTE
from retinue.executors.inbox import Inbox
from retinue.executors.room import Room
from retinue.executors.testimony import Witness
from retinue.executors.toolbox import Toolbox

MOST_TURNS = 200  # of one round
MOST_NUDGES = 3
TELLING = {tool.name for tool in (ANSWER, VOTE, ASK)}  # which tell of all there is, at once
MOST_MISSES = 10  # turns on end in which nothing that it called could be done
LEAST_SECONDS = 0.05


class AgentBackend(Protocol):
    """Who answers."""

    async def reply(self, turns: Sequence[Turn], tools: Sequence[Tool]) -> Reply: ...


@dataclass(frozen=True, kw_only=True)
class Limits:
    """In seconds; 0 where there is none but the attempt's own."""

    first_round: float = 0.0
    later_round: float = 0.0
    grace: float = 0.0


class Member:
    def __init__(
        self,
        name: MemberId,
        backend: AgentBackend,
        box: Toolbox,
        room: Room,
        witness: Witness,
        inbox: Inbox,
    ) -> None:
        self.name = name
        self._backend = backend
        self._box = box
        self._room = room
        self._witness = witness
        self._inbox = inbox
        self._turns: list[Turn] = []
        self._misses = 0

    def begin(self, system: str, earlier: Sequence[Turn], brief: str) -> None:
        """It knows its part: from the start, or from where an earlier attempt was."""
        said = [turn for turn in earlier if turn.role != "system"]
        self._add(Turn(role="system", text=system))
        self._turns += _answerable(said)
        heard = [turn.text for turn in said if turn.role == "user"]
        if heard:
            self._inbox.skip("\n".join(heard))
        self._add(Turn(role="user", text=prompts.resumed(brief, heard)))

    def hear(self, text: str) -> None:
        """It knows something more before it begins."""
        self._add(Turn(role="user", text=text))

    async def take_part(self, limits: Limits) -> None:
        """The team has agreed, or this member has left it."""
        while True:
            await self._room.until(lambda table: self._wanted(table) or self._gone(table))
            if self._room.table.over or self._room.questions or self._gone(self._room.table):
                return
            first = self._room.table.seat(self.name).current is None
            seconds = limits.first_round if first else limits.later_round
            try:
                async with asyncio.timeout(seconds or None):
                    await self._round()
            except TimeoutError:
                await self.answer_now(limits.grace)

    async def answer_now(self, seconds: float) -> None:
        """It has used its last chance to answer, or to vote, in so much time."""
        seat = self._room.table.seat(self.name)
        if not self._room.table.must_act(self.name):
            return
        word = prompts.ANSWER_NOW if seat.current is None else prompts.VOTE_NOW
        wanted = "new_answer" if seat.current is None else "vote"
        tools = [tool for tool in self._box.offered if tool.name == wanted]
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, LEAST_SECONDS)):
                self._settle_calls()
                if seat.current is not None:
                    self._compare()
                self._add(Turn(role="user", text=word))
                await self._turn(tools)
        if self._room.table.must_act(self.name):
            self._leave("its time was up")

    async def present(self) -> str | None:
        """The final answer in the words of the winner; None where it has no others."""
        self._settle_calls()
        self._add(Turn(role="user", text=prompts.PRESENT))
        self._box.withhold(TELLING, prompts.CHOSEN, partial(self._witness.refused, self.name))
        tools = self._box.offered
        for _ in range(MOST_TURNS):
            self._listen()
            try:
                reply = await self._reply(tools)
            except ModelFailed:
                return None
            if not reply.calls:
                return reply.text.strip() or None
            if not await self._use(reply.calls):
                self._misses += 1
            if self._misses > MOST_MISSES:
                return None
        return None

    async def _round(self) -> None:
        """It has answered, voted, or left."""
        nudges = 0
        for _ in range(MOST_TURNS):
            self._look()
            if not await self._turn(self._box.offered):
                nudges += 1
                if nudges > MOST_NUDGES:
                    return self._leave("it neither answered nor voted")
                self._add(Turn(role="user", text=prompts.NUDGE))
            if self._misses > MOST_MISSES:
                return self._leave("nothing that it called could be done")
            if not self._wanted(self._room.table) or self._room.questions:
                return None
        return self._leave(f"it took more than {MOST_TURNS} turns")

    async def _turn(self, tools: Sequence[Tool]) -> bool:
        """One reply, and what it asked for; whether anything came of it."""
        try:
            reply = await self._reply(tools)
        except ModelFailed as why:
            self._keep_last_words(why)
            self._leave(str(why))
            return True
        if reply.calls:
            self._misses = 0 if await self._use(reply.calls) else self._misses + 1
            return True
        seat = self._room.table.seat(self.name)
        if seat.current is not None or not reply.text.strip():
            return False
        with suppress(NotNow):  # somebody else's was first, and enough
            self._room.answer(self.name, reply.text)
        return True

    async def _reply(self, tools: Sequence[Tool]) -> Reply:
        reply = await self._backend.reply(self._turns, tools)
        self._witness.spent(self.name, reply.used)
        self._add(reply.turn)
        if not reply.calls:
            self._room.retell()
        return reply

    async def _use(self, calls: Sequence[Call]) -> bool:
        """Each call has its answer; whether any of them could be done."""
        done = False
        for call in calls:
            if call.tool not in TELLING:
                self._room.retell()
            found = await self._box.use(call)
            done = done or found.done
            self._add(Turn(role="tool", text=found.text, call=call))
        self._room.retell()
        return done

    def _listen(self) -> None:
        """It has heard the messages that came meanwhile."""
        if texts := self._inbox.new():
            self._add(Turn(role="user", text=prompts.messages(texts)))

    def _look(self) -> None:
        """It has heard what is new: messages, and answers of others."""
        self._listen()
        if self._room.table.phase is Phase.ENFORCEMENT:
            self._compare()

    def _compare(self) -> None:
        """It has seen the present answers of all, where there are others."""
        table = self._room.table
        if len(table.seats) > 1 and self._room.unseen(self.name):
            shown = prompts.answers(table, self.name, self._room.snapshots)
            self._add(Turn(role="user", text=shown))

    def _wanted(self, table: Table) -> bool:
        """Whether it is its turn: to answer at once, to vote when everybody has answered."""
        own = table.seat(self.name)
        ready = own.current is None or table.phase is not Phase.INITIAL_ANSWER
        return ready and table.must_act(self.name)

    def _gone(self, table: Table) -> bool:
        return bool(table.seat(self.name).gone)

    def _keep_last_words(self, why: ModelFailed) -> None:
        """Out of money is no reason to lose what was said last."""
        seat = self._room.table.seat(self.name)
        said = [turn.text for turn in self._turns if turn.role == "assistant" and turn.text.strip()]
        if isinstance(why, OutOfBudget) and seat.current is None and said:
            with suppress(NotNow):
                self._room.answer(self.name, said[-1])

    def _leave(self, why: str) -> None:
        self._room.leave(self.name, why)

    def _settle_calls(self) -> None:
        """Calls that were cut off have an answer: without one, no vendor takes the next turn."""
        self._turns = _answerable(self._turns)

    def _add(self, turn: Turn) -> None:
        self._turns.append(turn)
        self._witness.said(self.name, turn)


def _answerable(turns: Sequence[Turn]) -> list[Turn]:
    """The same conversation, with an answer to every call."""
    answered = {turn.call.id for turn in turns if turn.call is not None}
    whole: list[Turn] = []
    for turn in turns:
        whole.append(turn)
        for call in turn.calls:
            if call.id not in answered:
                whole.append(Turn(role="tool", text="error: it was cut off", call=call))
    return whole
