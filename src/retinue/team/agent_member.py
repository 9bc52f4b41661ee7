"""A coding agent as a member of a team: its rounds are prompts to its own program.

The program runs in the same child. Its messages are written to disk at once, so that an attempt
that is cut off loses none of them. The gateway decides whether a turn succeeded, not the program.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from retinue.agents.contract_terms import make_profile, select_own_tools
from retinue.agents.launch import AgentLaunch, LaunchRequest, ToolServerAddress, build_launch
from retinue.agents.link import (
    AgentLink,
    AgentTurn,
    LinkFailed,
)
from retinue.agents.link_factory import make_link, write_launch_files
from retinue.agents.permissions import ContractPolicy
from retinue.core.answer_schema import Mismatch
from retinue.core.contract import AgentProgram, TeamMember
from retinue.core.conversation import Call, Tool, Turn
from retinue.core.ids import MemberId
from retinue.core.task_config import ISOLATED
from retinue.core.voting import NotNow, Phase
from retinue.files import write_atomic
from retinue.formats.result_json import parse_structured_answer
from retinue.team import member_prompts
from retinue.team.agent_recorder import AgentRecorder
from retinue.team.agent_traffic import AgentTraffic, TrafficReport
from retinue.team.environment import TeamEnvironment
from retinue.team.inbox import Inbox, Message
from retinue.team.member import LEAST_SECONDS, MOST_NUDGES, RoundMember
from retinue.team.team_state import TeamState
from retinue.team.testimony_writer import TestimonyWriter
from retinue.team.tool_server import ToolboxServer
from retinue.team.tools.tool_registry import FILE_TOOLS, RUN, Toolbox, ToolResult
from retinue.team.tools.tool_setup import ANSWER, VOTE

MOST_TRANSCRIPT = 60_000  # characters of an earlier conversation that a new session is told
INTERRUPT_SECONDS = 5.0
PRIVATE = "/tmp"  # of an isolated child: in memory, and its own
REPROMPTS = 2  # after an answer that does not fit its schema
SESSION_FILE = "retinue-session.json"
# Profiles whose launch has a place for the role; the others are told it in the first prompt.
TAKES_ROLE = {"claude_code", "codex", "gemini_cli", "opencode"}
# Tools that an agent has of its own; the team's are not served to it.
OWN_TOOLS = {RUN.name, *(tool.name for tool in FILE_TOOLS.values())}
WIRE_PATHS = {"responses": "/v1", "chat": "/v1"}
REFUSED_KEY, FORBIDDEN = 401, 403
_VOTE = re.compile(r"^\W*VOTE\W+([A-Za-z0-9][A-Za-z0-9_-]{0,63})\W*$", re.MULTILINE)
# Text that is the same in every writer's JSON.
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ,.;:()_-]{6,78}[A-Za-z0-9]")
MOST_RECALLED = 4  # last texts of a conversation, one of which a resumed session must hold
Resumed = Literal["fresh", "native", "transcript"]


class AgentFailed(Exception):
    """The agent cannot go on; the message begins with a stable code."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(f"{code}: {words}" if code else words)
        self.code = code


@dataclass(frozen=True, kw_only=True)
class _Spoken:
    """Outcome of a turn: the part that the team uses."""

    text: str
    interrupted: bool = False


