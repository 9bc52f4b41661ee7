"""Odd repositories, moving branches and bad checks: one clear sentence, and nothing lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.reader import Reader
from support.repositories import Repository, carry_out, plan, reasons, start, step
from support.roots import Root, held, tree, until

HELD = "until [ -e ../go ]; do sleep 0.02; done; "
ONE = plan(step("one", "echo b > b; echo x"))


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "project")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    (tmp_path / "project").mkdir(exist_ok=True)
    with held(tmp_path / "project" / ".retinue") as root:
        yield root


def refused(root: Root, text: str = ONE, **more: object) -> str:
    """Why a run was refused; nothing was changed by that."""
    root.call("task.list")
    before = root.counts(), set(tree(root.path / "tasks"))
    error = root.refusal("run.start", plan_text=text, **more)
    assert (root.counts(), set(tree(root.path / "tasks"))) == before
    assert (error.code, error.exit_code) == ("unfit_repository", 2)
    assert "\n" not in error.message
    return error.message


def test_no_repository_no_commit_and_no_such_ref_are_refused(root: Root) -> None:
    project = root.path.parent
    assert "is not in a git repository" in refused(root)
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=project, check=True)
    assert refused(root) == "the repository has no commits yet"
    Repository(project)
    other = plan(step("one", "true"), base={"repository": ".", "ref": "nowhere"})
    assert refused(root, other) == "there is no commit 'nowhere'"
    sly = plan(step("one", "true"), base={"repository": ".", "ref": "--help"})
    assert "there is no commit" in refused(root, sly)
    gone = plan(step("one", "true"), base={"repository": "gone"})
    assert "there is no folder" in refused(root, gone)


def test_shallow_bare_and_foreign_repositories(repository: Repository, tmp_path: Path) -> None:
    repository.write({"b.txt": "b\n"})
    repository.commit("second")
    with held(tmp_path / "elsewhere" / ".retinue") as root:
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        shallow, bare = tmp_path / "shallow", tmp_path / "bare"
        url = f"file://{repository.path}"
        subprocess.run(["git", "clone", "-q", "--depth=1", url, shallow], check=True)
        text = plan(step("one", "echo z > z; echo x"), base={"repository": str(shallow)})
        assert refused(root, text) == "it is a shallow clone"
        subprocess.run(["git", "clone", "-q", "--bare", url, bare], check=True)
        text = text.replace(str(shallow), str(bare))
        assert "no working tree" in refused(root, text, apply=True)
        assert carry_out(root, text)["status"] == "completed"
        if os.geteuid() == 0:
            foreign = text.replace(str(bare), str(repository.path))
            os.chown(repository.path / ".git", 12345, 12345)
            os.chown(repository.path, 12345, 12345)
            assert "belongs to another user" in refused(root, foreign)


def test_a_detached_head_and_a_locked_index_do_not_stop_a_run(
    repository: Repository, root: Root
) -> None:
    repository.git("checkout", "-q", "--detach")
    (repository.path / ".git" / "index.lock").touch()
    assert refused(root, apply=True).startswith("HEAD is detached")
    assert carry_out(root, ONE)["status"] == "completed"
    assert (repository.path / ".git" / "index.lock").exists()


def test_a_sparse_checkout_and_submodules_can_be_worked_on(
    repository: Repository, root: Root, tmp_path: Path
) -> None:
    inner = Repository(tmp_path / "inner", {"x": "x\n"})
    allowed = ("-c", "protocol.file.allow=always")
    repository.git(*allowed, "submodule", "add", "-q", str(inner.path), "sub")
    repository.write({"d/e.txt": "e\n"})
    repository.commit("submodule")
    repository.git("sparse-checkout", "set", "nothing")
    text = plan(step("one", "cat d/e.txt > f; ls sub; echo x", owns=["f"]))
    assert "sparse" in refused(root, text, include_dirty=True)
    end = carry_out(root, text)
    assert repository.git("show", f"{end['branch']}:f") == "e"
    bad = plan(step("two", "mkdir -p sub/.git; echo 'ref: x' > sub/.git/HEAD; echo x"))
    assert reasons(carry_out(root, bad)) == {"two": "policy_violation"}
    gone = plan(step("two", "rmdir sub; echo x"))
    assert reasons(carry_out(root, gone)) == {"two": "policy_violation"}


def test_a_linked_worktree_is_worked_for_like_any_other(
    repository: Repository, tmp_path: Path
) -> None:
    repository.git("worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    with held(tmp_path / "side" / ".retinue") as root:
        end = carry_out(root, ONE, apply=True)
        assert end["applied"], end
        assert repository.git("rev-parse", "side") == end["head"]
        assert repository.git("status", "--porcelain", "-uno") == ""


@pytest.fixture
def converting(repository: Repository, tmp_path: Path) -> Repository:
    """Files are other in the working tree than in a commit, and all of it is committed."""
    (tmp_path / "everywhere").write_text("*.secret\n")
    for name, value in {
        "core.autocrlf": "true",
        "core.excludesFile": str(tmp_path / "everywhere"),
        "filter.big.clean": "tr a-z A-Z",
        "filter.big.smudge": "tr A-Z a-z",
        "filter.big.required": "true",
    }.items():
        repository.git("config", name, value)
    repository.write({".gitattributes": "*.big filter=big -text\n", "x.big": "word\n"})
    (repository.path / "lines.txt").write_bytes(b"one\r\ntwo\r\n")
    repository.commit("converted")
    assert repository.git("show", "HEAD:x.big") == "WORD"
    return repository


def test_uncommitted_work_is_taken_as_its_owner_s_git_would(
    converting: Repository, root: Root
) -> None:
    converting.write({"a.txt": "changed\r\n", "my.secret": "hidden\n"})
    end = carry_out(root, ONE, include_dirty=True)
    assert converting.git("diff", "--name-only", "HEAD", end["branch"]).split() == ["a.txt", "b"]
    assert converting.git("show", f"{end['branch']}:a.txt") == "changed"


def test_what_is_applied_is_written_as_its_owner_s_git_would(
    converting: Repository, root: Root
) -> None:
    for name in ("lines.txt", "x.big"):
        os.utime(converting.path / name)  # so that git reads them, to know whether they changed
    text = plan(step("one", "echo one > lines.txt; echo NEW > x.big; echo x"))
    end = carry_out(root, text, apply=True)
    assert end["applied"], end
    assert (converting.path / "lines.txt").read_bytes() == b"one\r\n"
    assert (converting.path / "x.big").read_bytes() == b"new\n"
    assert converting.git("status", "--porcelain", "-uno") == ""


def test_a_path_with_a_line_end_is_refused_and_one_that_ends_in_a_space_is_not(
    tmp_path: Path,
) -> None:
    broken, spaced = Repository(tmp_path / "a\nb"), Repository(tmp_path / "c ")
    with held(tmp_path / "elsewhere" / ".retinue") as root:
        text = plan(step("one", "echo b > b; echo x"), base={"repository": str(broken.path)})
        assert "has a line break in its path" in refused(root, text)
    with held(spaced.path / ".retinue") as root:
        end = carry_out(root, ONE, apply=True)
        assert end["applied"] and (spaced.path / "b").exists()


def test_commits_of_others_on_the_branch_are_built_upon(repository: Repository, root: Root) -> None:
    steps = [step("one", "echo 1 > one; echo x"), step("two", HELD + "echo 2 > two; echo x")]
    task = start(root, plan(*steps))
    branch = f"refs/heads/retinue/{task}"
    until(lambda: (root.folder(task, "two") / "workspace").exists())
    repository.git("branch", "-q", "mine", branch)
    repository.git("worktree", "add", "-q", "../aside", "mine")
    aside = repository.path.parent / "aside"
    (aside / "theirs").write_text("theirs\n")
    subprocess.run(["git", "add", "-A"], cwd=aside, check=True)
    words = ["-c", "user.name=x", "-c", "user.email=x@y", "commit", "-qm", "theirs"]
    subprocess.run(["git", *words], cwd=aside, check=True)
    repository.git("update-ref", branch, "mine")
    (root.folder(task, "two") / "go").touch()
    end = root.call("run.wait", task=task)
    assert reasons(end) == {"one": "merged", "two": "merged"}
    assert set(repository.files(end["branch"])) == {"a.txt", "one", "theirs", "two"}


@pytest.mark.parametrize("how", ["checked out", "rewritten"])
def test_a_branch_that_cannot_be_moved_safely_is_left_alone(
    repository: Repository, root: Root, how: str
) -> None:
    steps = [step("one", "echo 1 > one; echo x"), step("two", HELD + "echo 2 > one; echo x")]
    task = start(root, plan(*steps))
    branch = f"refs/heads/retinue/{task}"
    until(lambda: (root.folder(task, "two") / "workspace").exists())
    if how == "checked out":
        repository.git("checkout", "-q", f"retinue/{task}")
    else:
        repository.write({"one": "someone else's\n"})
        repository.commit("rewritten")
        repository.git("update-ref", branch, "main")
    tip = repository.git("rev-parse", branch)
    (root.folder(task, "two") / "go").touch()
    end = root.call("run.wait", task=task)
    assert reasons(end)["two"] in ("merge_refused", "merge_conflict")
    assert repository.git("rev-parse", branch) == tip
    kept = end["results"][1]["integration"]
    assert repository.git("show", f"{kept['branch']}:one") == "2"


def test_a_change_is_taken_in_that_leaves_size_and_second_of_a_file_as_they_were(
    repository: Repository, root: Root
) -> None:
    """By these git tells what has changed, and only the time of its index tells that it cannot."""
    late = 'now=$(date +%s); until [ "$(date +%s)" != "$now" ]; do sleep 0.02; done; '
    steps = [step("one", "echo 1 > one; echo x"), step("two", f"echo 2 > one; {late}echo x")]
    end = carry_out(root, plan(*steps))
    assert reasons(end) == {"one": "merged", "two": "merged"}
    assert repository.git("show", f"{end['branch']}:one") == "2"


def test_a_branch_of_our_name_leaves_no_room_and_is_said_so(
    repository: Repository, root: Root
) -> None:
    repository.git("branch", "retinue")
    assert "blocks the branch names" in refused(root)


@pytest.mark.parametrize(
    ("check", "words"),
    [
        ("echo why; exit 7", "verify failed: exited with code 7\nwhy"),
        ("sleep 60", "verify failed"),
        ("kill -9 $$", "verify failed"),
        ("head -c 3000000 /dev/zero | tr '\\0' x; exit 1", "verify failed: exited with code 1"),
    ],
)
@pytest.mark.requirement("R109", "R117")
def test_a_check_that_fails_hangs_or_floods_fails_its_child_alone(
    repository: Repository, root: Root, check: str, words: str
) -> None:
    before = repository.untouched()
    script = ["sh", "-c", f"echo spoilt > a.txt; {check}"]
    text = plan(
        step("one", "echo 1 > one; echo x", owns=["one"], verify=script, timeout_seconds=2),
        step("two", "cat a.txt > two; echo x", owns=["two"]),
        on_failure="continue",
    )
    end = carry_out(root, text)
    assert reasons(end) == {"one": "check_failed", "two": "merged"}
    error = end["results"][0]["error"]
    assert error.startswith(words) and len(error) <= 1000
    assert repository.files(end["branch"])["two"] == "one\ntwo\nthree"
    assert repository.untouched() == before
    Reader(root.path).check(finished=True)


def test_a_merge_of_which_git_loses_objects_in_silence_is_refused_and_can_be_repeated(
    repository: Repository, root: Root
) -> None:
    repository.write({"b.txt": "b\n"})
    repository.git("add", "b.txt")
    merged = repository.git("write-tree").strip()
    repository.git("rm", "-q", "--cached", "b.txt")
    (repository.path / "b.txt").unlink()
    # The objects of that tree's prefix cannot be moved into the repository, as on a full disk.
    taken = repository.path / ".git" / "objects" / merged[:2]
    for each in taken.iterdir():
        each.unlink()
    taken.rmdir()
    taken.touch()
    ones = plan(step("one", "echo b > b.txt; echo x"))

    end = carry_out(root, ones)
    assert end["status"] == "failed"
    assert "git did not write" in end["results"][0]["error"]
    assert end["results"][0]["answer"] == "x"
    assert end["branch"] is None

    taken.unlink()
    assert carry_out(root, ones)["status"] == "completed"
    repository.git("fsck", "--strict", "--no-dangling")
