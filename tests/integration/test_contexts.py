"""What a subagent is given to read lies where it is told to look, and nothing else does."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.roots import CONFIG, Root, sh, until
from support.scenes import needs_mounts

LIST = 'cd "$RETINUE_CONTEXT" && find -L . -type f | sort'
ISOLATED = CONFIG.replace("inherited", "isolated").format(limit=5)
ROOTS = "    subagent_context_roots: [{places}/one, {places}/two]\n"


@pytest.fixture
def places(fresh: Root, tmp_path: Path) -> Path:
    """A project, and two folders of one name beside it."""
    project = fresh.path.parent
    for name in ("ctx/f.txt", "ctx/d/g.txt", "a/b/c/h.txt", "private.txt"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(name)
    for name in ("one/lib/x.txt", "two/lib/y.txt"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def found(root: Root, places: Path, *paths: str) -> list[str]:
    """What a child finds when it was given these."""
    task = root.create_task(more=ROOTS.format(places=places))
    given = [path.replace("@", str(places)) for path in paths]
    (result,) = root.run(task, sh(LIST, context_paths=given), cwd=str(root.path.parent))
    assert result["success"], result["error"]
    return [line.removeprefix("./") for line in result["answer"].split()]


@pytest.mark.requirement("R175")
def test_only_named_paths_are_found_at_their_place_in_the_project(
    fresh: Root, places: Path
) -> None:
    assert found(fresh, places, "a/b/c", "ctx/f.txt") == ["paths/a/b/c/h.txt", "paths/ctx/f.txt"]


@pytest.mark.parametrize("order", [("ctx/d", "ctx"), ("ctx", "ctx/d"), ("ctx", "ctx")])
def test_a_path_and_a_path_inside_it_are_found_in_either_order(
    fresh: Root, places: Path, order: tuple[str, str]
) -> None:
    assert found(fresh, places, *order) == ["paths/ctx/d/g.txt", "paths/ctx/f.txt"]


def test_a_path_outside_of_the_project_is_found_by_its_name(fresh: Root, places: Path) -> None:
    assert found(fresh, places, "@/one/lib", "@/two/lib", "@/one/lib/x.txt") == [
        "outside/lib-2/y.txt",
        "outside/lib/x.txt",
    ]


def test_the_whole_project_and_something_else_are_both_found(fresh: Root, places: Path) -> None:
    listed = found(fresh, places, "./", "@/two/lib")
    assert {"outside/lib/y.txt", "paths/private.txt", "paths/ctx/f.txt"} <= set(listed)


def isolated(root: Root) -> str:
    return str(root.call("task.create", title="t", config_text=ISOLATED)["task_id"])


@pytest.mark.requirement("R174", "R175")
@needs_mounts
def test_the_output_of_one_subagent_can_be_given_to_the_next(fresh: Root) -> None:
    task, project = isolated(fresh), str(fresh.path.parent)
    writes = "umask 077; mkdir d; echo written > d/f.txt; echo done"
    (made,) = fresh.run(task, sh(writes, subagent_id="one"), cwd=project)
    reads = sh(f"cat {made['workspace']}/d/f.txt; {LIST}", context_paths=[made["workspace"]])
    (read,) = fresh.run(task, reads, cwd=project)
    found = f"./paths/.retinue/tasks/{task}/agents/one/workspace/d/f.txt"
    assert (read["answer"] or read["error"]).split() == ["written", found]
    fresh.call("task.join", task=task)
    joined = f".retinue/tasks/{task}/shared/reports/joined-summary.md"
    (read,) = fresh.run(task, sh(LIST, context_paths=[joined]), cwd=project)
    assert read["answer"] == f"./paths/{joined}"


@pytest.mark.parametrize("name", ["", "retinue.db", "steward.lock", "tasks", "tasks/{task}"])
def test_the_records_of_a_root_cannot_be_given_as_context(fresh: Root, name: str) -> None:
    task, project = isolated(fresh), str(fresh.path.parent)
    given = str(fresh.path / name.format(task=task))
    before = fresh.rows(task)
    told = {"task": task, "tasks": [sh("true", context_paths=[given])], "cwd": project}
    assert fresh.refusal("subagent.spawn", **told).code == "context_outside"
    assert fresh.rows(task) == before


@pytest.mark.parametrize(("kind", "name"), [("context_paths", "out"), ("context_files", "out/f")])
def test_a_given_path_that_became_a_link_is_not_followed(
    fresh: Root, tmp_path: Path, kind: str, name: str
) -> None:
    (secret := tmp_path / "secret").mkdir()
    (secret / "f").write_text("secret")
    task = fresh.call("task.create", title="t", config_text=ISOLATED, max_concurrent=1)["task_id"]
    swap = f"touch up; until [ -e go ]; do sleep 0.02; done; rm -r out; ln -s {secret} out; echo x"
    fresh.spawn(task, sh(f"mkdir out; echo made > out/f; {swap}", subagent_id="maker"))
    workspace = fresh.folder(task, "maker") / "workspace"
    until((workspace / "up").exists)
    reader = sh("cat $(find -L $RETINUE_CONTEXT -type f)", subagent_id="reader", max_retries=0)
    fresh.spawn(task, reader | {kind: [str(workspace / name)]}, queue=True)
    (workspace / "go").touch()
    until(lambda: fresh.rows(task)["reader"]["state"] == "closed")
    result = fresh.call("subagent.result", task=task, subagent="reader")
    assert (result["status"], result["answer"]) == ("error", None)
    assert "was replaced by a link" in result["error"]


def test_paths_of_the_configuration_are_lent_to_every_subagent(fresh: Root, places: Path) -> None:
    standing = "    subagent_context_paths: [a, ctx/f.txt]\n"
    task = fresh.create_task(more=ROOTS.format(places=places) + standing)
    given = [sh(LIST), sh(LIST, context_paths=["ctx/d", "a"])]
    results = fresh.run(task, *given, cwd=str(fresh.path.parent))
    standing_only = ["./paths/a/b/c/h.txt", "./paths/ctx/f.txt"]
    assert [result["answer"].split() for result in results] == [
        standing_only,
        sorted([*standing_only, "./paths/ctx/d/g.txt"]),
    ]


def test_a_standing_path_must_lie_where_context_may_come_from(fresh: Root, places: Path) -> None:
    task = fresh.create_task(more="    subagent_context_paths: [/etc]\n")
    refused = fresh.refusal("subagent.spawn", task=task, tasks=[sh("true")])
    assert refused.code == "context_outside" and "/etc" in refused.message
