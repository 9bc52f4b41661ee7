"""Agent loop of one member: work on the brief, answer, read the other answers, vote."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from retinue.core.conversation import Call, ModelFailed, OutOfBudget, Reply, Tool, Turn
from retinue.core.ids import MemberId
from retinue.core.voting import NotNow, Phase, Table
from retinue.team import member_prompts
from retinue.team.inbox import Inbox
from retinue.team.team_state import TeamState
from retinue.team.testimony_writer import TestimonyWriter
from retinue.team.tools.tool_registry import Toolbox
from retinue.team.tools.tool_setup import ANSWER, ASK, VOTE

MOST_TURNS = 200  # in one round
MOST_NUDGES = 3
# Tools that change the table and thereby write status.json themselves.
TABLE_TOOLS = {tool.name for tool in (ANSWER, VOTE, ASK)}
MOST_MISSES = 10  # consecutive turns in which every tool call failed
LEAST_SECONDS = 0.05


class AgentBackend(Protocol):
    """Model that answers a member's turns."""

    async def reply(self, turns: Sequence[Turn], tools: Sequence[Tool]) -> Reply: ...


@dataclass(frozen=True, kw_only=True)
class RoundLimits:
    """Time limits in seconds; 0 means no limit but the attempt's deadline."""

    first_round: float = 0.0
    later_round: float = 0.0
    grace: float = 0.0


class RoundMember:
    """What all members have in common: their rounds, each within its time limit."""

    def __init__(self, name: MemberId, state: TeamState) -> None:
        self.name = name
        self._state = state

    async def take_part(self, limits: RoundLimits) -> None:
        """Run rounds until the team has agreed or asked, or this member has left."""
        while True:
            await self._state.wait_until(
                lambda table: self._must_act(table) or self._has_left(table)
            )
            if self._state.table.over or self._state.questions or self._has_left(self._state.table):
                return
            first = self._state.table.find_seat(self.name).current is None
            seconds = limits.first_round if first else limits.later_round
            try:
                async with asyncio.timeout(seconds or None):
                    await self._run_round()
            except TimeoutError:
                await self.answer_now(limits.grace)

    async def answer_now(self, seconds: float) -> None:
        """Give the member one turn to answer or vote; without that it leaves the team."""
        raise NotImplementedError

    async def _run_round(self) -> None:
        """Work until the member has answered, voted, asked or left."""
        raise NotImplementedError

    def _must_act(self, table: Table) -> bool:
        """Return whether it is the member's turn; voting starts when all have answered."""
        own = table.find_seat(self.name)
        ready = own.current is None or table.phase is not Phase.INITIAL_ANSWER
        return ready and table.must_act(self.name)

    def _has_left(self, table: Table) -> bool:
        return bool(table.find_seat(self.name).gone)


