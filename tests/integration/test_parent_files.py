"""How a parent that is a team looks at what its subagents left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.roots import Root, Row, root
from support.scripted import Heard, Models, Said, answer, call, vote
from support.teams import models

__all__ = ["models", "root"]

PROMPT = "Build a site"
Look = Callable[[str], Said]
MAKE = "mkdir pages; echo half > pages/one.md; echo x > notes; ln -s one.md pages/link"


def look(
    root: Root, models: Models, *looks: Look, mode: str = "isolated", make: str = MAKE
) -> tuple[Row, list[str]]:
    """The end of a run whose lead does this after its subagent has failed, and what it was told.

    Each look is given that subagent's workspace.
    """
    told: list[str] = []

    def script(heard: Heard) -> Said:
        turn = sum(each["role"] == "assistant" for each in heard.document["messages"])
        if PROMPT not in heard.words:
            broken = Said(status=400, text="it broke")
            return call("run_command", command=make) if turn == 0 else broken
        told.append(heard.last)
        if turn == 0:
            task = {"task": "Write it", "subagent_id": "half", "context_paths": []}
            return call("spawn_subagents", tasks=[task])
        if turn > len(looks):
            return answer("looked")
        return looks[turn - 1](heard.words.partition("workspace: ")[2].partition("\\n")[0])

    models.script = script
    coordination = f"enable_subagents: true\nsubagent_runtime_mode: {mode}"
    config = models.config("boss", coordination=coordination)
    started = root.call("run.begin", prompt=PROMPT, config_text=config)
    ended: Row = root.call("run.wait", task=started["task_id"])
    assert ended["results"][0]["answer"] is None, ended
    return ended, told[2:]


@pytest.mark.requirement("R16", "R231")
@pytest.mark.parametrize("mode", ["isolated", "inherited"])
def test_a_parent_reads_the_files_of_a_failed_subagent(
    root: Root, models: Models, mode: str
) -> None:
    _, told = look(
        root,
        models,
        lambda theirs: call("read_file", path=f"{theirs}/pages/one.md"),
        lambda theirs: call("read_file", path=f"{theirs}/notes", offset=1),
        lambda theirs: call("list_files", path=theirs),
        lambda theirs: call("list_files", path=f"{theirs}/pages", pattern="*.md"),
        lambda theirs: call("read_file", path=f"{theirs}/nothing"),
        lambda theirs: call("list_files", path=f"{theirs}/notes"),
        mode=mode,
    )
    assert told[:2] == ["half\n", "\n"]
    assert {"notes", "pages/one.md"} <= {line.split()[0] for line in told[2].splitlines()}
    assert told[3].split()[0] == "one.md" and len(told[3].splitlines()) == 1
    assert told[4].startswith("error: ") and told[5].endswith("notes is not a folder")


@pytest.mark.requirement("R275")
def test_a_folder_with_a_link_in_it_is_copied_without_the_link(root: Root, models: Models) -> None:
    def copies(theirs: str) -> Said:
        return call("copy_files_batch", copies=[{"source": f"{theirs}/pages", "target": "got"}])

    ended, (told,) = look(root, models, copies)
    assert "copied 1 files of half" in told and "left out" in told and "symbolic link" in told
    got = Path(ended["root"]["workspace"], "got")
    assert [path.name for path in got.iterdir()] == ["one.md"]


def test_a_folder_is_found_behind_any_number_of_files(root: Root, models: Models) -> None:
    many = "mkdir -p all z/y; cd all; touch $(seq 2100); echo deep > ../z/y/x"
    _, told = look(
        root,
        models,
        lambda theirs: call("list_files", path=f"{theirs}/z"),
        lambda theirs: call("list_files", path=theirs, pattern="z/*"),
        lambda theirs: call("copy_files_batch", copies=[{"source": f"{theirs}/z", "target": "z"}]),
        lambda _: call("read_file", path="z/y/x"),
        make=many,
    )
    assert told[0] == "y/x" and told[3] == "deep\n"
    assert told[1] == "no files\n[more files than are shown]"


def test_a_refused_search_suggests_copying_the_files(root: Root, models: Models) -> None:
    searches: Look = lambda theirs: call("search_files", pattern="half", path=theirs)  # noqa: E731
    _, (told,) = look(root, models, searches)
    assert told.startswith("error: ") and "copy_files_batch" in told


def test_a_path_of_its_own_is_its_own_whatever_it_is_called(root: Root, models: Models) -> None:
    own = "agents/half/workspace"
    _, told = look(
        root,
        models,
        lambda _: call("write_file", path=f"{own}/mine.md", content="mine"),
        lambda _: call("read_file", path=f"{own}/mine.md"),
        lambda _: call("copy_files_batch", copies=[{"source": own, "target": "kept"}]),
        lambda _: call("read_file", path="kept/mine.md"),
    )
    assert told[1] == "mine" and told[3] == "mine"


def pool(models: Models, *names: str) -> str:
    """Every subagent is a team of these."""
    lines = ["enable_subagents: true", "subagent_orchestrator:", "  enabled: true", "  agents:"]
    for name in names:
        url = f"http://127.0.0.1:{models.port}/v1"
        backend = f"{{type: chatcompletion, model: {name}, base_url: '{url}'}}"
        lines.append(f"    - {{id: {name}, backend: {backend}}}")
    return "\n".join(lines)


@pytest.mark.requirement("R275")
def test_of_a_team_that_has_decided_its_work_is_copied_and_nothing_else(
    root: Root, models: Models
) -> None:
    told: list[str] = []

    def script(heard: Heard) -> Said:
        turn = sum(each["role"] == "assistant" for each in heard.document["messages"])
        if PROMPT not in heard.words:
            if "was chosen" in heard.last:
                return Said(text="presented")
            if "present answers" in heard.words:
                return vote("agent2")
            page = call("write_file", path="page.md", content=heard.model)
            return page if turn == 0 else answer(heard.model)
        told.append(heard.last)
        theirs = heard.words.partition("workspace: ")[2].partition("\\n")[0]
        task = {"task": "Write it", "subagent_id": "pair", "context_paths": []}
        return [
            call("spawn_subagents", tasks=[task]),
            call("copy_files_batch", copies=[{"source": theirs, "target": "got"}]),
            call("read_file", path=f"{theirs}/one/page.md"),
            answer("took it"),
        ][turn]

    models.script = script
    config = models.config("boss", coordination=pool(models, "one", "two"))
    started = root.call("run.begin", prompt=PROMPT, config_text=config)
    ended = root.call("run.wait", task=started["task_id"])
    assert ended["status"] == "completed", ended
    assert told[2:] == ["copied 1 files of pair to got", "one"]
    got = Path(ended["root"]["workspace"], "got")
    assert [path.name for path in got.iterdir()] == ["page.md"]
    assert (got / "page.md").read_text() == "two"
