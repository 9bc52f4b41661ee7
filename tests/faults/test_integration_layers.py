"""Workspaces that share what they do not change: the same comes of them as of whole ones."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retinue.workspaces.overlay import detach_workspace
from support.reader import Reader
from support.repositories import ISOLATED, Repository, carry_out, die_at, plan, reasons, start, step
from support.roots import CONFIG, Root, held, sh, until

FILES = {
    "a.txt": "one\n",
    "b/c.txt": "two\n",
    "b/d/e": "deep\n",
    "x.log": "ignored, and known all the same\n",
    ".gitignore": "*.log\nbuild/\n",
    "lib/.gitignore": "/gen\n",
    "lib/f": "f\n",
    "big/one": "1",
    "big/two": "2",
}
SCRIPTS = {
    "nothing": "true",
    "touched": "touch a.txt b/c.txt; chmod 600 lib/f",
    "everything gone": "rm -rf * .gitignore",
    "folder made anew": "rm -r b; mkdir b; echo n > b/n",
    "folder made anew twice": "rm -r b; mkdir b; echo n > b/n; rm -r b; mkdir -p b/d; ls > b/d/e",
    "folder to file": "rm -r b; echo file > b",
    "file to folder": "rm a.txt; mkdir a.txt; echo in > a.txt/in",
    "ignored": "echo l > n.log; echo m >> x.log; mkdir build lib/gen; ls > build/o; ls > lib/h",
    "no longer ignored": "rm .gitignore; echo l > new.log",
    "ignored but for": "echo '!keep.log' >> .gitignore; echo k > keep.log; echo l > l.log",
    "ignored from now on": "echo '*' > b/.gitignore; echo q > b/q; echo c >> b/c.txt",
    "ignores made anew": "rm -r lib; mkdir lib; echo gen > lib/gen",
    "ignores by a link": "rm .gitignore; ln -s lib/.gitignore .gitignore; echo l > new.log",
    "program": "chmod +x a.txt",
    "moved": "mv b moved; mv moved/d/e moved/d/f",
    "hard links": "ln a.txt hard; echo more >> hard",
    "pipes": "mkfifo p; mkdir empty",
    "file to pipe": "rm a.txt; mkfifo a.txt",
    "folder to pipe": "rm -r big; mkfifo big",
    "new link": "ln -s a.txt s",
    "file to link": "rm a.txt; ln -s /etc a.txt",
    "our own": "mkdir -p .retinue/x; echo 1 > .retinue/x/y; echo z > z",
    "repository within": "mkdir sub; git -C sub init -q; echo 1 > sub/f",
    "repository within what is ignored": "mkdir -p build/s; git -C build/s init -q; echo z > z",
    "no name for git": "echo > 'git~1'",
    "commits of its own": "git rm -q a.txt; git commit -qm x; echo 1 > one; git gc -q",
    "without its clone": "rm -rf .git; echo 1 > one",
    "too large": "truncate -s 60M huge",
    "too large, and too many for one command": """
        n=$(printf 'x%.0s' $(seq 250)); d=$n/$n/$n/$n/$n/$n/$n/$n/$n/$n/$n/$n
        mkdir -p $d; cd $d; truncate -s 60M $(seq 900)""",
    "too large, and ignored": "truncate -s 60M huge.log; echo z > z",
    "known, and too large": "truncate -s 60M x.log",
    "locked": "mkdir locked; echo x > locked/x; chmod 000 locked; echo z > z; chmod 000 z",
    "too deep": "n=aaaaaaaaaaaaaaaaaaaa; for i in $(seq 250); do mkdir $n; cd $n; done; echo x > f",
    "odd names": r"""for name in -rf 'new