class MemberAgent(RoundMember):
    def __init__(
        self,
        name: MemberId,
        backend: AgentBackend,
        toolbox: Toolbox,
        state: TeamState,
        testimony: TestimonyWriter,
        inbox: Inbox,
    ) -> None:
        super().__init__(name, state)
        self._backend = backend
        self._toolbox = toolbox
        self._testimony = testimony
        self._inbox = inbox
        self._turns: list[Turn] = []
        self._misses = 0

    def begin(self, system: str, earlier: Sequence[Turn], brief: str) -> None:
        """Start the conversation, or continue that of an earlier attempt."""
        said = [turn for turn in earlier if turn.role != "system"]
        self._add(Turn(role="system", text=system))
        self._turns += _answer_open_calls(said)
        heard = [turn.text for turn in said if turn.role == "user"]
        # The messages of the earlier attempt are part of its conversation.
        if heard:
            self._inbox.skip("\n".join(heard))
        self._add(Turn(role="user", text=member_prompts.format_opening(brief, heard)))

    def add_message(self, text: str) -> None:
        self._add(Turn(role="user", text=text))

    async def answer_now(self, seconds: float) -> None:
        """Give the member one turn to answer or vote; without that it leaves the team."""
        seat = self._state.table.find_seat(self.name)
        if not self._state.table.must_act(self.name):
            return
        word = member_prompts.ANSWER_NOW if seat.current is None else member_prompts.VOTE_NOW
        # Offer only the tool that is needed, so that the turn is not spent on anything else.
        wanted = "new_answer" if seat.current is None else "vote"
        tools = [tool for tool in self._toolbox.offered if tool.name == wanted]
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, LEAST_SECONDS)):
                self._settle_calls()
                if seat.current is not None:
                    self._show_answers()
                self._add(Turn(role="user", text=word))
                await self._run_turn(tools)
        if self._state.table.must_act(self.name):
            self._leave("its time was up")

    async def present(self) -> str | None:
        """Return the winner's final wording; None if its answer stays as it is."""
        self._settle_calls()
        self._add(Turn(role="user", text=member_prompts.PRESENT))
        # The vote is over: an answer, a vote or a question would have no effect.
        self._toolbox.hide_tools(
            TABLE_TOOLS, member_prompts.CHOSEN, partial(self._testimony.record_refusal, self.name)
        )
        tools = self._toolbox.offered
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

    async def _run_round(self) -> None:
        """Run turns until the member has answered, voted, asked or left."""
        nudges = 0
        for _ in range(MOST_TURNS):
            self._read_news()
            if not await self._run_turn(self._toolbox.offered):
                nudges += 1
                if nudges > MOST_NUDGES:
                    return self._leave("it neither answered nor voted")
                self._add(Turn(role="user", text=member_prompts.NUDGE))
            if self._misses > MOST_MISSES:
                return self._leave("nothing that it called could be done")
            if not self._must_act(self._state.table) or self._state.questions:
                return None
        return self._leave(f"it took more than {MOST_TURNS} turns")

    async def _run_turn(self, tools: Sequence[Tool]) -> bool:
        """Get one reply and run its tool calls; return False if it had no effect."""
        try:
            reply = await self._reply(tools)
        except ModelFailed as why:
            self._keep_last_words(why)
            self._leave(str(why))
            return True
        if reply.calls:
            self._misses = 0 if await self._use(reply.calls) else self._misses + 1
            return True
        # Plain text counts as the first answer: some models do not call new_answer.
        seat = self._state.table.find_seat(self.name)
        if seat.current is not None or not reply.text.strip():
            return False
        # Without refinement the first answer of any member ends the round.
        with suppress(NotNow):
            self._state.answer(self.name, reply.text)
        return True

    async def _reply(self, tools: Sequence[Tool]) -> Reply:
        reply = await self._backend.reply(self._turns, tools)
        self._testimony.record_spending(self.name, reply.used)
        self._add(reply.turn)
        if not reply.calls:
            self._state.report_spending()
        return reply

    async def _use(self, calls: Sequence[Call]) -> bool:
        """Run the calls in order and add their results; return whether any succeeded."""
        done = False
        for call in calls:
            # Report the cost before a tool that may run long or be interrupted.
            if call.tool not in TABLE_TOOLS:
                self._state.report_spending()
            found = await self._toolbox.use(call)
            done = done or found.done
            self._add(Turn(role="tool", text=found.text, call=call))
        self._state.report_spending()
        return done

    def _listen(self) -> None:
        """Add new messages of the parent to the conversation."""
        if texts := self._inbox.take_texts():
            self._add(Turn(role="user", text=member_prompts.format_messages(texts)))

    def _read_news(self) -> None:
        """Add new messages and, while voting, new answers of others."""
        self._listen()
        if self._state.table.phase is Phase.ENFORCEMENT:
            self._show_answers()

    def _show_answers(self) -> None:
        """Show the current answers of all members if this member has not seen them."""
        table = self._state.table
        if len(table.seats) > 1 and self._state.mark_answers_seen(self.name):
            shown = member_prompts.format_answers(table, self.name, self._state.snapshots)
            self._add(Turn(role="user", text=shown))

    def _keep_last_words(self, why: ModelFailed) -> None:
        """If the budget ran out before an answer, submit the member's last text as one."""
        seat = self._state.table.find_seat(self.name)
        said = [turn.text for turn in self._turns if turn.role == "assistant" and turn.text.strip()]
        if isinstance(why, OutOfBudget) and seat.current is None and said:
            with suppress(NotNow):
                self._state.answer(self.name, said[-1])

    def _leave(self, why: str) -> None:
        self._state.leave(self.name, why)

    def _settle_calls(self) -> None:
        """Answer calls that were cut off: vendors refuse a conversation with open calls."""
        self._turns = _answer_open_calls(self._turns)

    def _add(self, turn: Turn) -> None:
        self._turns.append(turn)
        self._testimony.record_turn(self.name, turn)


def _answer_open_calls(turns: Sequence[Turn]) -> list[Turn]:
    """Return the conversation with an error result for each call that has none."""
    answered = {turn.call.id for turn in turns if turn.call is not None}
    whole: list[Turn] = []
    for turn in turns:
        whole.append(turn)
        for call in turn.calls:
            if call.id not in answered:
                whole.append(Turn(role="tool", text="error: it was cut off", call=call))
    return whole
