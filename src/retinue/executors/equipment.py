"""What a member is given to work with: files, commands, delegation, a question, its team."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from retinue.domain.contract import TeamMember
from retinue.domain.conversation import Tool
from retinue.domain.coordination import NotNow
from retinue.domain.ids import MemberId
from retinue.domain.toolserver import VARIABLE
from retinue.executors.delegation import (
    ChildDesk,
    Collector,
    add_collecting_tools,
    add_delegation_tools,
    add_planning_tool,
)
from retinue.executors.files import Files, Impossible
from retinue.executors.inbox import Inbox
from retinue.executors.room import Room
from retinue.executors.servers import Servers, servers_of
from retinue.executors.surroundings import Surroundings
from retinue.executors.toolbox import (
    TEXT,
    Note,
    Toolbox,
    add_command_tool,
    add_copy_tool,
    add_file_tools,
    schema,
)

ASK = Tool(
    name="ask",
    description="Ask whoever delegated this to you what only they can know. You stop, and go on "
    "once they have answered.",
    parameters=schema({"questions": {"type": "array", "items": TEXT}}),
)
ANSWER = Tool(
    name="new_answer",
    description="Give your whole answer to the brief.",
    parameters=schema({"content": TEXT}),
)
VOTE = Tool(
    name="vote",
    description="Vote for the best of the present answers, by its author's name.",
    parameters=schema({"agent_id": TEXT}, reason=TEXT),
)


class Equipment:
    """The same for each member of a team, in a folder of its own."""

    def __init__(
        self,
        around: Surroundings,
        room: Room,
        environment: Mapping[str, str],
        left: Callable[[], float],
    ) -> None:
        self._around = around
        self._room = room
        self._given = environment
        # What is handed on to servers alone is in no command's environment.
        self._environment = {
            name: value for name, value in environment.items() if not name.startswith(VARIABLE)
        }
        self._left = left  # seconds until the deadline

    def fill(self, box: Toolbox, name: MemberId, home: Path, inbox: Inbox) -> None:
        """The box holds every tool there is; its contract decides which can be used."""
        around = self._around
        paths = map(Path, around.contract.context.paths)
        files = Files(home, [around.context, around.snapshots, around.logs, *paths])
        add_file_tools(box, files)
        add_command_tool(box, files, self._environment, self._left)
        if around.steward:
            desk = ChildDesk(around.steward, name, partial(self._room.absent, name), inbox)
            granted = around.team.delegation
            add_delegation_tools(box, desk, around.terms, granted.types if granted else ())
            if granted is not None and granted.planning:
                add_planning_tool(box, desk)
            add_collecting_tools(box, Collector(files, desk))
        else:
            add_copy_tool(box, files.copy)
        self._add_question(box)
        self._add_answer(box, name)
        if len(around.team.members) > 1 and around.team.refine:
            self._add_vote(box, name)

    def servers(self, box: Toolbox, who: TeamMember, home: Path, note: Note) -> Servers:
        """The MCP servers whose tools the box will hold, too, once they are opened."""
        terms = self._around.contract.servers_of(who)
        return Servers(servers_of(terms, home, self._given), box, self._left, note)

    def _add_question(self, box: Toolbox) -> None:
        def ask(questions: list[str]) -> str:
            asked = [question for question in questions if question.strip()]
            if not asked:
                raise Impossible("there is no question in it")
            self._room.ask(asked)
            return "asked; you stop here until there is an answer"

        box.add(ASK, ask)

    def _add_answer(self, box: Toolbox, name: MemberId) -> None:
        def new_answer(content: str) -> str:
            if not content.strip():
                raise Impossible("an answer cannot be empty")
            try:
                return f"your answer stands as {self._room.answer(name, content)}"
            except NotNow as why:
                raise Impossible(str(why)) from None

        box.add(ANSWER, new_answer, always=True)

    def _add_vote(self, box: Toolbox, name: MemberId) -> None:
        def vote(agent_id: str, reason: str = "") -> str:
            try:
                self._room.vote(name, agent_id)
            except NotNow as why:
                raise Impossible(str(why)) from None
            return "your vote stands"

        box.add(VOTE, vote, always=True)