line' "quo'te\"s\\" "$(printf 'latin\351')" '*' ':(top)x' ':magic'; do echo x > "$name"; done""",
}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    repository = Repository(tmp_path / "project", FILES)
    repository.git("add", "-f", "x.log")
    repository.git("commit", "-qm", "known all the same")
    return repository


@pytest.fixture
def root(repository: Repository) -> Iterator[Root]:
    with held(repository.path / ".retinue") as root:
        yield root
        Reader(root.path).check(finished=True)
        root.sound()
        repository.git("fsck", "--strict")


def one(root: Root, script: str, config: str = ISOLATED, **more: Any) -> tuple[str, dict[str, Any]]:
    """The task of a plan with one step, and what came of it."""
    end = carry_out(root, plan(step("one", f"{script}\necho x", **more)), config=config)
    return str(end["task_id"]), end


def shares(root: Root, task: str, name: str = "one") -> bool:
    return (root.folder(task, name) / "layers" / "base").is_symlink()


def whole_tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.requirement("R77")
def test_the_same_is_merged_or_refused_as_out_of_a_whole_workspace(
    repository: Repository, root: Root, name: str
) -> None:
    shared, whole = (came_of(repository, root, SCRIPTS[name], mode) for mode in (ISOLATED, CONFIG))
    assert shared == whole


@pytest.mark.parametrize("allow", [[], ["submodules"]])
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo x > lib/module/x; echo y > y", "merged"),
        ("rm -r lib; mkdir -p lib/module; echo y > y", "merged"),
        ("rmdir lib/module", "policy_violation"),
        ("rm -r lib", "policy_violation"),
        ("rmdir lib/module; echo file > lib/module", "policy_violation"),
        ("git -C lib/module init -q; echo y > lib/module/y", "policy_violation"),
    ],
)
def test_submodules_are_what_they_are_in_a_whole_workspace(
    repository: Repository, root: Root, script: str, reason: str, allow: list[str]
) -> None:
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},lib/module")
    repository.git("commit", "-qm", "a submodule")
    shared = came_of(repository, root, script, ISOLATED, allow=allow)
    assert shared == came_of(repository, root, script, CONFIG, allow=allow)
    assert shared[1] == reason or allow


@pytest.mark.parametrize("config", [ISOLATED, CONFIG])
def test_a_step_all_of_whose_files_are_in_a_submodule_says_so(
    repository: Repository, root: Root, config: str
) -> None:
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},lib/module")
    repository.git("commit", "-qm", "a submodule")
    _, end = one(root, "mkdir lib/module/d; echo x > lib/module/d/x", config)
    (result,) = end["results"]
    assert result["integration"]["reason"] == "no_changes"
    assert result["integration"]["ignored"] == ["lib/module/d/x"]


@pytest.mark.parametrize("config", [ISOLATED, CONFIG])
def test_nothing_is_too_deep_in_a_submodule_to_be_told_of(
    repository: Repository, root: Root, config: str
) -> None:
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},lib/module")
    repository.git("commit", "-qm", "a submodule")
    deep = "cd lib/module; for i in $(seq 1200); do mkdir d; cd d; done; echo x > x"
    _, end = one(root, deep, config)
    (result,) = end["results"]
    subprocess.run(["rm", "-r", Path(result["workspace"], "lib/module/d")], check=True)
    assert result["integration"]["reason"] == "no_changes", result
    assert result["integration"]["ignored"] == [f"lib/module/{'d/' * 1200}x"]


def came_of(
    repository: Repository, root: Root, script: str, config: str, **more: Any
) -> tuple[str, ...]:
    """All that must not depend on the kind of a workspace."""
    _, end = one(root, script, config, **more)
    (result,) = end["results"]
    branch, joined = end["branch"], result.get("integration") or {}
    tree = repository.git("rev-parse", f"{branch}^{{tree}}") if branch else ""
    return result["status"], joined["reason"], str(joined.get("files")), tree


def test_the_checkout_is_shared_and_never_changed(repository: Repository, root: Root) -> None:
    probe = "ls -d {0}/bases {0}/tasks/*/agents/*; cat /proc/self/mountinfo | grep -c {0}/bases"
    ruin = "rm -rf b .gitignore; echo ruin > a.txt; chmod -R 777 .; touch -d 2001-01-01 x.log"
    text = plan(
        step("one", f"{probe.format(root.path)}; {ruin}; git gc -q", owns=["**"]),
        step("two", "cat a.txt b/c.txt; ls -A", owns=["**"], depends_on=["one"]),
        base={"repository": ".", "ref": "HEAD"},
    )
    _, first = one(root, "git status --short; ls")
    (base,) = (root.path / "bases").iterdir()
    before = whole_tree(base)
    stats = {path: path.lstat().st_mtime_ns for path in base.rglob("*")}
    end = carry_out(root, text, config=ISOLATED)
    assert reasons(end)["one"] == "merged", end
    seen = end["results"][0]["answer"].splitlines()
    assert [line for line in seen if "/agents/" in line] == [
        str(root.folder(end["task_id"], "one"))
    ]  # itself, and nobody else
    assert not [line for line in seen if line.endswith("/bases")]
    assert "0" in seen
    assert whole_tree(base) == before
    assert {path: path.lstat().st_mtime_ns for path in base.rglob("*")} == stats
    assert first["results"][0]["answer"].splitlines() == ["a.txt", "b", "big", "lib", "x.log", "x"]


def test_siblings_share_a_checkout_and_nothing_else(repository: Repository, root: Root) -> None:
    work = [
        step(name, f"echo {name} > own-{name}; ls; cat a.txt; git status --short; echo x",
             owns=[f"own-{name}"])
        for name in ("one", "two", "three")
    ]  # fmt: skip
    end = carry_out(root, plan(*work), config=ISOLATED)
    assert set(reasons(end).values()) == {"merged"}
    for result in end["results"]:
        said = result["answer"].splitlines()
        own = f"own-{result['subagent_id']}"
        assert [line for line in said if line.startswith(("own-", "?? "))] == [own, f"?? {own}"]
    assert len(list((root.path / "bases").iterdir())) == 1


def test_a_workspace_that_is_not_merged_has_all_files(repository: Repository, root: Root) -> None:
    task, end = one(root, "rm -r big; echo astray > astray; echo more >> a.txt", owns=["a.txt"])
    assert reasons(end) == {"one": "policy_violation"}
    failing, _ = one(root, "rm -r big; echo astray > astray; echo more >> a.txt; exit 3 #")
    expected = set(FILES) - {"big/one", "big/two"} | {"astray"}
    for each in (task, failing):
        workspace = root.folder(each, "one") / "workspace"
        held = {path for path in whole_tree(workspace) if not path.startswith(".git/")}
        assert held == expected
        assert (workspace / "a.txt").read_text() == "one\nmore\n"
        assert not (workspace.parent / "layers").exists()
        said = subprocess.run(
            ["git", "-c", f"safe.directory={workspace}", "status", "--short"],
            cwd=workspace, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert said.splitlines() == [" M a.txt", " D big/one", " D big/two", "?? astray"]


def test_what_is_closed_before_it_was_joined_is_whole(repository: Repository, root: Root) -> None:
    task = root.call("task.create", title="t", config_text=ISOLATED.format(limit=5))["task_id"]
    names = root.spawn(
        task,
        *(sh("rm b/c.txt; echo x", integration="merge", subagent_id=name) for name in "pq"),
    )
    until(lambda: {row["state"] for row in root.rows(task).values()} == {"waiting_for_merge"})
    assert all(shares(root, task, name) for name in names)
    root.call("subagent.close", task=task, subagent="p")
    assert [shares(root, task, name) for name in names] == [False, True]
    root.call("task.close", task=task)
    for name in names:
        kept = whole_tree(root.folder(task, name) / "workspace")
        assert {path for path in kept if not path.startswith(".git/")} == set(FILES) - {"b/c.txt"}


def test_a_workspace_can_be_looked_into_while_it_shares(repository: Repository, root: Root) -> None:
    script = "echo n > b/n; rm a.txt; : > ../full_logs/up; until [ -e b/go ]; do sleep 0.02; done"
    task = start(root, plan(step("one", script, timeout_seconds=3)), config=ISOLATED)
    until((root.folder(task, "one") / "full_logs" / "up").exists)
    about = {"task": task, "subagent": "one"}
    listed = root.call("look.files", **about)["files"]
    assert [each["path"] for each in listed] == ["b/n"]
    assert root.call("look.file", path="b/n", **about)["text"] == "n\n"
    assert root.call("look.file", path="b/c.txt", **about)["text"] == "two\n"
    assert root.refusal("look.file", path="a.txt", **about).code == "unreadable_file"
    assert root.refusal("look.file", path="../contract.json", **about).code == "unreadable_file"
    root.call("run.wait", task=task)


def test_a_subagent_is_continued_in_what_it_changed(repository: Repository, root: Root) -> None:
    first = "echo 1 > mine; rm b/c.txt; rm -r big"
    script = f"if [ -e mine ]; then cat mine a.txt; ls b; echo 2 > two; else {first}; fi; echo x"
    answer = root.call("task.create", title="t", config_text=ISOLATED.format(limit=5))
    task = answer["task_id"]
    (name,) = root.spawn(task, sh(script, integration="merge", subagent_id="one"))
    names = [name]
    for _ in range(2):
        until(lambda: root.rows(task)[names[-1]]["state"] == "waiting_for_merge")
        assert root.call("subagent.integrate", task=task, subagent=names[-1])["success"]
        assert shares(root, task, name)
        told = {"subagent": names[-1], "message": "more"}
        names.append(root.call("subagent.continue", task=task, **told)["subagent_id"])
    said = (root.folder(task, names[1]) / "runtime" / "stdout.log").read_text()
    assert said.splitlines() == ["1", "one", "d", "x"]
    files = repository.files(f"retinue/{task}")
    assert (files["mine"], files["two"]) == ("1", "2")
    assert not {"b/c.txt", "big/one"} & set(files)
    until(lambda: root.rows(task)[names[-1]]["state"] == "waiting_for_merge")
    root.call("subagent.integrate", task=task, subagent=names[-1])
    root.call("task.close", task=task)


def test_a_second_attempt_sees_what_the_first_one_left(repository: Repository, root: Root) -> None:
    script = "rm b/c.txt || echo gone; echo $RETINUE_ATTEMPT >> tried"
    task, end = one(root, f"{script}; [ $RETINUE_ATTEMPT = 2 ] || exit 3", retries=1)
    assert reasons(end) == {"one": "merged"}
    assert repository.files(end["branch"])["tried"] == "1\n2"
    assert "b/c.txt" not in repository.files(end["branch"])
    assert shares(root, task)


def test_a_workspace_that_could_not_be_made_is_made_for_the_successor(
    repository: Repository, root: Root
) -> None:
    task = root.call("task.create", title="t", config_text=ISOLATED.format(limit=5))["task_id"]
    script = sh("cat a.txt; git log -1 --format=%s", integration="merge", subagent_id="one")
    (first,) = root.run(task, script)
    known = root.task_folder(task) / "repo.git" / "config"
    known.rename(aside := known.with_name("aside"))
    (failed,) = root.run(task, script | {"subagent_id": "two"})
    assert "its workspace could not be made" in failed["error"]
    assert Path(failed["workspace_path"]).is_dir()
    aside.rename(known)
    told = {"subagent": "two", "message": "again", "wait": True}
    assert root.call("subagent.continue", task=task, **told)["answer"] == first["answer"]
    root.call("task.close", task=task)
    root.call("gc")
    assert list((root.path / "bases").iterdir()) == []
    for gone in root.path.glob("tasks/*/agents/*"):
        (gone / "workspace").mkdir(exist_ok=True)  # for the reader, which wants it to be there


def test_a_configuration_can_ask_for_whole_workspaces(repository: Repository, root: Root) -> None:
    whole = ISOLATED + "    subagent_workspaces: whole\n"
    task, end = one(root, "git mv big large", whole)
    assert reasons(end) == {"one": "merged"}
    assert not (root.path / "bases").exists()
    assert whole_tree(root.folder(task, "one") / "workspace").keys() >= {"a.txt", "large/one"}


def test_bases_go_with_the_last_workspace_over_them(repository: Repository, root: Root) -> None:
    task, _ = one(root, "echo z > z")
    bases = root.path / "bases"
    assert shares(root, task)
    root.call("gc")
    assert not (root.folder(task, "one") / "workspace").exists()
    assert list(bases.iterdir()) == []
    text = [step("one", "echo 1 > one; echo x"), step("two", "cat one", depends_on=["one"])]
    kept = carry_out(root, plan(*text), config=ISOLATED)["task_id"]
    detach_workspace(root.folder(kept, "one") / "workspace")
    shutil.rmtree(root.folder(kept, "one") / "workspace")
    (root.folder(kept, "two") / "workspace" / "left").touch()
    root.call("gc")  # what `two` is over is itself over what `one` was over
    assert len(list(bases.iterdir())) == (2 if shares(root, kept, "two") else 0)
    _, end = one(root, "cat a.txt")  # made again
    assert end["results"][0]["answer"] == "one\nx"
    for gone in root.path.glob("tasks/*/agents/*"):
        (gone / "workspace").mkdir(exist_ok=True)  # for the reader, which wants it to be there


def test_a_base_like_another_is_made_of_what_is_different(
    repository: Repository, root: Root
) -> None:
    look = "find . -name .git -prune -o -type f -print | sort; git status --short; cat a.txt; "
    verify = ["sh", "-c", "find . -type f | sort; touch scratch; test ! -e .git"]
    work = "rm -r big; rm b/c.txt; echo 2 >> a.txt; mkdir -p n/m; echo 1 > n/m/one; echo x"
    text = plan(
        step("one", work, verify=verify),
        step("two", look + "mkdir big; echo 3 > big/three; rm -r n; echo x", depends_on=["one"]),
        step("bad", "rm big/three; echo > astray; echo x", depends_on=["two"], owns=["none"]),
        step("three", look + "rm -r b; echo 4 > b; echo x", depends_on=["two"], verify=verify),
        step("four", look + "echo x", depends_on=["three"]),
        on_failure="continue",
    )
    end = carry_out(root, text, config=ISOLATED)
    merged = dict.fromkeys(("one", "two", "three"), "merged")
    assert reasons(end) == merged | {"four": "no_changes", "bad": "policy_violation"}, end
    assert len([*(root.path / "bases").glob("*/on")]) == 2  # for `four`, a folder became a file
    said = {each["subagent_id"]: each["answer"].splitlines() for each in end["results"]}
    first = {f"./{name}" for name in FILES} - {"./b/c.txt", "./big/one", "./big/two"}
    assert said["two"] == [*sorted(first | {"./n/m/one"}), "one", "2", "x"]
    assert said["three"] == [*sorted(first | {"./big/three"}), "one", "2", "x"]
    assert said["four"] == [*sorted(first - {"./b/d/e"} | {"./big/three", "./b"}), "one", "2", "x"]
    checks = root.task_folder(end["task_id"]) / "agents"
    seen = (checks / "one" / "verify" / "runtime" / "stdout.log").read_text().splitlines()
    assert seen == sorted(first | {"./n/m/one"})
    seen = (checks / "three" / "verify" / "runtime" / "stdout.log").read_text().splitlines()
    assert seen == sorted(first - {"./b/d/e"} | {"./big/three", "./b"})
    kept = root.folder(end["task_id"], "bad") / "workspace"
    held = {f"./{path}" for path in whole_tree(kept) if not path.startswith(".git/")}
    assert held == first | {"./astray"}
    assert not list(checks.glob("*/verify/[!r]*"))


@pytest.mark.parametrize("more", ["", "good.txt"])
def test_a_base_like_another_has_no_name_that_a_whole_one_could_not_have(
    repository: Repository, root: Root, more: str
) -> None:
    one(root, "true")
    repository.write({name: "x" for name in ("GIT~1", more) if name})
    repository.git("-c", "core.protectNTFS=false", "add", "-A")
    repository.git("-c", "core.protectNTFS=false", "commit", "-qm", "a name of git's own")
    end = carry_out(root, plan(step("one", "echo x")), config=ISOLATED)
    repository.git("reset", "-q", "--hard", "HEAD~1")
    repository.git("reflog", "expire", "--expire=now", "--all")
    repository.git("gc", "-q", "--prune=now")  # of what a strict reader would not bear
    assert "invalid path 'GIT~1'" in end["results"][0].get("error", "")


def test_a_base_that_is_lost_or_from_before_a_reboot_is_made_again(
    repository: Repository, root: Root
) -> None:
    one(root, "true")
    (base,) = (root.path / "bases").iterdir()
    (base / "boot").write_text("another\n")
    (base / "tree" / "a.txt").write_text("")  # as a power failure leaves it
    assert one(root, "cat a.txt")[1]["results"][0]["answer"] == "one\nx"
    shutil.rmtree(base)
    (base.parent / f".{base.name}.new").mkdir()  # of someone who was killed
    assert one(root, "cat a.txt")[1]["results"][0]["answer"] == "one\nx"


def test_nothing_that_was_planted_runs(repository: Repository, root: Root, tmp_path: Path) -> None:
    plant = f"""
    mkdir -p .git/hooks; printf '#!/bin/sh\\ntouch {tmp_path}/ran' > .git/hooks/post-index-change
    chmod +x .git/hooks/*; cp .git/hooks/post-index-change git; cp git fast-import
    git config core.fsmonitor $PWD/git; git config filter.evil.clean $PWD/git
    git config core.hooksPath $PWD/.git/hooks; git config diff.evil.command $PWD/git
    echo '* filter=evil diff=evil ident text eol=crlf' > .gitattributes
    printf 'plain\\r\\n$Id$\\n' > a.txt; rm -f .git/index; ln -s /etc/shadow .git/index
    """
    _, end = one(root, plant)
    assert reasons(end) == {"one": "merged"}
    assert repository.git("cat-file", "blob", f"{end['branch']}:a.txt") == "plain\r\n$Id$"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("spoil", ["gone", "link", "file"])
def test_a_workspace_that_was_replaced_fails_its_child(
    repository: Repository, root: Root, tmp_path: Path, spoil: str
) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("secret")
    slow = ["sh", "-c", "until [ -e /tmp/no ]; do sleep 0.02; done"]
    first = step("first", "echo z > z; echo x", owns=["z"], verify=slow, timeout_seconds=3)
    text = plan(first, step("two", "echo y > y; echo x", owns=["y"]), on_failure="continue")
    task = start(root, text, config=ISOLATED)
    until(lambda: root.rows(task).get("two", {}).get("state") == "waiting_for_merge")
    workspace = root.folder(task, "two") / "workspace"
    shutil.rmtree(workspace)
    if spoil == "link":
        workspace.symlink_to(tmp_path / "secret")
    if spoil == "file":
        workspace.write_text("no folder")
    end = root.call("run.wait", task=task)
    assert reasons(end)["two"] == "merge_refused"
    assert (tmp_path / "secret" / "key").read_text() == "secret"
    assert os.listdir(tmp_path / "secret") == ["key"]
    workspace.unlink(missing_ok=True)
    workspace.mkdir()  # for the reader, which wants every workspace to be there


STEPS = [
    step("one", "echo 1 > one; rm b/c.txt; echo x", owns=["one", "b/**"], verify=["cat", "one"]),
    step("two", "rm -r big; mkdir big; echo 2 > big/new; echo x", owns=["big/**"]),
    step("bad", "echo 3 > astray; echo x", owns=["bad"]),
    step("three", "cat one big/new > three; echo x", owns=["three"], depends_on=["one", "two"]),
]  # fmt: skip
POINTS = [
    "workspace_made:1", "workspace_made:3", "launched:1", "running:2", "released:2", "exited:1",
    "published:2", "recorded:4", "merge_commit_made:1", "merge_commit_made:2", "ref_moved:2",
    "join_recorded:1", "join_recorded:3",
]  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.requirement("R77", "R137")
def test_after_a_crash_the_run_goes_on(
    repository: Repository, root: Root, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    die_at(root, monkeypatch, point, plan(*STEPS, on_failure="continue"), config=ISOLATED)
    (known,) = root.call("task.list")
    end = root.call("run.wait", task=known["task_id"])
    names = ["one", "two", "three"]
    assert reasons(end) == dict.fromkeys(names, "merged") | {"bad": "policy_violation"}, end
    assert repository.joined(end["branch"]) == names
    files = repository.files(end["branch"])
    assert (files["three"], sorted(set(files) - set(FILES))) == (
        "1\n2",
        ["big/new", "one", "three"],
    )
    assert not {"b/c.txt", "big/one", "big/two"} & set(files)
    bad = root.folder(end["task_id"], "bad") / "workspace"
    assert {*FILES, "astray"} <= set(whole_tree(bad))
