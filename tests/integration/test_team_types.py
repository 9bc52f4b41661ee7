"""Types and configuration at work: what members are told, and what parents are."""

from __future__ import annotations

import pytest

from support.roots import Root, root
from support.scripted import Heard, Models, Said, answer, call
from support.teams import brief, models, said_to, task_of

__all__ = ["models", "root"]

SPAWN = "spawn_subagents"
REASONER = """---
name: reasoner
description: Thinks before it speaks.
expected_input: [The question]
---
Think in small steps.
"""


def system_of(models: Models, model: str) -> str:
    return str(said_to(models, model)[0]["content"])


@pytest.mark.requirement("R190", "R274")
def test_a_type_gives_its_instructions_to_every_member(root: Root, models: Models) -> None:
    models.script = lambda heard: answer("checked")
    task = task_of(root, models, "typed")
    work = brief("Run `make test`", subagent_type="evaluator", subagent_id="eval")
    (result,) = root.run(task, work)
    assert result["success"] and root.rows(task)["eval"]["agent"] == "evaluator"
    system = system_of(models, "typed")
    assert "You are a subagent" in system and "new_answer" in system
    assert "pass" in system.lower() and "fail" in system.lower()
    assert "End your answer with the files you created or changed" in system


READER = """
agents:
  - id: reader
    backend: {{type: command, argv: [sh, -c, 'cat "$RETINUE_BRIEF"']}}
    {more}
"""


def reader(root: Root, more: str = "") -> str:
    text = READER.format(more=more)
    return str(root.call("task.create", title="t", config_text=text)["task_id"])


@pytest.mark.requirement("R190", "R274")
def test_a_command_finds_its_role_before_the_words_of_its_brief(root: Root) -> None:
    task = reader(root, "system_message: You review.")
    (result,) = root.run(task, brief("Run `make test`", subagent_type="evaluator"))
    told, _, work = result["answer"].partition("\n\n# Task\n\n")
    assert told.startswith("You review.\n\n") and "describe its results exactly" in told
    assert "End your answer with the files you created or changed" in told
    assert work == "Run `make test`"
    assert "the brief may not be enough for type evaluator: it is very short" in result["warning"]
    (result,) = root.run(task, brief("Look"))
    assert result["answer"] == "You review.\n\n# Task\n\nLook" and "warning" not in result


@pytest.mark.requirement("R190")
def test_a_command_of_the_parents_own_has_the_role_that_it_is_given(root: Root) -> None:
    shows = {"argv": ["/bin/sh", "-c", 'cat "$RETINUE_BRIEF"'], "context_paths": []}
    (result,) = root.run(reader(root), shows | {"subagent_type": "explorer"})
    told, _, work = result["answer"].partition("\n\n# Task\n\n")
    assert "End your answer with the files" in told and work == " ".join(shows["argv"])
    assert "warning" not in result, "it has no brief that could lack anything"


@pytest.mark.requirement("R91")
def test_a_command_is_given_its_success_criteria(root: Root) -> None:
    criteria = {"success_criteria": ["a.md exists", "it has a title"]}
    done = "Your work is done when:\n- a.md exists\n- it has a title\n\n# Task\n\nWrite"
    shows = {"argv": ["/bin/sh", "-c", 'cat "$RETINUE_BRIEF"']}
    (result,) = root.run(reader(root), brief("Write") | shows | criteria)
    assert result["answer"] == done
    (result,) = root.run(reader(root, "system_message: You review."), brief("Write") | criteria)
    assert result["answer"] == f"You review.\n\n{done}"


def test_a_command_without_a_role_has_its_brief_and_nothing_else(root: Root) -> None:
    text = "  One line,\n\n  and # another  "
    (result,) = root.run(reader(root), brief(text, subagent_id="plain"))
    task = result["workspace"].split("/tasks/")[1].split("/")[0]
    assert (root.folder(task, "plain") / "runtime" / "brief.txt").read_text() == text


@pytest.mark.requirement("R200")
def test_an_incomplete_brief_is_reported_with_the_spawn_and_the_result(
    root: Root, models: Models
) -> None:
    models.script = lambda heard: answer("checked")
    task = task_of(root, models, "typed")
    thin = brief("Check it", subagent_type="evaluator", subagent_id="thin")
    plain = brief("Check it", subagent_id="plain")
    begun = root.call("subagent.spawn", task=task, tasks=[thin, plain])["subagents"]
    said = "the brief may not be enough for type evaluator: it names no command"
    assert said in begun[0]["warning"] and "warning" not in begun[1]
    root.call("subagent.wait_all", task=task, timeout_seconds=20)
    result = root.call("subagent.result", task=task, subagent="thin")
    assert result["success"] and said in result["warning"]


