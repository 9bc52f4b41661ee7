"""A child that plants, links, hides or breaks things: nothing of it runs, and nothing gets in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from retinue.workspaces.owned_files import remove_tree
from support.reader import Reader
from support.repositories import ISOLATED, Repository, carry_out, plan, reasons, start, step
from support.roots import Root, held, until

PLANT = """
run() {{ printf '#!/bin/sh\\ntouch {ran}-%s\\n' $1; }}
mkdir -p .git/hooks p
for hook in post-checkout pre-commit post-commit reference-transaction post-index-change; do
  run $hook > .git/hooks/$hook; chmod +x .git/hooks/$hook
done
run monitor > p/monitor; run clean > p/clean; run diff > p/diff; run git > git; chmod +x p/* git
cat >> .git/config <<X
[core]
  fsmonitor = $PWD/p/monitor
  hooksPath = $PWD/.git/hooks
  sshCommand = touch {ran}-ssh
[filter "evil"]
  clean = $PWD/p/clean
  smudge = $PWD/p/clean
  process = $PWD/p/clean
  required = true
[diff "evil"]
  command = $PWD/p/diff
  textconv = $PWD/p/diff
[merge "evil"]
  driver = $PWD/p/diff
X
echo '* filter=evil diff=evil merge=evil' > .gitattributes
echo '* ident text eol=crlf working-tree-encoding=UTF-16' >> .gitattributes
printf '[submodule "s"]\\n path = s\\n url = ext::touch {ran}-ext\\n' > .gitmodules
printf 'plain\\r\\n$Id$\\n' > a.txt
git add -A >/dev/null 2>&1; git commit -qm planted >/dev/null 2>&1
touch {ran}-child; echo planted
"""


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "project", {"a.txt": "one\n", "b/c.txt": "two\n"})


@pytest.fixture
def root(repository: Repository) -> Iterator[Root]:
    with held(repository.path / ".retinue") as root:
        yield root
        Reader(root.path).check(finished=True)
        root.sound()
        repository.git("fsck", "--strict")


def test_nothing_that_a_child_planted_runs_later_and_bytes_stay_what_they_are(
    repository: Repository, root: Root, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    end = carry_out(root, plan(step("plant", PLANT.format(ran=ran))))
    assert end["status"] == "completed", end
    for path in tmp_path.glob("ran-*"):  # the child had every right to run it itself
        path.unlink()
    text = plan(
        step("next", "echo more >> b/c.txt; echo x", verify=["test", "-e", "a.txt"]),
        step("last", "echo more > d; echo x"),
        base={"repository": ".", "ref": end["branch"]},
    )
    again = carry_out(root, text)
    assert again["status"] == "completed"
    assert list(tmp_path.glob("ran-*")) == []
    assert repository.git("cat-file", "blob", f"{again['branch']}:a.txt") == "plain\r\n$Id$"


def test_nothing_planted_runs_while_output_is_joined(
    repository: Repository, root: Root, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    quiet = PLANT.replace("git add -A", "true").replace("git commit", "true")
    end = carry_out(root, plan(step("plant", quiet.format(ran=ran))), apply=True)
    assert reasons(end) == {"plant": "merged"}
    assert [path.name for path in tmp_path.glob("ran-*")] == ["ran-child"]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("ln -s /etc/passwd l", "a symbolic link"),
        ("rm -r b; ln -s /etc b", "a symbolic link"),
        ("mkdir s; git -C s init -q; echo > s/f", "a git folder of its own"),
        ("mkdir s; echo 'gitdir: /tmp/evil' > s/.git; echo > s/f", "a git folder of its own"),
        ("mkdir .GIT; echo > .GIT/config", "a git folder of its own"),
        ("mkdir -p d/.Git; echo > d/.Git/config", "a git folder of its own"),
        ("echo > 'git~1'", "cannot be taken"),
        ("mkdir '.git '; echo > '.git /config'", "cannot be taken"),
        ("truncate -s 60M big", "more than 50 MB"),
        ("echo x > outside", "does not own: outside"),
        ("rm a.txt", "does not own: a.txt"),
    ],
)
@pytest.mark.requirement("R138")
def test_what_may_not_be_brought_fails_the_child_by_policy(
    repository: Repository, root: Root, script: str, words: str
) -> None:
    before = repository.untouched()
    owns = ["own"] if "does not own" in words else ["**"]
    other = step("other", "echo y > other; echo x", owns=["other"], depends_on=["bad"])
    text = plan(step("bad", f"{script}; echo x", owns=owns), other)
    end = carry_out(root, text)
    assert reasons(end) == {"bad": "policy_violation"}
    assert words in end["results"][0]["error"]
    assert repository.untouched() == before
    kind = root.events(end["task_id"], "bad")[-2]["payload"]
    assert (kind["failure_kind"], kind["close_reason"]) == ("policy", "policy_violation")


def test_a_repository_within_is_let_pass_where_it_is_ignored(
    repository: Repository, root: Root
) -> None:
    script = "echo build/ > .gitignore; mkdir -p build/s; git -C build/s init -q; echo x"
    end = carry_out(root, plan(step("one", script)))
    assert reasons(end) == {"one": "merged"}
    assert ".gitignore" in repository.files(end["branch"])


def test_links_are_merged_as_links_where_the_plan_allows_them(
    repository: Repository, root: Root
) -> None:
    text = plan(step("one", "ln -s /etc/passwd l; echo x", allow=["links"]))
    end = carry_out(root, text)
    assert repository.git("ls-tree", end["branch"], "l").startswith("120000")


def test_a_report_that_is_a_link_is_not_followed(repository: Repository, root: Root) -> None:
    script = "mkdir .retinue; ln -s /etc/passwd .retinue/step-0-result.md; echo q > q; echo x"
    end = carry_out(root, plan(step("one", script)))
    report = root.folder(end["task_id"], "one") / "artifacts" / "step-0-result.md"
    assert "root:" not in report.read_text()
    assert set(repository.files(end["branch"])) == {"a.txt", "b/c.txt", "q"}


@pytest.mark.parametrize("spoil", ["gone", "unreadable", "link", "file"])
def test_a_spoilt_workspace_fails_only_its_own_child(
    repository: Repository, root: Root, tmp_path: Path, spoil: str
) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("secret")
    held_up = "until [ -e ../go ]; do sleep 0.02; done; echo z > z; echo x"
    text = plan(
        step("first", held_up, owns=["z"]),
        step("spoilt", "echo y > y; echo x", owns=["y"]),
        step("third", "echo w > w; echo x", owns=["w"]),
        on_failure="continue",
    )
    task = start(root, text)
    until(lambda: root.rows(task).get("spoilt", {}).get("state") == "waiting_for_merge")
    workspace = root.folder(task, "spoilt") / "workspace"
    if spoil == "unreadable":
        os.mkfifo(workspace / "pipe")
        (workspace / "a.txt").unlink()
        os.mkfifo(workspace / "a.txt")
    else:
        shutil.rmtree(workspace)
        if spoil == "link":
            workspace.symlink_to(secret)
        if spoil == "file":
            workspace.write_text("no folder")
    (root.folder(task, "first") / "go").touch()
    end = root.call("run.wait", task=task)
    if spoil != "unreadable":
        workspace.unlink(missing_ok=True)
        workspace.mkdir()  # for the reader, which wants every workspace to be there
    found = reasons(end)
    assert (found["first"], found["third"]) == ("merged", "merged")
    assert found["spoilt"] in ("merge_refused", "policy_violation")
    assert (secret / "key").read_text() == "secret"


def test_a_child_that_ruins_its_own_clone_ruins_nothing_of_ours(
    repository: Repository, root: Root
) -> None:
    repository.git("tag", "v1")
    repository.git("branch", "sibling")
    before = repository.untouched()
    script = """
    git update-ref refs/heads/main HEAD~0; git branch -D sibling; git tag -f v1
    echo z > z; git add z; git commit -qm z; git update-ref refs/heads/main HEAD
    git gc -q --prune=now; git reflog expire --expire=now --all
    for objects in $(cat .git/objects/info/alternates); do
      find "$objects" -type f -exec sh -c 'echo > "$1"' _ {} \\; ; rm -rf "$objects"
    done 2>/dev/null
    rm -rf .git/objects; echo broken > .git/HEAD; echo x
    """
    end = carry_out(root, plan(step("one", script)), config=ISOLATED)
    assert reasons(end) == {"one": "merged"}
    assert repository.files(end["branch"])["z"] == "z"
    assert repository.untouched() == before


def test_every_file_name_survives(repository: Repository, root: Root) -> None:
    script = r"""
    for name in -rf --help 'new
line' "quo'te\"s" 'sp ace' "$(printf 'latin\351')" Case case "$(printf 'n%.0s' $(seq 255))" \
      ':(top)x' '*' '?' '#x' '!y'; do
      mkdir -p d; printf '%s' "$name" > "d/$name"
    done; printf x > ':magic'; echo x
    """
    end = carry_out(root, plan(step("one", script, owns=["d", ":magic"])))
    assert reasons(end) == {"one": "merged"}
    listed = repository.git("ls-tree", "-r", "--name-only", "-z", end["branch"], "d/", code=0)
    assert listed.count("\0") == 14


def test_a_tree_that_is_too_deep_to_be_copied_is_refused_and_nothing_is_left_of_it(
    repository: Repository, root: Root
) -> None:
    dig = "for _ in range(300): os.mkdir('a' * 20); os.chdir('a' * 20)"
    script = f"echo 1 > a; python3 -c \"import os\n{dig}\nopen('f', 'w')\"; echo x"
    deep = step("deep", script, integration="copy", destination="out/here")
    assert reasons(carry_out(root, plan(deep, base=None))) == {"deep": "merge_refused"}
    assert not (repository.path / "out").exists()


@pytest.mark.parametrize("integration", ["copy", "merge"])
def test_a_tree_without_an_end_is_refused_and_the_cause_is_told(
    repository: Repository, root: Root, integration: str
) -> None:
    dig = "for _ in range(2500): os.mkdir('a' * 20); os.chdir('a' * 20)"
    script = f"python3 -c \"import os\n{dig}\nopen('f', 'w')\"; echo x"
    one = step("one", script, integration=integration)
    deep = plan(one) if integration == "merge" else plan(one, base=None)
    end = carry_out(root, deep)
    assert reasons(end) == {"one": "merge_refused"}
    (result,) = end["results"]
    assert result["error"].endswith(("File name too long", "nested more than 500 deep"))
    assert len(result["error"]) <= 1000
    remove_tree(Path(result["workspace"], "a" * 20))  # which nobody else could
