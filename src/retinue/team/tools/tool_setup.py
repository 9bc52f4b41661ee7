"""Setup of a member's toolbox: files, commands, delegation, questions, answers and votes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from retinue.core.answer_schema import Mismatch
from retinue.core.contract import TeamMember
from retinue.core.conversation import Tool
from retinue.core.ids import MemberId
from retinue.core.tool_servers import VARIABLE
from retinue.core.voting import NotNow
from retinue.formats.result_json import parse_structured_answer
from retinue.team.environment import TeamEnvironment
from retinue.team.inbox import Inbox
from retinue.team.team_state import TeamState
from retinue.team.tools.delegation_tools import (
    MemberSession,
    SubagentFiles,
    add_collecting_tools,
    add_delegation_tools,
    add_planning_tool,
)
from retinue.team.tools.file_tools import MemberFiles, ToolError
from retinue.team.tools.mcp_servers import MemberServers, make_servers
from retinue.team.tools.tool_registry import (
    TEXT,
    Note,
    Toolbox,
    add_command_tool,
    add_copy_tool,
    add_file_tools,
    build_schema,
)

ASK = Tool(
    name="ask",
    description="Ask your parent, which delegated this to you, what only it can know. You stop "
    "here and go on once it has answered.",
    parameters=build_schema({"questions": {"type": "array", "items": TEXT}}),
)
ANSWER = Tool(
    name="new_answer",
    description="Give your whole answer to the brief.",
    parameters=build_schema({"content": TEXT}),
)
VOTE = Tool(
    name="vote",
    description="Vote for the best of the current answers, by its author's name.",
    parameters=build_schema({"agent_id": TEXT}, reason=TEXT),
)


class ToolSetup:
    """Fills the toolboxes of a team's members."""

    def __init__(
        self,
        environment: TeamEnvironment,
        state: TeamState,
        variables: Mapping[str, str],
        left: Callable[[], float],
    ) -> None:
        self._environment = environment
        self._state = state
        self._variables = variables
        # Variables for MCP servers may hold secrets: commands do not get them.
        self._command_variables = {
            name: value for name, value in variables.items() if not name.startswith(VARIABLE)
        }
        self._left = left  # seconds until the deadline

    def fill(self, toolbox: Toolbox, name: MemberId, home: Path, inbox: Inbox) -> None:
        """Add every tool to the toolbox; the contract decides which of them can be used."""
        environment = self._environment
        context = environment.contract.context
        readable = [
            environment.context,
            environment.snapshots,
            environment.logs,
            *map(Path, context.paths),
        ]
        files = MemberFiles(home, readable, hidden=[Path(path) for path in context.hidden])
        add_file_tools(toolbox, files)
        add_command_tool(toolbox, files, self._command_variables, self._left)
        if environment.steward:
            session = MemberSession(
                environment.steward, name, partial(self._state.list_absent, name), inbox
            )
            granted = environment.team.delegation
            add_delegation_tools(toolbox, session, environment.terms)
            if granted is not None and granted.planning:
                add_planning_tool(toolbox, session)
            add_collecting_tools(toolbox, SubagentFiles(files, session))
        else:
            add_copy_tool(toolbox, files.copy)
        self._add_question(toolbox)
        self._add_answer(toolbox, name)
        if len(environment.team.members) > 1 and environment.team.refine:
            self._add_vote(toolbox, name)

    def prepare_servers(
        self, toolbox: Toolbox, who: TeamMember, home: Path, note: Note
    ) -> MemberServers:
        """Return the member's MCP servers; opening them adds their tools to the toolbox."""
        terms = self._environment.contract.list_tool_servers(who)
        return MemberServers(make_servers(terms, home, self._variables), toolbox, self._left, note)

    def _add_question(self, toolbox: Toolbox) -> None:
        def ask(questions: list[str]) -> str:
            asked = [question for question in questions if question.strip()]
            if not asked:
                raise ToolError("give at least one question")
            self._state.ask(asked)
            return "asked; stop here until there is an answer"

        toolbox.add(ASK, ask)

    def _add_answer(self, toolbox: Toolbox, name: MemberId) -> None:
        schema = self._environment.contract.answer_schema

        def new_answer(content: str) -> str:
            if not content.strip():
                raise ToolError("an answer cannot be empty")
            if schema:
                try:
                    parse_structured_answer(content, schema)
                except Mismatch as why:
                    raise ToolError(f"{why}; the answer must be JSON that fits {schema}") from None
            try:
                return f"your answer is recorded as {self._state.answer(name, content)}"
            except NotNow as why:
                raise ToolError(str(why)) from None

        toolbox.add(ANSWER, new_answer, always=True)

    def _add_vote(self, toolbox: Toolbox, name: MemberId) -> None:
        def vote(agent_id: str, reason: str = "") -> str:
            try:
                self._state.vote(name, agent_id)
            except NotNow as why:
                raise ToolError(str(why)) from None
            return "your vote is recorded"

        toolbox.add(VOTE, vote, always=True)