@pytest.mark.requirement("R195", "R202")
def test_an_unknown_or_inactive_type_is_refused_with_those_there_are(
    root: Root, models: Models
) -> None:
    task = task_of(root, models, "typed")
    for name in ("poet", "novelty", "root"):
        work = [brief(subagent_type=name)]
        error = root.refusal("subagent.spawn", task=task, tasks=work)
        assert error.code == "unknown_type", error
        if name != "root":
            assert "available: explorer, researcher, evaluator" in error.message
        assert ("not active" in error.message) == ("subagent_types" in error.hint)
        assert ("not active" in error.message) == (name == "novelty")
    assert root.rows(task) == {}


@pytest.mark.requirement("R197")
def test_an_empty_list_leaves_only_subagents_without_a_type(root: Root, models: Models) -> None:
    models.script = lambda heard: answer("plain")
    task = task_of(root, models, "typed", coordination="subagent_types: []")
    error = root.refusal("subagent.spawn", task=task, tasks=[brief(subagent_type="explorer")])
    assert "available: none" in error.message
    (result,) = root.run(task, brief())
    assert result["success"]


def test_a_projects_own_type_goes_before_the_built_in_one(root: Root, models: Models) -> None:
    models.script = lambda heard: answer("thought")
    types = root.path.parent / ".agent" / "subagent_types"
    for name in ("reasoner", "explorer"):
        (types / name).mkdir(parents=True)
        (types / name / "SUBAGENT.md").write_text(REASONER.replace("reasoner", name))
    try:
        task = task_of(root, models, "typed", coordination="subagent_types: [reasoner, explorer]")
        for name in ("reasoner", "explorer"):
            (result,) = root.run(task, brief(subagent_type=name))
            assert result["success"]
            assert "Think in small steps." in system_of(models, "typed")
    finally:
        for name in ("reasoner", "explorer"):
            (types / name / "SUBAGENT.md").unlink()
            (types / name).rmdir()


@pytest.mark.requirement("R73", "R195", "R200", "R231")
def test_the_prompt_of_a_delegating_team_explains_delegation(root: Root, models: Models) -> None:
    models.script = lambda heard: answer("alone")
    config = models.config(
        "boss", coordination="enable_subagents: true\nsubagent_types: [explorer]"
    )
    started = root.call("run.begin", prompt="Do it", config_text=config)
    root.call("run.wait", task=started["task_id"])
    system = system_of(models, "boss")
    for line in ("Objective:", "Success criteria / pass-fail rubric:", "- explorer: "):
        assert line in system
    assert "- evaluator: " not in system and "- novelty: " not in system
    takes = next(each for each in models.heard[-1].document["tools"] if SPAWN in str(each))
    tasks = takes["function"]["parameters"]["properties"]["tasks"]
    assert tasks["items"]["properties"]["subagent_type"]["enum"] == ["explorer"]
    for status in ("completed_but_timeout", "partial", "timeout", "error"):
        assert f"- {status} (success: " in system
    assert "Use every answer that is valid" in system


@pytest.mark.requirement("R256")
def test_delegated_evaluation_is_described_and_runs_in_the_background(
    root: Root, models: Models
) -> None:
    def script(heard: Heard) -> Said:
        if "Build it" not in heard.words:
            assert "what passed" in heard.words.lower() or "observ" in heard.words.lower()
            return answer("3 passed, 1 failed")
        turn = sum(each["role"] == "assistant" for each in heard.document["messages"])
        if turn == 0:
            tasks = [
                {
                    "task": "Run `make test` and report",
                    "subagent_id": "checks",
                    "subagent_type": "evaluator",
                    "context_paths": [],
                }
            ]
            return call("spawn_subagents", tasks=tasks, background=True, refine=False)
        if turn == 1:
            return call("custom_tool__wait_for_background_tool", timeout_seconds=30)
        return answer(f"the report: {'3 passed, 1 failed' in heard.words}")

    models.script = script
    config = models.config("boss", coordination="enable_subagents: true")
    started = root.call("run.begin", prompt="Build it", config_text=config)
    ended = root.call("run.wait", task=started["task_id"])
    assert ended["answer"] == "the report: True", ended
    assert "Delegate evaluation this way" in system_of(models, "boss")


@pytest.mark.requirement("R164")
@pytest.mark.parametrize("parse", ["true", "false"])
def test_at_signs_in_a_brief_stay_as_they_are(root: Root, models: Models, parse: str) -> None:
    models.script = lambda heard: answer("read")
    shared = f"subagent_orchestrator: {{enabled: true, parse_at_references: {parse}}}"
    root.run(task_of(root, models, "literal", coordination=shared), brief("Ask @alice of @docs/x"))
    assert said_to(models, "literal")[1]["content"] == "Ask @alice of @docs/x"
