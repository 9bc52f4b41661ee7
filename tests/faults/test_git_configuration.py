"""Repositories whose configuration or files would have git run commands: git runs none of them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retinue.workspaces.git.git_command import Git
from retinue.workspaces.git.task_repository import TrustedRepository
from support import repositories
from support.repositories import ENVIRONMENT, ISOLATED, Repository, carry_out, plan, reasons, step
from support.roots import Root, held, sh
from support.scenes import Scene, needs_python
from support.scripted import Heard, Models, Said, answer, call
from support.teams import models

__all__ = ["models"]

repository = repositories.repository
ONE = plan(step("one", "echo b > b; echo x"))
PLANNING = "enable_subagents: true\nenable_agent_task_planning: true"
PROMPT = "Plan something"
# A partial clone that lacks its HEAD: git would fetch it through a command of the configuration.
LAZY = """
[core]
  repositoryformatversion = 1
[extensions]
  partialClone = origin
[remote "origin"]
  url = ext::sh -c touch% {mark}
  promisor = true
  fetch = +refs/heads/*:refs/remotes/origin/*
[protocol]
  allow = always
[protocol "ext"]
  allow = always
"""


@pytest.fixture
def root(repository: Repository) -> Iterator[Root]:
    with held(repository.path / ".retinue") as root:
        yield root


def make_lazy(repository: Path, mark: Path) -> None:
    """The repository fetches what it lacks by a command that leaves a mark, and lacks its HEAD."""
    subprocess.run(["git", "init", "-q", "-b", "main", repository], env=ENVIRONMENT, check=True)
    with (repository / ".git" / "config").open("a") as config:
        config.write(LAZY.format(mark=mark))
    (repository / ".git" / "refs" / "heads" / "main").write_text("1" * 40 + "\n")


def test_a_lazy_fetch_runs_no_command_of_the_repository(
    root: Root, repository: Repository, tmp_path: Path
) -> None:
    other, mark = tmp_path / "other", tmp_path / "mark"
    make_lazy(other, mark)
    shown = subprocess.run(["git", "-C", other, "cat-file", "-e", "HEAD"], env=ENVIRONMENT)
    assert shown.returncode and mark.exists()  # git by itself does run it
    mark.unlink()
    text = plan(step("one", "echo x"), base={"repository": str(other)})
    assert root.refusal("run.start", plan_text=text).code == "unfit_repository"
    assert not mark.exists()


@pytest.mark.parametrize("how", ["apply", "include_dirty"])
def test_no_program_of_the_repository_runs_but_its_filters(
    root: Root, repository: Repository, tmp_path: Path, how: str
) -> None:
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\ntouch {tmp_path}/mark-"$(basename "$0")"\n')
    program.chmod(0o755)
    for key in (
        "core.fsmonitor",
        "core.sshCommand",
        "core.gitProxy",
        "core.editor",
        "core.pager",
        "core.askPass",
        "core.alternateRefsCommand",
        "gpg.program",
        "gpg.ssh.program",
        "credential.helper",
        "diff.external",
        "diff.all.command",
        "diff.all.textconv",
        "merge.all.driver",
    ):
        repository.git("config", key, str(program))
    repository.git("config", "merge.verifySignatures", "false")
    repository.git("config", "log.showSignature", "true")
    hooks = repository.path / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for hook in ("reference-transaction", "post-merge", "post-checkout", "post-index-change"):
        (hooks / hook).symlink_to(program)
    (repository.path / ".git" / "info" / "attributes").write_text("* diff=all merge=all\n")
    if how == "include_dirty":
        repository.write({"a.txt": "changed\n"})
    end = carry_out(root, ONE, **{how: True})
    assert reasons(end) == {"one": "merged"}
    assert end.get("applied", True), end
    assert not list(tmp_path.glob("mark*"))


@pytest.mark.parametrize("where", ["folder", "pointer", "objects"])
def test_a_repository_in_a_root_is_never_a_base(
    root: Root, repository: Repository, tmp_path: Path, where: str
) -> None:
    end = carry_out(root, ONE)
    workspace = root.folder(end["task_id"], "one") / "workspace"
    other = tmp_path / "other"
    if where == "folder":
        other = workspace
        make_lazy(workspace / "new", tmp_path / "mark")
    elif where == "pointer":
        make_lazy(workspace / "new", tmp_path / "mark")
        other.mkdir()
        (other / ".git").write_text(f"gitdir: {workspace}/new/.git\n")
    else:
        Repository(other)
        (other / ".git" / "objects").rename(workspace / "objects")
        (other / ".git" / "objects").symlink_to(workspace / "objects")
    text = plan(step("one", "echo x"), base={"repository": str(other)})
    refused = root.refusal("run.start", plan_text=text)
    assert refused.code == "unfit_repository" and "where subagents write" in refused.message
    assert not (tmp_path / "mark").exists()


def test_a_bare_repository_is_used_only_where_a_plan_names_it(tmp_path: Path) -> None:
    outer = Repository(tmp_path / "outer")
    words = ["git", "clone", "-q", "--bare", outer.path, outer.path / "docs"]
    subprocess.run(words, env=ENVIRONMENT, check=True)
    with held(outer.path / "docs" / ".retinue") as root:
        refused = root.refusal("run.start", plan_text=ONE)
        assert (refused.code, "is a bare repository" in refused.message) == (
            "unfit_repository",
            True,
        )
        text = plan(step("one", "echo b > b; echo x"), base={"repository": "../docs"})
        assert reasons(carry_out(root, text)) == {"one": "merged"}


def test_a_child_is_not_shown_a_folder_that_an_alternate_names(
    root: Root, repository: Repository, tmp_path: Path
) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (private / "secret.txt").write_text("s3cret\n")
    alternates = repository.path / ".git" / "objects" / "info" / "alternates"
    alternates.write_text(f"{private}\n")
    refused = root.refusal("run.start", plan_text=ONE, config_text=ISOLATED.format(limit=2))
    assert refused.code == "unfit_repository" and str(private) in refused.message
    # One that is added later is not shown either.
    ours = TrustedRepository(Git(), tmp_path / "repo.git")
    ours.make(repository.path / ".git" / "objects")
    assert ours.list_lent() == (ours.objects, repository.path / ".git" / "objects")


def test_a_repository_with_a_real_alternate_is_worked_on(tmp_path: Path) -> None:
    Repository(tmp_path / "origin")
    words = ["git", "clone", "-q", "--shared", "origin", "copy"]
    subprocess.run(words, cwd=tmp_path, env=ENVIRONMENT, check=True)
    with held(tmp_path / "copy" / ".retinue") as root:
        text = plan(step("one", "git log --format=%s > b && echo x"))
        end = carry_out(root, text, config=ISOLATED)
        assert reasons(end) == {"one": "merged"}


@needs_python
def test_a_repository_that_a_child_made_is_not_used_as_root_or_as_a_user(scene: Scene) -> None:
    """Its files belong to the steward's own user where that is no root, so only the place tells."""
    mark = scene.place / "mark"
    made = f"""
    git init -q -b main .; cat >> .git/config <<'X'
{LAZY.format(mark=mark)}X
    echo {"1" * 40} > .git/refs/heads/main; echo x
    """
    task = scene.task()
    (result,) = scene.root.run(task, sh(made))
    assert result["status"] == "completed", result
    workspace = Path(result["workspace"])
    assert "ext::sh" in (workspace / ".git" / "config").read_text()
    for place in (workspace, workspace / ".git"):
        text = plan(step("one", "echo x"), base={"repository": str(place)})
        refused = scene.root.refusal("run.start", plan_text=text, config_text="{}")
        assert (refused.code, "where subagents write" in refused.message) == (
            "unfit_repository",
            True,
        )
    assert not mark.exists()


def planned(root: Root, models: Models, *plans: dict[str, Any]) -> list[str]:
    """What a planning team is told of each plan it submits."""
    told: list[str] = []

    def boss(heard: Heard) -> Said:
        if PROMPT not in heard.words:
            return answer("x")
        told.append(heard.last)
        at = len(told) - 1
        return call("submit_plan", **plans[at]) if at < len(plans) else answer("done")

    models.script = boss
    config = models.config("boss", coordination=PLANNING)
    begun = root.call("run.begin", prompt=PROMPT, config_text=config)
    root.call("run.wait", task=begun["task_id"])
    return told[1:]


def test_a_planning_team_names_no_repository_but_the_project_s_own(
    root: Root, repository: Repository, models: Models, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    make_lazy(repository.path / "vendor", mark)
    root.call("task.list")
    inside = root.path / "elsewhere"
    make_lazy(inside, mark)
    one = {"id": "one", "command": ["echo", "x"], "owns": ["one"], "retries": 0}
    places = [str(inside.relative_to(repository.path)), "vendor", "vendor/.git"]
    asked = [{"goal": "g", "base": {"repository": p}, "steps": [one]} for p in places]
    told = planned(root, models, *asked, {"goal": "g", "base": {}, "steps": [one]})
    assert "where subagents write" in told[0]
    assert "not in the project's own repository" in told[1]
    assert "not in the project's own repository" in told[2]
    assert "[one]" in told[3] and "refused" not in told[3]
    assert not mark.exists()


def test_a_planning_team_lifts_no_restriction_on_what_is_merged(
    root: Root, repository: Repository, models: Models
) -> None:
    def made(script: str, **more: Any) -> dict[str, Any]:
        one = {"id": "one", "command": ["sh", "-c", f"{script}; echo x"], "owns": ["k"]}
        return {"goal": "g", "base": {}, "steps": [one | {"retries": 0} | more]}

    link = "ln -s /etc/passwd k"
    told = planned(
        root,
        models,
        *(made(link, allow=[what]) for what in ("links", "secrets", "submodules")),
        made("truncate -s 60M k") | {"max_file_mb": 100},
        made("true", secrets=["PATH"]),
        made(link),
    )
    for text, what in zip(told, ("links", "secrets", "submodules"), strict=False):
        assert f"only a user can allow {what}" in text
    assert "only a user can allow more than 50" in told[3]
    assert "only a user can give secrets" in told[4]
    assert "[one] policy_violation" in told[5]
