"""Plans carried out on real repositories: what is joined, in which order, what is left alone."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.trust import trust_root
from support import repositories
from support.reader import Reader
from support.repositories import (
    ISOLATED,
    Repository,
    carry_out,
    plan,
    reasons,
    start,
    step,
)
from support.roots import Root, sh, until
from support.traces import children_of

repository, root = repositories.repository, repositories.root
MAKE_IMG = "mkdir img; echo p > img/a; echo x"
BOTH = ["bio", "img"]
HELD = "until [ -e ../go ]; do sleep 0.02; done; "


@pytest.mark.requirement("R77", "R80", "R81", "R82", "R116", "R131", "R139")
@pytest.mark.parametrize("mode", ["isolated", "inherited"])
def test_a_plan_is_joined_in_its_order_and_the_user_s_things_stay(
    repository: Repository, root: Root, mode: str
) -> None:
    repository.write({"a.txt": "not committed\n", "new.txt": "neither\n"})
    before = repository.untouched()
    text = plan(
        step("bio", "echo me > bio.md; echo wrote it", owns=["bio.md"]),
        step("img", MAKE_IMG, owns=["img/**"], verify=["test", "-s", "img/a"]),
        step("all", "cat bio.md img/a > all.md; echo x", owns=["all.md"], depends_on=BOTH),
    )
    end = carry_out(root, text, config=ISOLATED.replace("isolated", mode))
    assert (end["status"], end["summary"]["completed"]) == ("completed", 3)
    assert reasons(end) == {"bio": "merged", "img": "merged", "all": "merged"}
    assert repository.joined(end["branch"]) == ["bio", "img", "all"]
    assert repository.files(end["branch"])["all.md"] == "me\np"
    assert repository.files(end["branch"])["a.txt"] == "one\ntwo\nthree"
    assert repository.untouched() == before
    events = root.events(end["task_id"])
    (order,) = [e for e in events if e["type"] == "run.integration_order"]
    assert order["payload"]["order"] == ["bio", "img", "all"]
    merged = [e["seq"] for e in events if e["type"] == "agent.worktree_merged"]
    assert order["seq"] < min(merged)
    repository.git("fsck", "--strict")
    Reader(root.path).check(finished=True)
    root.sound()


def test_a_wait_outlasts_the_moments_between_steps(repository: Repository, root: Root) -> None:
    names = ["one", "two", "three", "four"]
    steps = [step(each, f"echo {each} > {each}; echo x", owns=[each]) for each in names]
    for before, after in zip(names, steps[1:], strict=False):
        after["depends_on"] = [before]
    task = start(root, plan(*steps))
    settled = [root.call("subagent.wait_any", task=task, timeout_seconds=20) for _ in names]
    assert [each["agentInstance"] for each in settled] == names
    root.call("run.wait", task=task)
    assert root.refusal("subagent.wait_any", task=task).code == "nothing_to_wait_for"


def test_a_raised_limit_starts_the_steps_it_held_back(repository: Repository, root: Root) -> None:
    steps = [step(each, HELD + f"echo 1 > {each}; echo x", owns=[each]) for each in BOTH]
    task = start(root, plan(*steps), limit=1)
    path = root.task_folder(task) / "task.yaml"
    until(lambda: "active" in path.read_text())
    assert list(root.rows(task)) == ["bio"]
    text = path.read_text()
    path.write_text(text.replace("maxConcurrentAgents: 1", "maxConcurrentAgents: 2"))
    until(lambda: root.rows(task).get("img", {}).get("status") == "running")
    for each in BOTH:
        (root.folder(task, each) / "go").touch()
    assert root.call("run.wait", task=task)["status"] == "completed"


@pytest.mark.requirement("R120", "R129")
def test_a_step_is_not_settled_before_it_is_joined(repository: Repository, root: Root) -> None:
    slow = step("slow", "until [ -e go ]; do sleep 0.02; done; echo 1 > s; echo x", owns=["s"])
    task = start(root, plan(slow, step("fast", "echo 1 > f; echo done", owns=["f"])))
    until(lambda: root.rows(task).get("fast", {}).get("state") == "waiting_for_merge")
    assert root.rows(task)["fast"]["status"] == "waiting_for_merge"
    assert root.refusal("subagent.wait_any", task=task, timeout_seconds=0).code == "wait_timed_out"
    assert root.refusal("subagent.result", task=task, subagent="fast").code == "no_result_yet"
    refused = root.refusal("subagent.cancel", task=task, subagent="fast")
    assert refused.code == "already_delivered"
    assert refused.message == "fast has already delivered, and waits to be joined"
    (root.folder(task, "slow") / "workspace" / "go").touch()
    settled = [root.call("subagent.wait_any", task=task, timeout_seconds=20) for _ in range(2)]
    assert [each["agentInstance"] for each in settled] == ["slow", "fast"]
    end = root.call("run.wait", task=task)
    assert end["results"][0]["error"]  # it left its own mark outside of what it owns
    assert reasons(end) == {"slow": "policy_violation", "fast": "merged"}


@pytest.mark.requirement("R121", "R123", "R144")
def test_a_conflict_fails_the_child_and_everything_of_it_is_kept(
    repository: Repository, root: Root
) -> None:
    text = plan(
        step("one", "echo mine > a.txt; echo x", owns=["a.txt"]),
        step("two", "echo theirs > a.txt; echo x", owns=["b/*", "a.txt"], integration="merge",
             depends_on=[]),
    )  # fmt: skip
    assert "could work at the same time" in root.refusal("run.start", plan_text=text).message
    task = start(root, plan(step("one", HELD + "echo mine > a.txt; echo x")))
    branch = f"refs/heads/retinue/{task}"
    until(lambda: (root.folder(task, "one") / "workspace").exists())
    repository.write({"a.txt": "someone else\n"})
    repository.git("update-ref", branch, _commit_aside(repository))
    (root.folder(task, "one") / "go").touch()
    end = root.call("run.wait", task=task)
    (result,) = end["results"]
    joined = result["integration"]
    assert (end["status"], result["status"], joined["reason"]) == (
        "failed",
        "error",
        "merge_conflict",
    )
    assert joined["conflicted_files"] == ["a.txt"]
    assert Path(joined["patch"]).read_text().count("+mine") == 1
    assert repository.git("show", f"{joined['branch']}:a.txt") == "mine"
    assert (Path(joined["workspace"]) / "a.txt").read_text() == "mine\n"
    assert root.types(task, "one")[-3:] == [
        "subagent_waiting_for_merge",
        "worktree_merge_failed",
        "subagent_closed",
    ]
    closed = root.events(task, "one")[-1]["payload"]
    assert (closed["final_status"], closed["close_reason"]) == ("failed", "merge_conflict")
    assert repository.git("rev-parse", branch) != joined["branch"]  # nobody's commit is lost


def _commit_aside(repository: Repository) -> str:
    """A commit of what is in the working tree that no branch knows."""
    repository.git("add", "a.txt")
    tree = repository.git("write-tree")
    repository.git("reset", "-q", "--hard")
    return repository.git("commit-tree", tree, "-p", "HEAD", "-m", "aside")


@pytest.mark.requirement("R110", "R123")
def test_a_failure_stops_the_run_and_its_dependants_never_start(
    repository: Repository, root: Root
) -> None:
    steps = [
        step("bad", "exit 3", owns=["x"]),
        step("needs", "echo x > y; echo", owns=["y"], depends_on=["bad"]),
        step("free", "echo z > z; echo done", owns=["z"], depends_on=[]),
        step("later", "echo q > q; echo done", owns=["q"], depends_on=["free"]),
    ]
    end = carry_out(root, plan(*steps, on_failure="continue"))
    assert end["status"] == "failed"
    assert reasons(end) == {"bad": "", "free": "merged", "later": "merged"}
    assert list(end["not_started"]) == ["needs"]
    end = carry_out(root, plan(*steps), limit=1)
    assert reasons(end) == {"bad": ""}
    assert list(end["not_started"]) == ["needs", "free", "later"]
    assert "needs" not in root.rows(end["task_id"])


@pytest.mark.requirement("R109", "R117")
def test_output_that_does_not_pass_its_check_is_not_joined(
    repository: Repository, root: Root
) -> None:
    check = ["sh", "-c", "echo looking; touch left-behind a.txt; grep -q two bio.md"]
    text = plan(
        step("one", "echo one > bio.md; echo x", owns=["bio.md"], verify=check),
        step("two", "echo two > bio.md; echo x", owns=["bio.md"], depends_on=["one"]),
        on_failure="continue",
    )
    end = carry_out(root, text)
    assert reasons(end) == {"one": "check_failed"}
    assert "verify failed: exited with code 1" in end["results"][0]["error"]
    assert "looking" in end["results"][0]["error"]
    assert end["branch"] is None
    report = root.folder(end["task_id"], "one") / "artifacts/step-0-result.md"
    assert "Status: error\n\nError: verify failed" in report.read_text()
    end = carry_out(root, plan(step("two", "echo two > bio.md; echo x", verify=check)))
    assert repository.files(end["branch"])["bio.md"] == "two"
    assert "left-behind" not in repository.files(end["branch"])


@pytest.mark.parametrize("check", [["true"], ["false"], ["/no/such/program"]])
def test_no_process_of_a_check_is_left(
    repository: Repository, root: Root, check: list[str]
) -> None:
    def round_of(name: str) -> int:
        carry_out(root, plan(step(name, f"echo 1 > {name}; echo x", verify=check)))
        return len(children_of(root.pid))

    assert round_of("one") == round_of("two") == round_of("three")


def test_a_check_looks_at_the_merged_tree_even_when_nothing_was_changed(
    repository: Repository, root: Root
) -> None:
    first = step("first", "echo 1 > one; echo x", owns=["one"])
    second = step("second", "echo nothing", owns=["two"], verify=["test", "-s", "one"])
    third = step("third", "echo nothing", owns=["three"], verify=["test", "-s", "three"])
    end = carry_out(root, plan(first, second, third))
    assert reasons(end) == {"first": "merged", "second": "no_changes", "third": "check_failed"}


@pytest.mark.parametrize("workspaces", ["shared", "whole"])
def test_a_step_with_only_ignored_files_says_so(
    repository: Repository, root: Root, workspaces: str
) -> None:
    repository.write({".gitignore": "*.log\nbuilt/\n"})
    repository.commit("ignore")
    make = "mkdir built; echo a > built/a; echo b > b.log; echo x"
    config = ISOLATED + f"    subagent_workspaces: {workspaces}\n"
    end = carry_out(root, plan(step("one", make)), config=config)
    (result,) = end["results"]
    assert reasons(end) == {"one": "no_changes"}
    assert [path.partition("/")[0] for path in result["integration"]["ignored"]] == [
        "b.log",
        "built",
    ]


@pytest.mark.requirement("R138")
def test_a_step_without_owned_paths_works_alone_and_on_all_that_came_before(
    repository: Repository, root: Root
) -> None:
    add = "echo {0} >> a.txt; date +%s%N > {0}.at; sleep 0.05; date +%s%N >> {0}.at; echo x"
    end = carry_out(root, plan(*(step(f"s{n}", add.format(f"s{n}")) for n in range(3))))
    files = repository.files(end["branch"])
    assert files["a.txt"].splitlines()[3:] == ["s0", "s1", "s2"]
    spans = [tuple(map(int, files[f"s{n}.at"].split())) for n in range(3)]
    assert spans == sorted(spans) and spans[0][1] < spans[1][0] and spans[1][1] < spans[2][0]


@pytest.mark.requirement("R98", "R99", "R108")
def test_a_report_is_kept_and_never_committed(repository: Repository, root: Root) -> None:
    write = "mkdir -p .retinue; echo '# Mine' > .retinue/step-0-result.md; echo b > b; echo x"
    end = carry_out(root, plan(step("one", write)))
    assert set(repository.files(end["branch"])) == {"a.txt", "b"}
    report = root.folder(end["task_id"], "one") / "artifacts" / "step-0-result.md"
    assert report.read_text() == "# Mine\n"
    reports = root.task_folder(end["task_id"]) / "shared" / "reports"
    assert "one" in (reports / "joined-summary.md").read_text()


@pytest.mark.requirement("R99")
def test_a_plan_can_say_where_reports_lie(repository: Repository, root: Root) -> None:
    write = "mkdir .orchestrix; echo '# Mine' > .orchestrix/step-0-result.md; echo b > b; echo x"
    pattern = ".orchestrix/step-<idx>-result.md"
    end = carry_out(root, plan(step("one", write, owns=["b"]), report_path_pattern=pattern))
    assert reasons(end) == {"one": "merged"}
    assert set(repository.files(end["branch"])) == {"a.txt", "b"}
    artifacts = root.folder(end["task_id"], "one") / "artifacts"
    assert (artifacts / "step-0-result.md").read_text() == "# Mine\n"
    outside = plan(step("one", write), report_path_pattern="../step-<idx>.md")
    refused = root.refusal("run.start", plan_text=outside)
    assert "does not stay inside the workspace" in refused.message


@pytest.mark.parametrize("ignored", [".retinue/", "!.retinue/", "!.retinue/**"])
def test_files_below_the_root_are_never_merged(
    repository: Repository, root: Root, ignored: str
) -> None:
    repository.write({".retinue/config.yaml": "{}\n"})
    trust_root(root.path, os.environ, ())
    repository.git("add", "-f", ".retinue/config.yaml")
    repository.git("commit", "-q", "-m", "ours")
    write = f"echo '{ignored}' > .gitignore; echo x > .retinue/config.yaml; "
    write += "git init -q .retinue/mine; echo '# Mine' > .retinue/step-0-result.md; echo done"
    end = carry_out(root, plan(step("one", write)))
    assert reasons(end) == {"one": "merged"}, end["results"][0]
    assert repository.files(end["branch"]) == {
        ".gitignore": ignored,
        ".retinue/config.yaml": "{}",
        "a.txt": "one\ntwo\nthree",
    }
    report = root.folder(end["task_id"], "one") / "artifacts" / "step-0-result.md"
    assert report.read_text() == "# Mine\n"


def test_uncommitted_work_can_be_the_base_and_is_not_changed(
    repository: Repository, root: Root
) -> None:
    repository.write({"a.txt": "changed\n", "new.txt": "new\n"})
    repository.write({".gitignore": "*.log\n/.retinue/\n", "x.log": "ignored\n"})
    repository.git("add", "new.txt")
    before = repository.untouched()
    end = carry_out(root, plan(step("one", "cat a.txt new.txt > b; echo x")), include_dirty=True)
    assert repository.files(end["branch"])["b"] == "changed\nnew"
    assert "x.log" not in repository.files(end["branch"])
    assert repository.untouched() == before


def test_apply_moves_the_branch_that_is_checked_out_and_its_files(
    repository: Repository, root: Root
) -> None:
    text = plan(step("one", "echo b > b; echo x"))
    end = carry_out(root, text, apply=True)
    assert end["applied"] and (repository.path / "b").read_text() == "b\n"
    assert repository.git("rev-parse", "main") == end["head"]
    assert repository.git("status", "--porcelain", "-uno") == ""
    repository.write({"a.txt": "dirty\n"})
    assert "uncommitted changes" in root.refusal("run.start", plan_text=text, apply=True).message


@pytest.mark.parametrize("how", ["apply", "include_dirty"])
def test_a_base_that_is_not_checked_out_is_refused_with_a_hint_that_loses_nothing(
    repository: Repository, root: Root, how: str
) -> None:
    first = carry_out(root, plan(step("one", "echo b > b; echo x")))["branch"]

    def hint(ref: str) -> str:
        text = plan(step("two", "cat b > c; echo x"), base={"repository": ".", "ref": ref})
        refused = root.refusal("run.start", plan_text=text, **{how: True})
        assert refused.code == "unfit_repository"
        return str(refused.hint)

    assert f"'git merge --ff-only {first}'" in hint(first)
    assert "would start without the commits of" in hint(first)
    repository.write({"a.txt": "other\n"})
    repository.commit("other")
    assert hint(first).startswith("merge it, or check it out, first")
    assert hint("HEAD~1").startswith("leave base.ref out")
    repository.git("reset", "-q", "--hard", "HEAD~1")
    repository.git("merge", "-q", "--ff-only", first)  # as the first hint says
    text = plan(step("two", "cat b > c; echo x"), base={"repository": ".", "ref": first})
    end = carry_out(root, text, **{how: True})
    assert set(repository.files(end["branch"])) == {"a.txt", "b", "c"}


@pytest.mark.requirement("R139")
def test_apply_that_a_filter_breaks_off_leaves_everything_as_it_was(
    repository: Repository, root: Root
) -> None:
    for name, value in (("smudge", "false"), ("required", "true")):
        repository.git("config", f"filter.broken.{name}", value)
    head = repository.git("rev-parse", "HEAD")
    make = "echo '*.z filter=broken' > .gitattributes; echo 1 > a.txt; echo 2 > new.z; echo x"
    end = carry_out(root, plan(step("one", make)), apply=True)
    assert reasons(end) == {"one": "merged"}
    assert "not applied" in end["apply_error"]
    assert repository.git("rev-parse", "HEAD") == head
    assert repository.git("status", "--porcelain", "--", ".", ":(exclude).retinue") == ""


def test_apply_whose_git_is_killed_leaves_the_files_as_they_were(
    repository: Repository, root: Root
) -> None:
    names = [f"f{number}.txt" for number in range(4)]
    repository.write(dict.fromkeys(names, "old\n") | {".gitattributes": "f2.txt filter=slow\n"})
    head = repository.commit("files")
    # It kills the git that waits for it, when two of the files are already the new ones.
    smudge = repository.path / ".git" / "smudge"
    smudge.write_text(f"[ -e {smudge}.done ] || {{ touch {smudge}.done; kill -9 $PPID; }}; cat")
    repository.git("config", "filter.slow.smudge", f"exec sh {smudge}")
    make = "for n in 0 1 2 3; do echo new > f$n.txt; done; echo new > f1-new.txt; echo x"
    end = carry_out(root, plan(step("one", make)), apply=True)
    assert reasons(end) == {"one": "merged"}
    assert end["applied"] is False and "index.lock" in end["apply_error"]
    (repository.path / ".git" / "index.lock").unlink()
    assert repository.git("rev-parse", "HEAD") == head
    assert repository.git("status", "--porcelain", "--", ".", ":(exclude).retinue") == ""
    assert root.call("run.apply", task=end["task_id"])["applied"]
    assert (repository.path / "f3.txt").read_text() == "new\n"


def test_apply_loses_nothing_that_came_in_between(repository: Repository, root: Root) -> None:
    task = start(root, plan(step("one", HELD + "echo b > b; echo x")), apply=True)
    until(lambda: (root.folder(task, "one") / "workspace").exists())
    repository.write({"c.txt": "meanwhile\n"})
    moved = repository.commit("meanwhile")
    (root.folder(task, "one") / "go").touch()
    end = root.call("run.wait", task=task)
    assert (end["status"], end["applied"]) == ("completed", False)
    why = f"'main' has commits since the run began; 'git merge {end['branch']}' joins both"
    assert end["apply_error"] == f"not applied: {why}"
    assert repository.git("rev-parse", "main") == moved
    assert repository.joined(end["branch"]) == ["one"]


def test_a_blocked_step_goes_on_with_each_answer_and_is_then_joined(
    repository: Repository, root: Root
) -> None:
    script = """
    if grep -q blue "$RETINUE_BRIEF"; then echo blue > c; echo done; exit 0; fi
    echo '{"status": "blocked", "questions": ["Which colour?"]}' > "$RETINUE_FINAL"
    """
    task = start(root, plan(step("one", script), step("two", "cat c > d; echo x")))
    for number, answer in enumerate(["red", "blue"], start=1):
        settled = root.call("subagent.wait_any", task=task, timeout_seconds=20)
        assert settled == {"agentInstance": "one", "status": "blocked"}
        (gate,) = [g for g in root.call("gate.list", task=task) if g["state"] == "open"]
        assert (gate["gate_id"], gate["questions"]) == (f"one-{number}", ["Which colour?"])
        root.call("gate.approve", task=task, gate=gate["gate_id"], answer=answer)
    end = root.call("run.wait", task=task)
    assert repository.files(end["branch"])["d"] == "blue"
    assert root.types(task, "one").count("blocked") == 2
    notes = (root.task_folder(task) / "shared" / "human-notes.md").read_text()
    assert notes.count("Which colour?") == 2


@pytest.mark.requirement("R112")
def test_an_unanswered_blocked_step_is_closed_with_the_run(
    repository: Repository, root: Root
) -> None:
    ask = 'echo \'{"status": "blocked", "questions": ["?"]}\' > $RETINUE_FINAL'
    bad = HELD + "exit 3"
    task = start(root, plan(step("asks", ask, owns=["a"]), step("bad", bad, owns=["b"])))
    until(lambda: root.rows(task).get("asks", {}).get("status") == "blocked")
    (root.folder(task, "bad") / "go").touch()
    end = root.call("run.wait", task=task)
    assert end["status"] == "failed"
    assert root.rows(task)["asks"]["close_reason"] == "blocked_unresolved"


def test_a_cancelled_run_starts_no_further_step(repository: Repository, root: Root) -> None:
    text = plan(step("one", "sleep 60"), step("two", "echo x"), on_failure="continue")
    task = start(root, text)
    until(lambda: root.rows(task).get("one", {}).get("status") == "running")
    root.call("task.cancel", task=task, reason="enough")
    end = root.call("run.wait", task=task)
    assert (end["status"], list(end["not_started"])) == ("failed", ["two"])
    assert root.rows(task)["one"]["close_reason"] == "cancelled_by_user"


@pytest.mark.requirement("R116", "R136")
def test_output_can_be_copied_and_a_link_is_no_output(repository: Repository, root: Root) -> None:
    steps = [
        step("good", "mkdir d; echo 1 > d/f; echo 2 > g; chmod +x g; echo x", integration="copy"),
        step("named", "echo 3 > h; echo x", integration="copy", destination="out/here"),
        step("bad", "ln -s /etc/passwd l; echo x", integration="copy"),
    ]
    end = carry_out(root, plan(*steps, base=None, on_failure="continue"))
    assert reasons(end) == {"good": "copied", "named": "copied", "bad": "policy_violation"}
    output = root.task_folder(end["task_id"]) / "shared" / "output"
    assert (output / "good" / "d" / "f").read_text() == "1\n"
    assert (output / "good" / "g").stat().st_mode & 0o111
    assert not (output / "bad").exists()
    assert (repository.path / "out" / "here" / "h").read_text() == "3\n"
    (repository.path / "around").symlink_to(".git")
    for astray in ("../out", ".git/x", ".retinue/y", "around/hooks"):
        text = plan(step("a", "true", integration="copy", destination=astray))
        assert root.refusal("run.start", plan_text=text).code == "invalid_plan"


def test_an_owner_that_is_not_joined_is_reported(root: Root) -> None:
    loose = [step("loose", "echo x", owns=["a"]), step("free", "echo x")]
    held = step("held", "echo x", owns=["a"], integration="copy")
    (warning,) = root.call("run.start", plan_text=plan(*loose, held, base=None))["warnings"]
    assert "the output of loose is not joined," in warning
    assert "warnings" not in root.call("run.start", plan_text=plan(held, base=None))


@pytest.mark.requirement("R116")
def test_subagents_without_a_plan_are_joined_when_their_parent_asks(
    repository: Repository, root: Root
) -> None:
    task = root.create_task()
    for name in ("one", "two"):
        root.run(task, sh(f"echo {name} > {name}; echo x", subagent_id=name, integration="merge"))
    assert {row["state"] for row in root.rows(task).values()} == {"waiting_for_merge"}
    for name in ("two", "one"):
        answer = root.call("subagent.integrate", task=task, subagent=name)
        assert (answer["success"], answer["close_reason"]) == (True, "merged")
        again = root.call("subagent.integrate", task=task, subagent=name)
        assert again["integration"] == answer["integration"]
    assert repository.joined(f"retinue/{task}") == ["two", "one"]
    root.run(task, sh("echo 1 > c; echo x", subagent_id="copy", integration="copy"))
    assert root.call("subagent.integrate", task=task, subagent="copy")["success"]
    assert (root.task_folder(task) / "shared" / "output" / "copy" / "c").exists()
    root.run(task, sh("echo 1 > c; echo x", subagent_id="left", integration="merge"))
    root.call("task.close", task=task)
    row = root.rows(task)["left"]
    assert (row["status"], row["close_reason"]) == ("failed", "merge_refused")
    Reader(root.path).check(finished=True)
    root.sound()


def test_a_plan_is_carried_out_in_process(repository: Repository) -> None:
    async def main() -> dict[str, Any]:
        async with retinue.open(repository.path / ".retinue") as opened:
            text = plan(step("one", "echo 1 > one; echo x", verify=["test", "-s", "one"]))
            return await opened.run_plan(text, folder=repository.path, apply=True)

    end = asyncio.run(main())
    assert (end["status"], end["applied"]) == ("completed", True)
    assert (repository.path / "one").read_text() == "1\n"