class AgentMember(RoundMember):
    """A coding agent as a member."""

    def __init__(
        self,
        name: MemberId,
        who: TeamMember,
        toolbox: Toolbox,
        state: TeamState,
        testimony: TestimonyWriter,
        inbox: Inbox,
        environment: TeamEnvironment,
    ) -> None:
        assert who.agent is not None and environment.agent_home is not None
        super().__init__(name, state)
        self._who = who
        self._agent: AgentProgram = who.agent
        self._profile = make_profile(who.agent)
        self._toolbox = toolbox
        self._testimony = testimony
        self._inbox = inbox
        self._environment = environment
        self._home = environment.agent_home / name
        self._tools = select_own_tools(environment.contract.permissions.allowed_tools)
        self._policy = ContractPolicy(self._profile, self._tools)
        self._several = len(environment.team.members) > 1
        self._traffic = AgentTraffic(environment.gateway, name, environment.token)
        self._system = ""
        self._earlier: Sequence[Turn] = ()
        self._notes: list[str] = []  # to be told with the next prompt
        # What a new session is told first. The conversation has it already, so it is not recorded.
        self._introduction: list[str] = []
        self._opening = ""
        self._link: AgentLink | None = None
        self._server: ToolboxServer | None = None
        self._running: asyncio.Task[AgentTurn] | None = None
        self._before: TrafficReport | None = None  # at the start of the running turn
        self._session = ""
        self._resumed: Resumed = "fresh"
        # Requests when it resumed its session; None once they have shown what the session holds.
        self._asked_before: int | None = None
        self._recorder = AgentRecorder(
            name, state, testimony, self._policy, metered=self._agent.metered
        )

    # -- the team's interface

    def begin(self, system: str, earlier: Sequence[Turn], brief: str) -> None:
        """Start the conversation, or continue that of an earlier attempt."""
        self._system = system
        self._earlier = [turn for turn in earlier if turn.role != "system"]
        self._recorder.record_turn(Turn(role="system", text=system))
        heard = [turn.text for turn in self._earlier if turn.role == "user"]
        if heard:
            self._inbox.skip("\n".join(heard))
        self._opening = member_prompts.format_opening(brief, heard)
        self._testimony.show_agent(self.name, agent=self._describe())

    def add_message(self, text: str) -> None:
        self._notes.append(text)

    async def answer_now(self, seconds: float) -> None:
        """Interrupt the agent and give it one turn to answer or vote; else it leaves the team."""
        if not self._state.table.must_act(self.name):
            return
        answered = self._state.table.find_seat(self.name).current is not None
        word = member_prompts.VOTE_NOW if answered else AGENT_ANSWER_NOW
        try:
            async with asyncio.timeout(max(seconds, LEAST_SECONDS)):
                await self._end_turn()
                # Before its first turn there is nothing to answer from.
                if self._link is not None:
                    if answered:
                        word = "\n\n".join(filter(None, (self._format_answers(), word)))
                    await self._settle(await self._prompt(word, listens=False))
        except (TimeoutError, AgentFailed, LinkFailed):
            pass
        if self._state.table.must_act(self.name):
            self._leave("its time was up")

    async def present(self) -> str | None:
        """Return the winner's final wording; None if its answer stays as it is."""
        try:
            await self._end_turn()
            spoken = await self._prompt(member_prompts.PRESENT)
            return spoken.text.strip() or None
        except (AgentFailed, LinkFailed):
            return None

    async def close(self) -> None:
        """End the program and the tool server."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})
        if self._link is not None:
            with suppress(LinkFailed, OSError):
                await self._link.close()
        if self._server is not None:
            self._server.close()
        self._recorder.close()

    # -- rounds

    async def _run_round(self) -> None:
        try:
            await self._prompt_until_done()
        except (AgentFailed, LinkFailed) as why:
            self._leave_failed(why)

    async def _prompt_until_done(self) -> None:
        """Prompt until the member has answered, voted, asked or left."""
        nudges = 0
        while True:
            spoken = await self._prompt(self._format_task(nudges))
            await self._settle(spoken)
            if not self._must_act(self._state.table) or self._state.questions:
                return None
            nudges += 1
            if nudges > MOST_NUDGES:
                return self._leave("it neither answered nor voted")

    def _format_task(self, nudges: int) -> str:
        if self._state.table.find_seat(self.name).current is None:
            return NUDGE_ANSWER if nudges else self._opening
        shown = self._format_answers()
        vote = VOTE_TOOL if self._server is not None else ""
        return "\n\n".join(filter(None, (shown, vote, VOTE_LINE)))

    async def _settle(self, spoken: _Spoken) -> None:
        """Take what the agent said as its answer or its vote, unless it used a tool for it."""
        seat = self._state.table.find_seat(self.name)
        if spoken.interrupted or not self._state.table.must_act(self.name):
            return
        if seat.current is None:
            text = await self._require_fitting(spoken.text)
            if text.strip():
                with suppress(NotNow):
                    self._state.answer(self.name, text)
            return
        found = _VOTE.findall(spoken.text)
        if found and self._state.table.phase is Phase.ENFORCEMENT:
            with suppress(NotNow):
                self._state.vote(self.name, found[-1])

    async def _require_fitting(self, text: str) -> str:
        """Return an answer that fits the contract's schema; prompt again for another.

        Raises:
            AgentFailed: `invalid_answer`; the last text is kept as the answer of the attempt.
        """
        schema = self._environment.contract.answer_schema
        if not schema:
            return text
        for left in reversed(range(REPROMPTS + 1)):
            try:
                parse_structured_answer(text, schema)
                return text
            except Mismatch as why:
                if not left:
                    self._keep_invalid(text)
                    raise AgentFailed("invalid_answer", str(why)) from None
                text = (await self._prompt(REPROMPT.format(why=why, schema=schema))).text
        raise AssertionError("the last round returns or raises")

    def _keep_invalid(self, text: str) -> None:
        write_atomic(self._environment.answer, text.encode("utf-8", "replace"), 0o644)

    def _format_answers(self) -> str:
        """Return the current answers if this member has not seen them; else an empty text."""
        table = self._state.table
        if len(table.seats) < 2 or not self._state.mark_answers_seen(self.name):
            return ""
        return member_prompts.format_answers(table, self.name, self._state.snapshots)

    # -- one turn

    async def _prompt(self, text: str, *, listens: bool = True) -> _Spoken:
        """Run one turn, and further ones for messages that came meanwhile.

        Raises:
            AgentFailed, LinkFailed: the turn did not succeed.
        """
        link = await self._require_open()
        while True:
            said = [each for each in (*self._notes, text) if each]
            told = "\n\n".join([*self._introduction, *said])
            self._notes, self._introduction = [], []
            # One turn each: a later attempt compares them with its brief.
            for each in said:
                self._recorder.record_turn(Turn(role="user", text=each))
            spoken = await self._run_turn(link, told, listens=listens)
            if self._link is None:
                seconds = f"{INTERRUPT_SECONDS:g} seconds"
                raise AgentFailed("agent_stalled", f"it went on for {seconds} after an interrupt")
            if listens:
                # One that came while the turn was ending.
                await self._pass_on(None, self._inbox.take_messages())
            if await self._has_forgotten():
                await self._tell_again(link, said)
                self._recorder.forget_words(spoken.text)
                text = ""
                continue
            if not self._notes:
                return spoken
            # Messages that could not be told in the turn, or that interrupted it.
            text = self._notes.pop()

    async def _run_turn(self, link: AgentLink, text: str, *, listens: bool) -> _Spoken:
        self._before = await self._read_traffic()
        self._recorder.begin_turn()
        schema = self._environment.contract.answer_schema
        fitting: Mapping[str, Any] | None = json.loads(schema) if schema else None
        self._running = asyncio.create_task(link.prompt(text, fitting))
        watch = asyncio.create_task(self._watch(link, listens=listens))
        try:
            await asyncio.wait({self._running, watch}, return_when=asyncio.FIRST_COMPLETED)
            if watch.done() and not self._running.done():
                await self._end_turn()
                watch.result()  # raises if the agent stalled; else a message is urgent
                return _Spoken(text="", interrupted=True)
            turn = self._running.result()
            self._running = None
            return await self._judge(turn)
        finally:
            watch.cancel()
            await asyncio.wait({watch})
            self._recorder.show(doing="")

    async def _judge(self, turn: AgentTurn) -> _Spoken:
        """Return the agent's words if the gateway confirms that a model wrote them.

        Raises:
            AgentFailed: it does not confirm it, or the agent itself reports an error.
        """
        self._recorder.end_turn(turn.text)
        report = await self._read_traffic(idle=True)
        before = self._before or TrafficReport()
        if report is not None:
            self._testimony.record_spending(self.name, report.count_since(before))
            self._state.report_spending()
        if self._agent.metered:
            if report is None:
                raise AgentFailed(
                    "gateway_lost", "the gateway did not report how its request ended"
                )
            if report.status >= 400:
                self._recorder.forget_words(turn.text)
                raise AgentFailed(_name_refusal(report), report.error)
            if turn.stop == "end" and report.answered == before.answered:
                words = turn.error or turn.text
                raise AgentFailed("agent_protocol", f"no model answered it; it says: {words[:300]}")
        if turn.stop == "cancelled":
            return _Spoken(text=turn.text, interrupted=not turn.text.strip())
        if turn.stop == "error":
            words = turn.error or turn.text or "it gives no reason"
            raise AgentFailed("agent_error", words[:400])
        if turn.stop in ("limit", "refused"):
            words = turn.error or f"its turn ended by {turn.stop}"
            self._recorder.warn(f"turn_{turn.stop}", words)
            if not turn.text.strip():
                raise AgentFailed("agent_error", words[:400])
        if turn.structured is not None:
            return _Spoken(text=json.dumps(turn.structured, ensure_ascii=False))
        return _Spoken(text=turn.text)

    async def _watch(self, link: AgentLink, *, listens: bool) -> None:
        """Pass messages on; return when an urgent one has come.

        Raises:
            AgentFailed: the agent was silent for too long.
        """
        async with self._inbox.watch() as changed:
            while True:
                if listens and changed.is_set():
                    changed.clear()
                    if await self._pass_on(link, self._inbox.take_messages()):
                        return
                await self._wait_news(changed if listens else asyncio.Event())

    async def _wait_news(self, changed: asyncio.Event) -> None:
        """Wait for a message or output of the agent, at most as long as it may be silent."""
        heard = self._recorder.heard
        heard.clear()
        left = self._recorder.heard_at + self._agent.stall_seconds - time.monotonic()
        waiting = [asyncio.create_task(changed.wait()), asyncio.create_task(heard.wait())]
        try:
            done, _ = await asyncio.wait(
                waiting, timeout=max(left, 0.01), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for each in waiting:
                each.cancel()
        if not done:
            await self._require_alive()

    async def _require_alive(self) -> None:
        """Check that a silent agent still works: one of its commands or requests may take long.

        Raises:
            AgentFailed: `agent_stalled`.
        """
        report = await self._read_traffic()
        busy = bool(self._recorder.calls) or (report is not None and report.running > 0)
        if not busy:
            seconds = self._agent.stall_seconds
            raise AgentFailed(
                "agent_stalled", f"{self._agent.name} was silent for {seconds:g} seconds"
            )
        self._recorder.heard_at = time.monotonic()

    async def _pass_on(self, link: AgentLink | None, messages: Sequence[Message]) -> bool:
        """Tell the agent messages of its parent; return whether its turn must be interrupted.

        Args: link: None if no turn runs.
        """
        urgent = any(message.urgent for message in messages)
        if not messages:
            return False
        text = member_prompts.format_messages([message.text for message in messages])
        how = "after the turn"
        if link is not None and urgent:
            how = "interrupted"
        elif link is not None and link.steers_in_turn:
            with suppress(LinkFailed):
                how = "in the turn" if await link.steer(text) else how
        if how == "in the turn":
            self._recorder.record_turn(Turn(role="user", text=text))
        else:
            self._notes.append(text)
        self._testimony.record_notice("agent_steered", self.name, how=how)
        return urgent

    async def _end_turn(self) -> None:
        """Interrupt a turn that still runs, and wait for its end."""
        running, self._running = self._running, None
        if running is None or self._link is None:
            return
        if not running.done():
            with suppress(LinkFailed):
                await self._link.interrupt()
            await asyncio.wait({running}, timeout=INTERRUPT_SECONDS)
        if not running.done():
            # It does not listen: without its process there is nothing to go on with.
            running.cancel()
            await asyncio.wait({running})
            await self._link.close()
            self._link = None
        elif not running.cancelled() and running.exception() is None:
            turn = running.result()
            self._recorder.end_turn(turn.text)
        report = await self._read_traffic(idle=True)
        if report is not None and self._before is not None:
            self._testimony.record_spending(self.name, report.count_since(self._before))
            self._before = report

    async def _read_traffic(self, *, idle: bool = False) -> TrafficReport | None:
        return await self._traffic.read(idle=idle) if self._agent.metered else None

    # -- start

    async def _require_open(self) -> AgentLink:
        """Return the link to the running program; start it if it does not run.

        Raises:
            LinkFailed: it cannot be started.
        """
        if self._link is not None:
            return self._link
        launch = await self._prepare()
        link = make_link(self._profile, launch, self._recorder.hear, self._policy)
        # Known before it is open: `close` must end a program that does not answer.
        self._link = link
        saved = self._read_session() if self._earlier and self._profile.resume == "native" else ""
        self._resumed = "native" if saved else "fresh"
        try:
            self._session = await link.open(saved)
        except LinkFailed as why:
            if not saved or why.code != "agent_refused":
                self._link = None
                raise
            self._recorder.warn("resume_refused", why.message)
            self._resumed = "fresh"
            self._session = await link.open("")
        if self._resumed == "native":
            await self._expect_memory()
        else:
            self._introduce()
        self._report_session()
        if self._agent.remark:
            self._recorder.warn("version_untested", self._agent.remark)
        return link

    def _introduce(self) -> None:
        """Set what a new session is told before its first prompt."""
        self._introduction = [] if self._profile.name in TAKES_ROLE else [self._system]
        if self._earlier:
            self._introduction.append(_format_transcript(self._earlier))
            self._resumed = "transcript"

    def _report_session(self) -> None:
        self._save_session()
        self._testimony.show_agent(self.name, agent=self._describe())
        self._testimony.record_notice(
            "agent_session",
            self.name,
            agent=self._agent.name,
            version=self._agent.version,
            session=self._session,
            resumed=self._resumed,
        )

    async def _expect_memory(self) -> None:
        """Let the gateway look whether the resumed session holds what was said before."""
        phrases = _select_phrases(self._earlier, f"{self._system}\n{self._opening}")
        if phrases and self._agent.metered:
            report = await self._traffic.read(expect=phrases)
            self._asked_before = report.requests if report is not None else None

    async def _has_forgotten(self) -> bool:
        """Return whether its resumed session turned out to be without its conversation.

        It is known once a model was asked.
        """
        if self._asked_before is None:
            return False
        report = await self._read_traffic()
        if report is None or report.requests == self._asked_before:
            return False
        self._asked_before = None
        return not report.recalled

    async def _tell_again(self, link: AgentLink, said: Sequence[str]) -> None:
        """Begin a new session that is told the earlier conversation, then this prompt.

        Raises:
            LinkFailed: it cannot begin one.
        """
        self._recorder.warn(
            "resume_forgotten", "its resumed session did not hold the earlier conversation"
        )
        self._session = await link.open("")
        self._introduce()
        self._introduction += said
        self._report_session()

    async def _prepare(self) -> AgentLaunch:
        """Make what the program needs: its files, and the server of the team's tools."""
        contract = self._environment.contract
        self._home.mkdir(mode=0o700, exist_ok=True)
        self._recorder.open_stream(self._environment.logs / self.name)
        server = await self._start_server()
        base = f"{self._environment.gateway}/@{self.name}{WIRE_PATHS.get(self._agent.wire, '')}"
        launch = build_launch(
            self._profile,
            LaunchRequest(
                program=self._agent.program,
                model=self._who.model,
                home=str(self._home),
                cwd=str(self._environment.find_home(self.name)),
                base_url=base if self._agent.metered else "",
                token=self._environment.token if self._agent.metered else "",
                tools=self._tools,
                role=self._system,
                tool_server=server,
                native_tools=self._agent.native_tools,
                login="gateway" if self._agent.metered else "own",
                access="read" if contract.is_read_only else "write",
                path=_extend_search(self._environment.search, self._agent.program),
                memory=f"{PRIVATE}/{self.name}" if contract.boundary.mode == ISOLATED else "",
            ),
        )
        write_launch_files(launch)
        for source, target in self._agent.credentials:
            place = self._home / target
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not place.exists():
                shutil.copyfile(source, place)
        return launch

    async def _start_server(self) -> ToolServerAddress | None:
        """Serve the team's tools to the agent, if there are any for it."""
        if not self._select_tools(self._toolbox.offered):
            return None
        if self._server is None:
            self._server = ToolboxServer(self._toolbox, self._select_tools, self._note_use)
            self._address = await self._server.start()
        return ToolServerAddress(url=self._address, token=self._server.token)

    def _select_tools(self, offered: Sequence[Tool]) -> list[Tool]:
        """Return the tools that the agent does not have itself.

        A single member has nothing to vote on, and its last words are its answer.
        """
        hidden = OWN_TOOLS | (set() if self._several else {ANSWER.name, VOTE.name})
        hidden |= set() if self._environment.steward else {"copy_files_batch"}
        return [tool for tool in offered if tool.name not in hidden]

    def _note_use(self, call: Call, found: ToolResult) -> None:
        self._recorder.note_activity()

    def _read_session(self) -> str:
        try:
            document = json.loads((self._home / SESSION_FILE).read_bytes())
            known = document["agent"] == self._agent.type
            return str(document["session"]) if known else ""
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def _save_session(self) -> None:
        document = {"agent": self._agent.type, "session": self._session}
        write_atomic(self._home / SESSION_FILE, json.dumps(document).encode(), 0o600)

    def _describe(self) -> dict[str, str]:
        return {
            "name": self._agent.name,
            "version": self._agent.version,
            "session": self._session,
            "resumed": self._resumed,
        }

    # -- leaving

    def _leave_failed(self, why: AgentFailed | LinkFailed) -> None:
        words = str(why) if isinstance(why, AgentFailed) else f"{why.code}: {why.message}"
        seat = self._state.table.find_seat(self.name)
        # A used-up budget makes the last words the answer, as for any member.
        if isinstance(why, AgentFailed) and why.code == "budget_exceeded" and seat.current is None:
            last_words = self._recorder.last_words
            if last_words.strip():
                with suppress(NotNow):
                    self._state.answer(self.name, last_words)
        self._leave(words)

    def _leave(self, why: str) -> None:
        self._state.leave(self.name, why)


