"""Members find what their subagent was given: by their prompt, their file tools and their shell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.roots import Root, fresh
from support.scripted import Models, answer, call
from support.teams import brief, in_turn, models, task_of

__all__ = ["fresh", "models"]


@pytest.fixture(params=["isolated", "inherited"])
def mode(request: pytest.FixtureRequest) -> str:
    return f"subagent_runtime_mode: {request.param}"


@pytest.fixture
def project(fresh: Root) -> Path:
    project = fresh.path.parent
    for name in ("lib/a.txt", "lib/deep/b.txt", "src/c.txt"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(f"a needle in {name}\n")
    return project


def context_of(models: Models) -> str:
    """The folder that the prompt of the newest member names."""
    prompt = str(models.heard[-1].document["messages"][0]["content"])
    return next(line for line in prompt.splitlines() if "also at" in line).split("also at ")[1]


@pytest.mark.requirement("R174", "R175")
@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("lib", ["lib/a.txt", "lib/deep/b.txt"]),
        ("lib/a.txt", ["lib/a.txt"]),
        ("./", ["lib/a.txt", "lib/deep/b.txt", "src/c.txt"]),
    ],
)
def test_file_tools_find_the_given_paths(
    fresh: Root, models: Models, project: Path, mode: str, given: str, names: list[str]
) -> None:
    in_turn(models, answer("looked at its prompt"))
    task = task_of(fresh, models, "reader", coordination=mode)
    work = brief(subagent_id="first", context_paths=[given])
    fresh.run(task, work, cwd=str(project))
    place = context_of(models)
    folder = place.partition("/paths")[0].replace("/first/", "/second/")
    told = in_turn(
        models,
        call("list_files", path=f"{folder}/paths"),
        call("search_files", pattern="needle", path=folder),
        call("copy_files_batch", copies=[{"source": f"{folder}/paths", "target": "got"}]),
        call("list_files", path=str(project / given)),
        call("search_files", pattern="needle", path=str(project / given)),
        call("run_command", command=f"grep -r needle {folder}/paths | wc -l"),
        answer("done"),
    )
    (result,) = fresh.run(task, work | {"subagent_id": "second"}, cwd=str(project))
    assert result["status"] == "completed", result
    listed = [f"{name} ({(project / name).stat().st_size} bytes)" for name in names]
    assert told[1].splitlines() == listed, told
    assert told[2].splitlines() == [f"paths/{name}:1: a needle in {name}" for name in names]
    assert told[3] == f"copied {len(names)} files of {folder}/paths to got"
    for name in names:
        copied = Path(result["workspace"], "got", name)
        assert copied.read_text() == f"a needle in {name}\n"
    if given != "lib/a.txt":
        assert len(told[4].splitlines()) == len(names), told[4]
    # Where it lies in the project it is found as well, and nothing of the subagent's own records.
    assert len(told[5].splitlines()) == len(names), told[5]
    assert told[6].split() == [str(len(names)), "[exit", "code", "0]"]


@pytest.mark.requirement("R174")
def test_the_prompt_lists_the_given_paths_and_their_places(
    fresh: Root, models: Models, project: Path, mode: str
) -> None:
    in_turn(models, answer("read"))
    task = task_of(fresh, models, "reader", coordination=mode)
    work = brief(context_paths=["lib", "src/c.txt"], context_files=["lib/a.txt"])
    fresh.run(task, work, cwd=str(project))
    prompt = str(models.heard[-1].document["messages"][0]["content"])
    folder = context_of(models).removesuffix("/paths/lib")
    assert f"- {project}/lib, also at {folder}/paths/lib\n" in prompt
    assert f"- {project}/src/c.txt, also at {folder}/paths/src/c.txt\n" in prompt
    assert f"- {folder}/files/a.txt, a copy of {project}/lib/a.txt\n" in prompt
    in_turn(models, answer("nothing to read"))
    fresh.run(task, brief(), cwd=str(project))
    prompt = str(models.heard[-1].document["messages"][0]["content"])
    assert "You were given no files to read." in prompt


@pytest.mark.requirement("R100")
def test_tools_keep_retinues_own_files_out_of_a_context(
    fresh: Root, models: Models, project: Path, mode: str
) -> None:
    nested = project / "packages" / ".retinue"
    nested.mkdir(parents=True)
    in_turn(models, answer("looked"))
    task = task_of(fresh, models, "reader", coordination=mode)
    fresh.run(task, brief(subagent_id="first", context_paths=["./"]), cwd=str(project))
    (nested / "gateway.key").write_text("the key of another root")
    link = project / "way"
    link.symlink_to(fresh.path)
    tried = (
        *(fresh.path / name for name in ("gateway.key", "retinue.db", "steward.log")),
        fresh.path,
        fresh.folder(task, "first") / "conversation.jsonl",
        nested / "gateway.key",
        link / "gateway.key",
    )
    told = in_turn(
        models,
        *(call("read_file", path=str(path)) for path in tried),
        call("copy_files_batch", copies=[{"source": str(fresh.path), "target": "got"}]),
        call("list_files", path=str(fresh.path)),
        call("search_files", pattern=".", path=str(project)),
        call("list_files", path=str(project)),
        call("copy_files_batch", copies=[{"source": str(project), "target": "all"}]),
        answer("done"),
    )
    tools = ["read_file", "list_files", "search_files", "copy_files_batch"]
    work = brief(subagent_id="nosy", context_paths=["./"], allowed_tools=tools)
    (result,) = fresh.run(task, work, cwd=str(project))
    assert result["status"] == "completed", result
    denied = told[1 : len(tried) + 3]
    for path, said in zip((*tried, "copy", "list"), denied, strict=True):
        assert said.startswith(("refused:", "error: there is no")), (path, said)
    found, listed = told[-3], told[-2]
    assert ".retinue" not in found and ".retinue" not in listed
    assert "lib/a.txt" in listed
    copied = {path.name for path in Path(result["workspace"], "all").rglob("*") if path.is_file()}
    assert {"a.txt", "b.txt", "c.txt"} <= copied
    assert not copied & {"gateway.key", "retinue.db", "conversation.jsonl"}


def test_paths_of_a_tool_server_show_no_root_either(
    fresh: Root, models: Models, project: Path
) -> None:
    nested = project / "packages" / ".retinue"
    nested.mkdir(parents=True)
    (nested / "gateway.key").write_text("the key of another root")
    look = f"find {project} -name gateway.key -o -name a.txt"
    told = in_turn(models, call("run_command", command=look), answer("looked"))
    server = {"name": "broken", "command": "false", "paths": [str(project)]}
    lines = models.config("reader", coordination="subagent_runtime_mode: isolated").splitlines()
    (at,) = [number for number, line in enumerate(lines) if "base_url" in line]
    lines.insert(at + 1, f"      mcp_servers: {json.dumps([server])}")
    task = fresh.call("task.create", title="t", config_text="\n".join(lines))["task_id"]
    (result,) = fresh.run(task, brief(), cwd=str(project))
    assert result["status"] == "completed", result
    assert told[1].splitlines() == [str(project / "lib/a.txt"), "[exit code 0]"], told
