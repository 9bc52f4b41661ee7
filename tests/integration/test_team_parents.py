"""A team of several that delegates: each member has its own subagents, sent as it is configured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support.roots import Root, Row, complete_lines, root
from support.scripted import Heard, Models, Said, answer, call, vote
from support.teams import ENFORCEMENT, INITIAL, models, stage

__all__ = ["models", "root"]

PROMPT = "Build a site"
ENABLED = "enable_subagents: true"
INHERITS = f"""{ENABLED}
subagent_orchestrator:
  enabled: true
  inherit_spawning_agent_backend: true"""
Part = Callable[[Heard, int], Said]


def scout(name: str) -> Row:
    return {"task": f"Look for {name}", "subagent_id": name, "context_paths": []}


def script(sent: list[str], **parts: Part) -> Callable[[Heard], Said]:
    """Each member plays its part by turns, then all vote; who is sent answers, and is noted."""

    def said(heard: Heard) -> Said:
        if PROMPT not in heard.words:
            sent.append(heard.model)
            return answer("found it")
        if stage(heard) == INITIAL:
            turn = sum(each["role"] == "assistant" for each in heard.document["messages"])
            return parts[heard.model](heard, turn)
        return vote("agent1") if stage(heard) == ENFORCEMENT else Said(text="the site is built")

    return said


def run(root: Root, models: Models, config: str) -> Row:
    started = root.call("run.begin", prompt=PROMPT, config_text=config)
    ended: Row = root.call("run.wait", task=started["task_id"])
    assert ended["answer"] == "the site is built", ended
    return ended


def answers(heard: Heard, turn: int) -> Said:
    return answer(f"answer of {heard.model}")


def spawns(name: str) -> Part:
    def part(heard: Heard, turn: int) -> Said:
        return call("spawn_subagents", tasks=[scout(name)]) if turn == 0 else answers(heard, turn)

    return part


@pytest.mark.requirement("R153", "R165")
@pytest.mark.parametrize("spawner", ["ay", "bee"])
def test_a_subagent_of_a_member_has_that_members_backend(
    root: Root, models: Models, spawner: str
) -> None:
    sent: list[str] = []
    parts = {"ay": answers, "bee": answers} | {spawner: spawns("one")}
    models.script = script(sent, **parts)
    ended = run(root, models, models.config("ay", "bee", coordination=INHERITS))
    assert sent == [spawner]
    contract = root.call("subagent.show", task=ended["task_id"], subagent="one")["contract"]
    assert (contract["delegated_by"], contract["sent_by"]) == ("root", spawner)


@pytest.mark.requirement("R166")
def test_each_member_delegates_to_the_types_it_was_given(root: Root, models: Models) -> None:
    backend = "{type: chatcompletion, base_url: 'http://127.0.0.1:%d/v1', model: %s}"
    lines = ["agents:"]
    for name in ("ay", "bee"):
        theirs = f"[{{id: of-{name}, backend: {backend % (models.port, f'of-{name}')}}}]"
        lines += [f"  - id: {name}", f"    backend: {backend % (models.port, name)}"]
        lines += [f"    subagent_agents: {theirs}"]
    lines += ["orchestrator: {coordination: {enable_subagents: true}}"]
    sent: list[str] = []
    models.script = script(sent, ay=spawns("one"), bee=spawns("two"))
    run(root, models, "\n".join(lines))
    assert sorted(sent) == ["of-ay", "of-bee"]


def is_closed(root: Root, name: str) -> bool:
    """Whether the log of any task tells the end of a subagent of that name."""
    logs = root.path.glob("tasks/*/events.jsonl")
    events = [json.loads(line) for log in logs for line in complete_lines(log)]
    return any(
        event["type"] == "agent.subagent_closed" and event["agentInstance"] == name
        for event in events
    )


@pytest.mark.requirement("R255")
def test_each_member_gets_the_results_of_its_own_subagents(root: Root, models: Models) -> None:
    told: dict[str, list[str]] = {"ay": [], "bee": []}

    def ay(heard: Heard, turn: int) -> Said:
        told["ay"].append(heard.last)
        looks = Said(calls=[("list_subagents", {})], until=lambda: is_closed(root, "hers"))
        return looks if turn == 0 else answers(heard, turn)

    def bee(heard: Heard, turn: int) -> Said:
        told["bee"].append(heard.last)
        if turn == 0:
            return call("spawn_subagents", tasks=[scout("hers")], background=True)
        looks = Said(calls=[("list_subagents", {})], until=lambda: len(told["ay"]) == 2)
        return looks if turn == 1 else answers(heard, turn)

    models.script = script([], ay=ay, bee=bee)
    run(root, models, models.config("ay", "bee", coordination=ENABLED))
    assert told["ay"][1] == "no subagents yet"
    assert "hers" in told["bee"][2] and "found it" in told["bee"][2]


@pytest.mark.requirement("R255")
def test_results_of_a_member_that_left_go_to_the_next_caller(root: Root, models: Models) -> None:
    told: list[str] = []

    def bee_is_gone() -> bool:
        found = root.path.glob("tasks/*/agents/root/full_logs/status.json")
        seats = [json.loads(path.read_text())["agents"].get("wasp", {}) for path in found]
        return any(seat.get("status") == "failed" for seat in seats)

    def ay(heard: Heard, turn: int) -> Said:
        told.append(heard.last)
        ready = lambda: is_closed(root, "left") and bee_is_gone()  # noqa: E731
        looks = Said(calls=[("custom_tool__wait_for_background_tool", {})], until=ready)
        return looks if turn == 0 else answers(heard, turn)

    def wasp(heard: Heard, turn: int) -> Said:
        if turn == 0:
            return call("spawn_subagents", tasks=[scout("left")], background=True)
        return Said(status=400, text="it broke")

    models.script = script([], ay=ay, wasp=wasp)
    run(root, models, models.config("ay", "wasp", coordination=ENABLED))
    assert "left" in told[1] and "found it" in told[1]


def test_a_subagent_of_the_same_name_and_work_is_one_members_alone(
    root: Root, models: Models
) -> None:
    told: dict[str, str] = {}

    def part(heard: Heard, turn: int) -> Said:
        told[heard.model] = heard.last
        return spawns("same")(heard, turn)

    models.script = script([], ay=part, bee=part)
    ended = run(root, models, models.config("ay", "bee", coordination=ENABLED))
    refused, given = sorted(told.values(), key=lambda text: "duplicate id" not in text)
    assert "of another parent (choose another id" in refused and "found it" in given
    assert len(ended["results"]) == 1


@pytest.mark.requirement("R174", "R175")
@pytest.mark.parametrize(("given", "seen"), [("./", ["plan.md"]), ("plan.md", ["plan.md"])])
def test_a_member_gives_out_of_its_own_folder(
    root: Root, models: Models, given: str, seen: list[str]
) -> None:
    def ay(heard: Heard, turn: int) -> Said:
        if turn == 0:
            return call("write_file", path="plan.md", content="mine")
        task = scout("reader") | {"context_paths": [given]}
        return call("spawn_subagents", tasks=[task]) if turn == 1 else answers(heard, turn)

    models.script = script([], ay=ay, bee=answers)
    ended = run(root, models, models.config("ay", "bee", coordination=ENABLED))
    assert len(ended["results"]) == 1, ended
    contract = root.call("subagent.show", task=ended["task_id"], subagent="reader")["contract"]
    (given_path,) = map(Path, contract["context"]["paths"])
    found = list(given_path.iterdir()) if given_path.is_dir() else [given_path]
    assert sorted(path.name for path in found) == seen
    assert found[0].read_text() == "mine"


@pytest.mark.requirement("R175")
def test_a_member_whose_folder_leads_elsewhere_gives_nothing_from_there(
    root: Root, models: Models
) -> None:
    told: list[str] = []

    def ay(heard: Heard, turn: int) -> Said:
        told.append(heard.last)
        if turn == 0:
            return call("run_command", command="cd .. && mv ay was && ln -s /etc ay && ls -d ay")
        task = scout("thief") | {"context_paths": ["./passwd"]}
        return call("spawn_subagents", tasks=[task]) if turn == 1 else answers(heard, turn)

    models.script = script([], ay=ay, bee=answers)
    ended = run(root, models, models.config("ay", "bee", coordination=ENABLED))
    assert told[1].startswith("ay") and "lies outside of what this parent may give" in told[2]
    assert ended["results"] == []
