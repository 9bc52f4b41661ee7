"""Integration while its branch, its repository or the whole project is moved or removed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from retinue.trust import trust_root
from support import repositories
from support.reader import Reader
from support.repositories import Repository, Step, carry_out, plan, reasons, start, step
from support.roots import Root, held, sh, until

repository, root = repositories.repository, repositories.root
HELD = "until [ -e ../go ]; do sleep 0.02; done; "
TWO = (
    step("one", "echo 1 > one; echo x", owns=["one"]),
    step("two", HELD + "echo 2 > two; echo x", owns=["two"]),
)


def begun(root: Root, *steps: Step, until_joined: str = "", **more: object) -> str:
    """A run whose last step waits for a word, once the named one is joined."""
    task = start(root, plan(*steps, **more))
    last = str(steps[-1]["id"])
    until(lambda: (root.folder(task, last) / "workspace").exists())
    if until_joined:
        until(lambda: root.rows(task)[until_joined]["status"] == "completed")
    return task


def aside(repository: Repository, **files: str) -> str:
    """A commit on top of main that no branch knows, with these files."""
    place = repository.path.parent / "aside"
    repository.git("worktree", "add", "-q", "--detach", str(place), "main")
    theirs = Repository.__new__(Repository)
    theirs.path = place
    theirs.write(files)
    commit = theirs.commit("aside")
    repository.git("worktree", "remove", str(place))
    return commit


@pytest.mark.parametrize("how", ["removed", "reset", "rewritten"])
def test_a_branch_that_lost_what_was_joined_is_left_alone(
    repository: Repository, root: Root, how: str
) -> None:
    task = begun(root, *TWO, until_joined="one")
    branch = f"retinue/{task}"
    if how == "removed":
        repository.git("branch", "-q", "-D", branch)
    else:
        to = "main" if how == "reset" else aside(repository, theirs="theirs\n")
        repository.git("branch", "-q", "-f", branch, to)
    before = repository.git("for-each-ref", "refs/heads")
    (root.folder(task, "two") / "go").touch()
    end = root.call("run.wait", task=task)
    assert (end["status"], reasons(end)) == ("failed", {"one": "merged", "two": "merge_refused"})
    assert repository.git("for-each-ref", "refs/heads") == before
    kept = end["results"][1]["integration"]
    assert "rewritten or removed" in kept["message"]
    assert repository.git("show", f"{kept['branch']}:two") == "2"
    Reader(root.path).check(finished=True)


def test_a_branch_that_was_merged_and_removed_is_begun_again_by_who_integrates_one_by_one(
    repository: Repository, root: Root
) -> None:
    task = root.create_task()
    for name in ("one", "two"):
        root.run(task, sh(f"echo 1 > {name}; echo x", subagent_id=name, integration="merge"))
    first = root.call("subagent.integrate", task=task, subagent="one")
    repository.git("merge", "-q", f"retinue/{task}")
    repository.git("branch", "-q", "-d", f"retinue/{task}")
    second = root.call("subagent.integrate", task=task, subagent="two")
    assert [first["status"], second["status"]] == ["completed", "completed"]
    assert set(repository.files(f"retinue/{task}")) == {"a.txt", "two"}


def test_commits_of_another_run_are_not_taken_for_this_one_s(
    repository: Repository, root: Root
) -> None:
    first = carry_out(root, plan(step("one", "echo 1 > first; echo x")))
    task = begun(root, step("one", HELD + "echo 2 > second; echo x"))
    repository.git("branch", f"retinue/{task}", first["branch"])
    (root.folder(task, "one") / "go").touch()
    end = root.call("run.wait", task=task)
    assert set(repository.files(end["branch"])) == {"a.txt", "first", "second"}
    assert repository.joined(end["branch"]) == ["one", "one"]


def test_a_run_whose_repository_is_gone_comes_to_its_end(tmp_path: Path) -> None:
    elsewhere = Repository(tmp_path / "elsewhere")
    with held(tmp_path / "project" / ".retinue") as root:
        task = begun(root, *TWO, until_joined="one", base={"repository": str(elsewhere.path)})
        shutil.rmtree(elsewhere.path)
        (root.folder(task, "two") / "go").touch()
        end = root.call("run.wait", task=task)
        assert reasons(end) == {"one": "merged", "two": "merge_refused"}
        assert (end["status"], end["branch"]) == ("failed", None)
        assert (root.folder(task, "two") / "workspace" / "two").read_text() == "2\n"
        Reader(root.path).check(finished=True)


def test_a_linked_working_tree_that_is_removed_meanwhile_is_not_needed(
    repository: Repository, root: Root
) -> None:
    linked = repository.path.parent / "linked"
    repository.git("worktree", "add", "-q", str(linked), "-b", "side")
    task = begun(root, *TWO, base={"repository": str(linked)})
    repository.git("worktree", "remove", "--force", str(linked))
    (root.folder(task, "two") / "go").touch()
    end = root.call("run.wait", task=task)
    assert reasons(end) == {"one": "merged", "two": "merged"}


@pytest.mark.parametrize("copied", [False, True])
def test_work_is_joined_where_the_project_is_now(tmp_path: Path, copied: bool) -> None:
    old = Repository(tmp_path / "old")
    with held(old.path / ".retinue") as root:
        waiting = root.create_task()
        root.run(waiting, sh("echo 1 > waits; echo x", subagent_id="waits", integration="merge"))
        root.stop()
    heads = old.git("for-each-ref")
    if copied:
        shutil.copytree(old.path, tmp_path / "new", symlinks=True)
        trust_root(tmp_path / "new" / ".retinue", os.environ, ())
    else:
        old.path.rename(tmp_path / "new")
    new = Repository.__new__(Repository)
    new.path = tmp_path / "new"
    with held(new.path / ".retinue") as root:
        joined = root.call("subagent.integrate", task=waiting, subagent="waits")
        assert joined["status"] == "completed"
        assert "waits" in new.files(f"retinue/{waiting}")
        if copied:
            assert old.git("for-each-ref") == heads


def test_a_run_goes_on_where_its_project_was_moved_to(tmp_path: Path) -> None:
    old = Repository(tmp_path / "old")
    with held(old.path / ".retinue") as root:
        task = begun(root, *TWO, until_joined="one")
        root.stop()
        old.path.rename(tmp_path / "new")
    new = Repository.__new__(Repository)
    new.path = tmp_path / "new"
    with held(new.path / ".retinue") as root:
        (root.folder(task, "two") / "go").touch()
        end = root.call("run.wait", task=task)
        assert reasons(end) == {"one": "merged", "two": "merged"}
        assert set(new.files(end["branch"])) == {"a.txt", "one", "two"}


def test_a_file_in_the_way_of_a_folder_is_named_as_it_is(
    repository: Repository, root: Root
) -> None:
    task = begun(root, step("one", HELD + "echo 1 > place; echo x"))
    repository.git("branch", f"retinue/{task}", aside(repository, **{"place/within": "x\n"}))
    (root.folder(task, "one") / "go").touch()
    end = root.call("run.wait", task=task)
    (result,) = end["results"]
    assert result["integration"]["reason"] == "merge_conflict"
    assert result["integration"]["conflicted_files"] == ["place"]


def test_a_title_that_git_would_not_take_keeps_no_work_out(
    repository: Repository, root: Root
) -> None:
    end = carry_out(root, plan(step("one", "echo 1 > one; echo x", title="a\0b")))
    assert reasons(end) == {"one": "merged"}


@pytest.mark.parametrize("folder", ["", "index/"])
@pytest.mark.parametrize(
    ("said", "scripts", "reason"),
    [
        ("list merge=union", ("echo 1 >> list", "echo 2 >> list"), "merged"),
        ("list -merge", ("sed -i 1s/^/1/ list", "sed -i 9s/^/2/ list"), "merge_conflict"),
    ],
)
def test_files_are_merged_as_the_attributes_of_the_repository_say(
    repository: Repository,
    root: Root,
    folder: str,
    said: str,
    scripts: tuple[str, str],
    reason: str,
) -> None:
    lines = "a\nb\nc\nd\ne\nf\ng\nh\ni\n"
    repository.write({f"{folder}list": lines, f"{folder}.gitattributes": f"{said}\n"})
    repository.commit("list")
    task, ends = root.create_task(), []
    for number, script in enumerate(scripts):
        words = f"cd ./{folder}; {script}; echo x"
        root.run(task, sh(words, subagent_id=f"s{number}", integration="merge"))
    for number, _ in enumerate(scripts):
        ends.append(root.call("subagent.integrate", task=task, subagent=f"s{number}"))
    assert [end["integration"]["reason"] for end in ends] == ["merged", reason]
    if reason == "merged":
        both = f"{lines}1\n2".rstrip("\n")
        assert repository.git("show", f"retinue/{task}:{folder}list") == both


def test_a_file_that_was_moved_is_merged_as_the_attributes_of_its_new_folder_say(
    repository: Repository, root: Root
) -> None:
    lines = "a\nb\nc\nd\ne\nf\ng\nh\ni\n"
    repository.write({"list": lines, "index/.gitattributes": "list -merge\n"})
    repository.commit("list")
    task, ends = root.create_task(), []
    moves, edits = "mv list index; sed -i 1s/^/1/ index/list", "sed -i 9s/^/2/ list"
    for name, script in (("moves", moves), ("edits", edits)):
        root.run(task, sh(f"{script}; echo x", subagent_id=name, integration="merge"))
    for name in ("moves", "edits"):
        ends.append(root.call("subagent.integrate", task=task, subagent=name))
    assert [end["integration"]["reason"] for end in ends] == ["merged", "merge_conflict"]
    assert repository.git("show", f"retinue/{task}:index/list").startswith("1a")
