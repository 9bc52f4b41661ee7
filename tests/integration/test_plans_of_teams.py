"""Plans whose steps are done by teams of models: what they leave is what is merged."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import repositories
from support.repositories import Repository, Step, plan, reasons
from support.roots import Root, Row, until
from support.scripted import Heard, Models, Said, answer, call, vote
from support.teams import models

__all__ = ["models"]

root = repositories.root
FILES = {"a.txt": "one\ntwo\n", "old.txt": "old\n", "docs/read.md": "read\n"}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "project", FILES)


def step(name: str, text: str, **more: object) -> Step:
    return {"id": name, "description": text, "retries": 0, "timeout_seconds": 30} | more


def carry_out(root: Root, models: Models, text: str, *members: str, coordination: str = "") -> Row:
    config = models.config(*members, coordination=coordination)
    started = root.call("run.start", plan_text=text, config_text=config)
    end: Row = root.call("run.wait", task=started["task_id"])
    return end


def agreed(heard: Heard, *work: Said) -> Said:
    """Who does this, then votes for the first, who presents."""
    if "was chosen" in heard.last:
        return Said(text="presented")
    if "present answers" in heard.words:
        return vote("agent1")
    return work[min(len(work) - 1, turn(heard))]


def turn(heard: Heard) -> int:
    return sum(each["role"] == "assistant" for each in heard.document["messages"])


@pytest.mark.requirement("R116")
def test_the_edits_and_commits_of_one_model_are_merged(
    repository: Repository, root: Root, models: Models
) -> None:
    def script(heard: Heard) -> Said:
        if "the second" in heard.words:
            said = [call("read_file", path="new.txt"), answer("read it")]
            return said[turn(heard)]
        commit = "rm old.txt && git add -A && git commit -qm mine && git log --oneline | wc -l"
        said = [
            call("edit_file", path="a.txt", old="two", new="2"),
            call("run_command", command=commit),
            call("write_file", path="new.txt", content="not committed\n"),
            answer("changed three files"),
        ]
        return said[turn(heard)]

    models.script = script
    before = repository.untouched()
    text = plan(step("first", "Do the first"), step("second", "Do the second"))
    end = carry_out(root, models, text, "solo")
    assert end["status"] == "completed", [each.get("error") for each in end["results"]]
    assert reasons(end) == {"first": "merged", "second": "no_changes"}
    assert [each["answer"] for each in end["results"]] == ["changed three files", "read it"]
    assert repository.files(end["branch"]) == {
        "a.txt": "one\n2",
        "docs/read.md": "read",
        "new.txt": "not committed",
    }
    assert repository.untouched() == before
    told = [heard.last for heard in models.heard if heard.model == "solo"]
    assert "not committed" in told[-1]  # the second starts from what the first made
    root.sound()


def test_only_the_winners_work_is_merged(
    repository: Repository, root: Root, models: Models
) -> None:
    """Each changes, removes and makes other files, in a clone of its own."""

    def script(heard: Heard) -> Said:
        if "was chosen" in heard.last:
            return Said(text=f"presented by {heard.model}")
        if "present answers" in heard.words:
            return vote("agent2")
        name = heard.model
        work = (
            f"echo {name} > a.txt; echo {name} > {name}.txt; ln -s docs link-{name}; git add -A; "
            f"git commit -qm {name}; git status --porcelain | wc -l"
        )
        if name == "m2":
            work += "; rm -r docs old.txt; mkdir old.txt; echo deep > old.txt/deep; rm link-m2"
            work += "; mkdir -p .retinue; echo '# By two' > .retinue/step-0-result.md"
        return [call("run_command", command=work), answer(f"by {name}")][min(1, turn(heard))]

    models.script = script
    end = carry_out(root, models, plan(step("team", "Do it")), "m1", "m2", "m3")
    assert end["status"] == "completed", [each.get("error") for each in end["results"]]
    assert end["results"][0]["answer"] == "presented by m2"
    assert repository.files(end["branch"]) == {
        "a.txt": "m2",
        "m2.txt": "m2",
        "old.txt/deep": "deep",
    }
    assert repository.joined(end["branch"]) == ["team"]
    report = root.folder(end["task_id"], "team") / "artifacts" / "step-0-result.md"
    assert report.read_text() == "# By two\n"


def test_a_teams_change_outside_of_owned_paths_is_refused_and_its_prompt_said_so(
    repository: Repository, root: Root, models: Models
) -> None:
    def script(heard: Heard) -> Said:
        return [call("write_file", path="b.txt", content="b"), answer("done")][turn(heard)]

    models.script = script
    end = carry_out(root, models, plan(step("astray", "Do it", owns=["a.txt"])), "solo")
    assert (end["status"], reasons(end)) == ("failed", {"astray": "policy_violation"})
    assert "b.txt" in end["results"][0]["error"]
    assert "only what matches a.txt" in models.heard[-1].words


def test_prompts_mention_sparse_workspaces_and_the_winners_work_is_merged(
    repository: Repository, root: Root, models: Models
) -> None:
    def script(heard: Heard) -> Said:
        work = f"ls -R; git show HEAD:old/deep.txt; echo {heard.model} > docs/new.md"
        return agreed(heard, call("run_command", command=work), answer("done"))

    models.script = script
    models.heard.clear()
    repository.write({"old/deep.txt": "deep\n"})
    repository.commit("more")
    text = plan(step("docs", "Do it", owns=["docs"]))
    sparse = "subagent_runtime_mode: inherited\nsubagent_workspaces: sparse"
    end = carry_out(root, models, text, "m1", "m2", coordination=sparse)
    assert reasons(end) == {"docs": "merged"}, end["results"]
    kept = {name: text.rstrip("\n") for name, text in FILES.items()}
    made = kept | {"old/deep.txt": "deep", "docs/new.md": "m1"}
    assert repository.files(end["branch"]) == made
    for model in ("m1", "m2"):
        first, second = [each for each in models.heard if each.model == model][:2]
        assert "git sparse-checkout disable" in first.words
        assert "read.md" in second.last and "deep\\n" in second.words
        assert "deep.txt" not in second.last


def test_output_of_a_team_is_copied_without_the_folders_of_its_members(
    root: Root, models: Models
) -> None:
    def script(heard: Heard) -> Said:
        made = call("write_file", path="page.md", content=heard.model)
        return agreed(heard, made, answer("made it"))

    models.script = script
    text = plan(step("page", "Write it", integration="copy"), base=None)
    end = carry_out(root, models, text, "m1", "m2")
    assert end["status"] == "completed", [each.get("error") for each in end["results"]]
    output = root.task_folder(end["task_id"]) / "shared" / "output" / "page"
    assert [path.name for path in output.rglob("*")] == ["page.md"]
    assert (output / "page.md").read_text() == "m1"


@pytest.mark.requirement("R92", "R101")
def test_a_step_with_an_empty_list_of_tools_has_none(
    repository: Repository, root: Root, models: Models
) -> None:
    models.script = lambda heard: answer("done")
    end = carry_out(root, models, plan(step("talk", "Talk", tools=[])), "solo")
    shown = root.call("subagent.show", task=end["task_id"], subagent="talk")
    assert shown["contract"]["permissions"]["allowed_tools"] == []
    assert models.heard[-1].tools == ["new_answer"]


def test_a_step_without_a_backend_is_refused_before_anything_exists(
    root: Root, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = "orchestrator: {coordination: {}}"
    monkeypatch.setenv("RETINUE_MODELS", str(root.path.parent / "no-models"))
    root.call("task.list")
    before = root.state()
    text = plan(step("one", "Do it"))
    refused = root.refusal("run.start", plan_text=text, config_text=nothing)
    assert (refused.code, "step one" in refused.message) == ("no_backend", True)
    config = models.config("solo")
    text = plan(step("one", "Do it", type="nobody"))
    refused = root.refusal("run.start", plan_text=text, config_text=config)
    assert (refused.code, "nobody" in refused.message) == ("unknown_type", True)
    text = plan(step("one", "Do it", tools=["teleport"]))
    assert root.refusal("run.start", plan_text=text, config_text=config).code == "unknown_tool"
    text = plan({"id": "one", "command": ["true"], "tools": ["read_file"]})
    refused = root.refusal("run.start", plan_text=text, config_text=config)
    assert (refused.code, "step one" in refused.message) == ("tools_not_enforced", True)
    text = plan({"id": "one"})
    assert (
        "neither a description nor a command" in root.refusal("run.start", plan_text=text).message
    )
    assert root.state() == before


@pytest.mark.requirement("R116", "R182")
@pytest.mark.parametrize("workspaces", ["shared", "whole"])
def test_work_before_and_after_a_question_is_merged_together(
    repository: Repository, root: Root, models: Models, workspaces: str
) -> None:
    def script(heard: Heard) -> Said:
        if "was chosen" in heard.last:
            return Said(text="presented")
        if heard.model == "two" or "go on" in heard.words:
            after = heard.words.rpartition("go on")[2]
            if "present answers" in after:
                return vote("agent1")
            if heard.model == "one" and "more.txt" not in after:
                return call("write_file", path="more.txt", content="more\n")
            return answer("done")
        said = [
            call("edit_file", path="a.txt", old="two", new="2"),
            call("run_command", command="rm old.txt; echo new > new.txt"),
            call("ask", questions=["Shall I?"]),
        ]
        return said[turn(heard)]

    models.script = script
    config = models.config("one", "two", coordination=f"subagent_workspaces: {workspaces}")
    text = plan(step("it", "Do it"))
    task = root.call("run.start", plan_text=text, config_text=config)["task_id"]
    (gate,) = until(lambda: root.call("gate.list", task=task))
    root.call("gate.approve", task=task, gate=gate["gate_id"], answer="go on")
    end = root.call("run.wait", task=task)
    assert reasons(end) == {"it": "merged"}, end
    assert repository.files(end["branch"]) == {
        "a.txt": "one\n2",
        "docs/read.md": "read",
        "more.txt": "more",
        "new.txt": "new",
    }
