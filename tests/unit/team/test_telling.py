"""Order of the writes of status.json in a team of one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from retinue.core.contract import Contract, Execution, Parent, Permissions, Step, Team, TeamMember
from retinue.core.conversation import Call, Reply, ReplyUsage, Tool, Turn
from retinue.formats.contract_json import contract_to_text
from retinue.team.environment import read_environment
from retinue.team.team_main import work

Script = Sequence[Callable[[], Reply]]


class Scripted:
    """Backend with scripted replies that remembers its last input."""

    def __init__(self, script: Script) -> None:
        self._script = iter(script)
        self.told: list[str] = []

    async def reply(self, turns: Sequence[Turn], tools: Sequence[Tool]) -> Reply:
        self.told.append(turns[-1].text)
        return next(self._script)()


def called(tool: str, tokens: int, **arguments: object) -> Reply:
    call = Call(id=f"c{tokens}", tool=tool, arguments=arguments)
    return Reply(calls=(call,), used=ReplyUsage(input_tokens=tokens))


def play(folder: Path, script: Script, *tools: str) -> tuple[int, Scripted]:
    contract = Contract(
        parent=Parent(run_id="r", step_idx=0, task_prompt="", goal_summary=""),
        step=Step(title="", description=""),
        permissions=Permissions(allowed_tools=tools),
        execution=Execution(attempt_timeout_ms=30_000),
        team=Team(members=(TeamMember(id="a", route="x", wire="openai", model="m"),)),
    )
    for name in ("workspace", "context", "logs", "inbox"):
        (folder / name).mkdir()
    (folder / "contract").write_text(contract_to_text(contract))
    (folder / "brief").write_text("Do it")
    names = ("contract", "brief", "workspace", "context", "logs", "inbox", "answer", "final")
    environment = {f"RETINUE_{name.upper()}": str(folder / name) for name in names}
    environment |= {"RETINUE_SUBAGENT_ID": "s"}
    around, scripted = read_environment(environment), Scripted(script)
    loop = asyncio.new_event_loop()
    code = loop.run_until_complete(work(around, lambda *_: scripted, environment))
    loop.close()
    return code, scripted


def status(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "logs" / "status.json").read_text())
    return found


def spent(folder: Path) -> int:
    return int(status(folder)["costs"]["total_input_tokens"])


def test_spending_is_written_before_the_tool_runs(tmp_path: Path) -> None:
    path = str(tmp_path / "logs" / "status.json")
    script = [
        lambda: called("read_file", 10, path=path),
        lambda: called("new_answer", 1, content="done"),
    ]
    _, model = play(tmp_path, script, "read_file")
    assert json.loads(model.told[-1])["costs"]["total_input_tokens"] == 10


def test_spending_of_a_refused_answer_is_written_before_the_next_request(tmp_path: Path) -> None:
    seen: list[int] = []

    def then() -> Reply:
        seen.append(spent(tmp_path))
        return called("new_answer", 1, content="done")

    play(tmp_path, [lambda: called("new_answer", 5, content=" "), then])
    assert seen == [5] and spent(tmp_path) == 6


def test_the_last_status_has_the_winner_and_the_spending(tmp_path: Path) -> None:
    code, _ = play(tmp_path, [lambda: called("new_answer", 3, content="done")])
    told = status(tmp_path)
    assert code == 0 and (tmp_path / "answer").read_text() == "done"
    assert told["coordination"] == {"phase": "presentation", "completion_percentage": 100}
    assert told["results"]["winner"] == "a" and spent(tmp_path) == 3
    (kept,) = told["historical_workspaces"]
    assert Path(kept["workspacePath"]).parent.joinpath("answer.txt").read_text() == "done"


def test_of_two_answers_in_one_reply_the_last_one_wins(tmp_path: Path) -> None:
    calls = tuple(
        Call(id=text, tool="new_answer", arguments={"content": text}) for text in ("one", "two")
    )
    play(tmp_path, [lambda: Reply(calls=calls, used=ReplyUsage(input_tokens=3))])
    assert (tmp_path / "answer").read_text() == "two"
    assert status(tmp_path)["agents"]["a"]["answer_count"] == 2


def test_a_question_ends_the_team_without_a_winner(tmp_path: Path) -> None:
    code, _ = play(tmp_path, [lambda: called("ask", 2, questions=["which?"])], "ask")
    assert code == 0 and json.loads((tmp_path / "final").read_text())["questions"] == ["which?"]
    assert status(tmp_path)["results"]["winner"] is None and spent(tmp_path) == 2
