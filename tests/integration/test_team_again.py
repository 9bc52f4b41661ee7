"""What members made is there when their team goes on, and when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.roots import Root, Row, root, until
from support.scripted import Heard, Models, Said, Script, answer, call, vote
from support.teams import brief, models, task_of

__all__ = ["models", "root"]

SILENT = Said(text="hm")


def by_stage(answers: Script, votes: Script) -> Script:
    """A script by what a member was asked last, whatever was said before an interruption."""

    def script(heard: Heard) -> Said:
        turns = heard.document["messages"]
        asked = next(str(each["content"]) for each in reversed(turns) if each["role"] == "user")
        if "Your answer was chosen" in asked:
            return Said(text=f"presented by {heard.model}")
        return votes(heard) if "present answers" in asked else answers(heard)

    return script


def made(heard: Heard) -> str:
    return f"{heard.model}.md"


def write(heard: Heard) -> Said:
    return call("write_file", path=made(heard), content=heard.model)


def acted(heard: Heard) -> bool:
    """Whether its last turn was a call that has been answered."""
    return bool(heard.document["messages"][-1]["role"] == "tool")


def goes_on(root: Root, task: str, subagent: str, message: str) -> Row:
    row = root.call("subagent.continue", task=task, subagent=subagent, message=message)
    name = row["subagent_id"]
    until(lambda: root.rows(task)[name]["state"] == "closed")
    result: Row = root.call("subagent.result", task=task, subagent=name)
    return result


@pytest.mark.requirement("R16", "R182")
def test_members_find_their_files_after_a_question(root: Root, models: Models) -> None:
    found: dict[str, str] = {}

    def answers(heard: Heard) -> Said:
        if "Blue" in heard.words:
            if not acted(heard):
                return call("read_file", path="one.md")
            found[heard.model] = heard.last
            return answer(heard.model)
        if heard.model == "two":
            return answer("nothing yet")
        return call("ask", questions=["Which colour?"]) if acted(heard) else write(heard)

    models.script = by_stage(answers, lambda heard: vote("agent1"))
    task = task_of(root, models, "one", "two")
    (result,) = root.run(task, brief(subagent_id="pair"))
    assert result["status"] == "blocked", result
    result = goes_on(root, task, "pair", "Blue, please")
    assert result["status"] == "completed", result
    assert found["one"] == "one" and found["two"] != "one"
    assert Path(result["workspace"], "one.md").read_text() == "one"


def test_new_files_of_the_workspace_are_present_and_unreadable_ones_stay(
    root: Root, models: Models
) -> None:
    lock = call("run_command", command="echo x > ../locked; chmod 0 ../locked")
    listed: dict[str, str] = {}

    def answers(heard: Heard) -> Said:
        if "It is there" in heard.words:
            if not acted(heard):
                return call("list_files")
            listed[heard.model] = heard.last
            return answer(heard.model)
        if heard.model == "two":
            return answer("nothing yet")
        return call("ask", questions=["Where is the logo?"]) if acted(heard) else lock

    models.script = by_stage(answers, lambda heard: vote("agent1"))
    task = task_of(root, models, "one", "two")
    (result,) = root.run(task, brief(subagent_id="draws"))
    workspace = Path(result["workspace"])
    (workspace / "img").mkdir()
    (workspace / "img" / "logo").write_text("logo")
    (workspace / "img").chmod(0o777)
    result = goes_on(root, task, "draws", "It is there")
    assert result["status"] == "completed", result
    assert listed == dict.fromkeys(("one", "two"), "img/logo (4 bytes)")
    assert "locked (Permission denied)" in result["warning"]
    assert (workspace / "img" / "logo").read_text() == "logo"
    assert "locked" in {path.name for path in workspace.iterdir()}


@pytest.mark.requirement("R182")
def test_a_removed_file_stays_removed_after_a_question(root: Root, models: Models) -> None:
    made_by_all = call("write_file", path="old.md", content="old")
    listed: list[str] = []

    def answers(heard: Heard) -> Said:
        if "It is" in heard.words:
            if not acted(heard):
                return call("list_files")
            listed.append(heard.last)
            return answer("looked")
        if "Remove it" in heard.words:
            if heard.model == "two":
                return answer("fine")
            remove = call("run_command", command="rm old.md; echo new > new.md")
            return call("ask", questions=["Is that right?"]) if acted(heard) else remove
        return answer("made it") if acted(heard) else made_by_all

    models.script = by_stage(answers, lambda heard: vote("agent1"))
    task = task_of(root, models, "one", "two")
    root.run(task, brief(subagent_id="old"))
    row = root.call("subagent.continue", task=task, subagent="old", message="Remove it")
    until(lambda: root.rows(task)[row["subagent_id"]]["status"] == "blocked")
    result = goes_on(root, task, row["subagent_id"], "It is")
    assert result["status"] == "completed", result
    assert "new.md (4 bytes)" in listed
    names = {path.name for path in Path(result["workspace"]).iterdir()}
    assert "new.md" in names and "old.md" not in names


@pytest.mark.requirement("R16", "R60", "R260")
def test_a_further_attempt_takes_nothing_of_the_one_whose_answer_counts(
    root: Root, models: Models
) -> None:
    refused = Said(status=400, text="no such model")

    def answers(heard: Heard) -> Said:
        if "hm" in heard.words:  # its second attempt
            return refused
        return answer(f"made {made(heard)}") if acted(heard) else write(heard)

    models.script = by_stage(answers, lambda heard: SILENT)
    task = task_of(root, models, "one", "two")
    (result,) = root.run(task, brief(subagent_id="twice", max_retries=1))
    assert (result["status"], result["answer"]) == ("partial", "made one.md"), result
    assert len(root.call("subagent.show", task=task, subagent="twice")["attempts"]) == 2
    files = result["workspace_files"]
    assert files == ["twice_agent_1/one.md", "twice_agent_2/two.md"]
    assert all(Path(result["workspace"], each).is_file() for each in files)


@pytest.mark.requirement("R182", "R260")
def test_a_continued_team_without_a_decision_keeps_its_files(root: Root, models: Models) -> None:
    found: list[str] = []

    def answers(heard: Heard) -> Said:
        if "Finish" not in heard.words:
            return answer("half done") if acted(heard) else write(heard)
        if not acted(heard):
            return call("read_file", path=made(heard))
        found.append(heard.last)
        return answer(f"done by {heard.model}")

    models.script = by_stage(
        answers, lambda heard: vote("agent1") if "done by" in heard.words else SILENT
    )
    task = task_of(root, models, "one", "two")
    (first,) = root.run(task, brief(subagent_id="half"))
    assert first["status"] == "partial", first
    result = goes_on(root, task, "half", "Finish it")
    assert result["status"] == "completed", result
    assert sorted(found) == ["one", "two"]
    assert Path(result["workspace"], "one.md").read_text() == "one"


def test_a_continued_team_with_a_decision_starts_with_the_winners_files(
    root: Root, models: Models
) -> None:
    listed: list[str] = []

    def answers(heard: Heard) -> Said:
        if "Again" not in heard.words:
            return answer("made it") if acted(heard) else write(heard)
        if not acted(heard):
            return call("list_files")
        listed.append(heard.last)
        return answer("looked")

    models.script = by_stage(answers, lambda heard: vote("agent2"))
    task = task_of(root, models, "one", "two")
    (first,) = root.run(task, brief(subagent_id="won"))
    assert first["status"] == "completed", first
    assert goes_on(root, task, "won", "Again")["status"] == "completed"
    assert listed == ["two.md (3 bytes)"] * 2


@pytest.mark.requirement("R182")
def test_a_second_continue_by_the_same_id_has_the_conversation_of_the_first(
    root: Root, models: Models
) -> None:
    heard_last: list[str] = []

    def script(heard: Heard) -> Said:
        heard_last[:] = [heard.words]
        return answer(f"answer {len(models.heard)}")

    models.script = script
    task = task_of(root, models, "one")
    root.run(task, brief(subagent_id="solo", refine=False))
    goes_on(root, task, "solo", "Then add a bridge")
    goes_on(root, task, "solo", "Paint that bridge")
    (words,) = heard_last
    assert words.index("Then add a bridge") < words.index("Paint that bridge")
    assert words.count("Then add a bridge") == 1, "what was told is not told again"