AGENT_ANSWER_NOW = (
    "Your time is almost up. Use no more tools. Give the best answer you can from what you have, "
    "now, and say what is missing."
)
NUDGE_ANSWER = "Give your whole answer to the brief now, as plain text."
VOTE_TOOL = "Use the tool vote of the MCP server retinue with the author's name as agent_id."
VOTE_LINE = (
    "If you have no such tool, end your reply with one line: VOTE, a space, and the author's name."
)
REPROMPT = (
    "Your answer does not fit the required format: {why}. Reply with one JSON document that fits "
    "this JSON schema, and nothing else:\n{schema}"
)


def _name_refusal(report: TrafficReport) -> str:
    if report.over_budget:  # and not a provider's own 402
        return "budget_exceeded"
    return "no_key" if report.status in (REFUSED_KEY, FORBIDDEN) else "model_refused"


def _extend_search(search: str, program: Sequence[str]) -> str:
    """Return the PATH with the folder of the program's interpreter: scripts may start it again."""
    return f"{os.path.dirname(program[0])}:{search}" if len(program) > 1 else search


def _select_phrases(turns: Sequence[Turn], new: str) -> list[str]:
    """Return short texts of a conversation by which a request that holds it is known.

    Args:
        new: what is told anyway, so that its words prove nothing.
    """
    spoken = [turn.text for turn in turns if turn.role != "tool" and turn.text]
    chosen = [*spoken[:1], *spoken[-MOST_RECALLED:]]
    phrases = (max(_PLAIN.findall(text), key=len, default="") for text in chosen)
    return [phrase for phrase in dict.fromkeys(phrases) if phrase and phrase not in new]


def _format_transcript(turns: Sequence[Turn]) -> str:
    """Return an earlier conversation as text, its end if it is too long."""
    lines = []
    for turn in turns:
        if turn.role == "tool":
            lines.append(f"[result of {turn.call.tool if turn.call else 'a tool'}] {turn.text}")
        elif turn.text:
            lines.append(f"[{'you' if turn.role == 'assistant' else 'parent'}] {turn.text}")
        lines += [f"[you used {call.tool}]" for call in turn.calls]
    text = "\n".join(lines)
    cut = "[the beginning is left out]\n" if len(text) > MOST_TRANSCRIPT else ""
    return (
        "This conversation goes on from an earlier one, which was:\n"
        f"<earlier>\n{cut}{text[-MOST_TRANSCRIPT:]}\n</earlier>"
    )
