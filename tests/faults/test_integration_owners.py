"""What a user has checked out while a plan is carried out: read as their own git reads it, and
moved only where it still is what they asked about."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.repositories import (
    ENVIRONMENT,
    ISOLATED,
    Repository,
    carry_out,
    plan,
    reasons,
    start,
    step,
)
from support.roots import Root, held, tree, until

HELD = "until [ -e ../go ]; do sleep 0.02; done; "
ONE = plan(step("one", "echo b > b; echo x"))


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "project")


@pytest.fixture
def root(repository: Repository) -> Iterator[Root]:
    with held(repository.path / ".retinue") as root:
        yield root


def shell(repository: Repository, script: str) -> None:
    subprocess.run(["sh", "-ec", script], cwd=repository.path, env=ENVIRONMENT, check=True)


def refused(root: Root, text: str = ONE, **more: object) -> str:
    """Why a run was refused; nothing was made for it."""
    root.call("task.list")
    before = root.counts(), set(tree(root.path / "tasks"))
    error = root.refusal("run.start", plan_text=text, **more)
    assert (root.counts(), set(tree(root.path / "tasks"))) == before
    assert (error.code, error.exit_code) == ("unfit_repository", 2)
    return error.message


def own_tree(repository: Repository, index: Path) -> str:
    """The tree that its owner would commit with `git add -A`; their index stays as it is."""
    index.write_bytes((repository.path / ".git" / "index").read_bytes())
    known = {**ENVIRONMENT, "GIT_INDEX_FILE": str(index)}
    words = "git add -A && git write-tree"
    done = subprocess.run(words, shell=True, cwd=repository.path, env=known, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().strip()


IGNORING = "echo '*.log' > .gitignore; git add .gitignore; "


@pytest.mark.parametrize(
    "script",
    [
        IGNORING + "echo 1 > kept.log; git add -f kept.log; echo 2 > other.log",
        "git update-index --skip-worktree a.txt; echo mine > a.txt; echo n > new",
        "git update-index --assume-unchanged a.txt; echo mine > a.txt; echo n > new",
        "git rm -q --cached a.txt; echo a.txt > .gitignore",
        "git config core.fileMode false; git update-index --chmod=+x a.txt; echo n > new",
        "git update-index --split-index; echo n > new; git add new; echo m >> new",
    ],
    ids=["forced", "skipped", "assumed", "untracked", "mode", "split"],
)
def test_uncommitted_work_is_what_its_owner_would_commit(
    repository: Repository, root: Root, tmp_path: Path, script: str
) -> None:
    root.call("task.list")
    shell(repository, script)
    expected, before = own_tree(repository, tmp_path / "index"), repository.untouched()
    end = carry_out(root, ONE, include_dirty=True)
    assert repository.git("rev-parse", f"{end['branch']}~1^{{tree}}") == expected
    assert repository.untouched() == before


def test_uncommitted_work_that_a_filter_keeps_back_is_told_in_words(
    repository: Repository, root: Root
) -> None:
    for name, value in (("clean", "false"), ("required", "true")):
        repository.git("config", f"filter.broken.{name}", value)
    repository.write({".gitattributes": "*.z filter=broken\n", "new.z": "new\n"})
    error = root.refusal("run.start", plan_text=ONE, include_dirty=True)
    assert (error.code, error.exit_code) == ("unfit_repository", 2)
    assert "uncommitted changes cannot be taken: " in error.message


@pytest.mark.parametrize("script", ["true", "echo x > f; git add f; git commit -qm x"])
def test_a_repository_within_is_not_taken_for_uncommitted_work(
    repository: Repository, root: Root, script: str
) -> None:
    shell(repository, f"git init -q inner; cd inner; {script}")
    assert "'inner' is a repository of its own" in refused(root, include_dirty=True)
    shell(repository, "echo /inner/ >> .git/info/exclude")
    assert reasons(carry_out(root, ONE, include_dirty=True)) == {"one": "merged"}


def test_submodules_are_refused_before_anything_is_made(
    repository: Repository, root: Root, tmp_path: Path
) -> None:
    inner = Repository(tmp_path / "inner")
    allowed = ("-c", "protocol.file.allow=always")
    repository.git(*allowed, "submodule", "add", "-q", str(inner.path), "sub")
    assert "it has submodules" in refused(root, include_dirty=True)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("git checkout -q old", "'main' is no longer checked out"),
        ("git checkout -q -b feature", "'main' is no longer checked out"),
        ("git reset -q --hard HEAD~1", "'main' lacks the commit that the run started from"),
        ("git checkout -q --detach HEAD~1", "HEAD is detached"),
        ("GIT_SEQUENCE_EDITOR='sed -i 1s/pick/edit/' git rebase -q -i HEAD~1", "HEAD is detached"),
    ],
    ids=["older", "new", "reset", "detached", "rebase"],
)
def test_nothing_is_applied_to_what_was_not_checked_out(
    repository: Repository, root: Root, script: str, said: str
) -> None:
    repository.git("branch", "old")
    repository.write({"c.txt": "second\n"})
    repository.commit("second")
    task = start(root, plan(step("one", HELD + "echo b > b; echo x")), apply=True)
    until(lambda: (root.folder(task, "one") / "workspace").exists())
    shell(repository, script)
    before = repository.untouched()
    (root.folder(task, "one") / "go").touch()
    end = root.call("run.wait", task=task)
    assert (end["status"], end["applied"]) == ("completed", False)
    assert said in end["apply_error"]
    assert repository.untouched() == before


@pytest.mark.parametrize("script", ["true", "echo b > .git/info/exclude"])
def test_what_is_applied_takes_the_place_of_no_file_of_its_owner_s(
    repository: Repository, root: Root, script: str
) -> None:
    shell(repository, f"{script}; echo mine > b")
    end = carry_out(root, ONE, apply=True)
    assert not end["applied"] and end["apply_error"].endswith("overwritten by merge: b")
    assert (repository.path / "b").read_text() == "mine\n"


@pytest.mark.parametrize("options", ["--no-ff", "--squash"])
def test_the_branch_is_moved_whatever_its_owner_has_git_do_in_a_merge(
    repository: Repository, root: Root, options: str
) -> None:
    repository.git("config", "branch.main.mergeOptions", options)
    end = carry_out(root, ONE, apply=True)
    assert end["applied"] and repository.git("rev-parse", "main") == end["head"]


@pytest.mark.parametrize("end", [Root.stop, Root.kill])
def test_what_is_being_applied_is_not_left_half_done(
    repository: Repository, root: Root, tmp_path: Path, end: Callable[[Root], None]
) -> None:
    repository.write({".gitattributes": "*.z filter=slow\n"})
    repository.commit("attributes")
    began = tmp_path / "began"
    repository.git("config", "filter.slow.smudge", f"touch '{began}'; sleep 1; cat")
    task = start(root, plan(step("one", "echo b > a.txt; echo z > b.z; echo x")), apply=True)
    until(began.exists)
    end(root)
    if end == Root.stop:
        assert repository.git("status", "--porcelain", "--untracked-files=no") == ""
    assert root.call("run.wait", task=task)["applied"]
    assert (repository.path / "b.z").read_text() == "z\n"


def test_a_file_named_like_a_commit_does_not_stop_a_run(repository: Repository, root: Root) -> None:
    repository.write({"HEAD": "a file\n"})
    repository.commit("HEAD")
    assert carry_out(root, ONE, apply=True)["applied"]


def test_a_base_is_the_branch_where_a_tag_has_its_name(repository: Repository, root: Root) -> None:
    repository.git("tag", "main")
    repository.write({"c.txt": "second\n"})
    repository.commit("second")
    text = plan(step("one", "echo b > b; echo x"), base={"repository": ".", "ref": "main"})
    end = carry_out(root, text)
    assert set(repository.files(end["branch"])) == {"a.txt", "b", "c.txt"}


def test_git_s_own_folder_is_a_place_without_a_working_tree(
    repository: Repository, root: Root
) -> None:
    text = plan(step("one", "echo b > b; echo x"), base={"repository": ".git"})
    assert "no working tree" in refused(root, text, apply=True)
    assert reasons(carry_out(root, text)) == {"one": "merged"}


@pytest.mark.parametrize("lacking", ["blob:none", "tree:0"])
def test_a_partial_clone_is_worked_on_where_it_has_the_base(
    repository: Repository, root: Root, tmp_path: Path, lacking: str
) -> None:
    repository.git("config", "uploadpack.allowFilter", "true")
    repository.write({"a.txt": "second\n"})
    repository.commit("second")
    words = ["git", "clone", "-q", f"--filter={lacking}", f"file://{repository.path}", "part"]
    subprocess.run(words, cwd=tmp_path, env=os.environ | ENVIRONMENT, check=True)
    part = str(tmp_path / "part")
    text = plan(step("one", "cat a.txt > b; echo x"), base={"repository": part, "ref": "HEAD~1"})
    assert "lacks files of the base" in refused(root, text)
    end = carry_out(root, text.replace("HEAD~1", "HEAD"))
    shown = subprocess.run(["git", "-C", part, "show", f"{end['branch']}:b"], capture_output=True)
    assert shown.stdout == b"second\n"


def test_a_child_reads_history_that_lies_behind_a_link(
    repository: Repository, root: Root, tmp_path: Path
) -> None:
    objects = repository.path / ".git" / "objects"
    objects.rename(tmp_path / "objects")
    objects.symlink_to(tmp_path / "objects")
    text = plan(step("one", "git log --format=%s > b && git diff --quiet && echo x"))
    end = carry_out(root, text, config=ISOLATED)
    assert repository.files(end["branch"])["b"] == "base"
