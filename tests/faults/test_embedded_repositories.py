"""Output that brings a repository of its own: git would run what its configuration names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from retinue.cli import tables
from retinue.delegation import answer_text
from retinue.delegation.result_view import AnswerBudget
from support import repositories
from support.repositories import ISOLATED, Repository, carry_out, plan, reasons, step
from support.roots import Root, held, sh

repository = repositories.repository
CONFIG = "printf '[core]\\n\\tfsmonitor = touch /tmp/ran\\n' > {folder}/config; "
BARE = (
    "mkdir -p {folder}/objects/00 {folder}/refs/heads; echo 'ref: refs/heads/main' > {folder}/HEAD;"
    " touch {folder}/objects/00/x {folder}/refs/heads/x; " + CONFIG
)
NESTED = "mkdir -p out/lib; git -C out/lib init -q; " + CONFIG.format(folder="out/lib/.git")


@pytest.fixture
def root(repository: Repository) -> Iterator[Root]:
    with held(repository.path / ".retinue") as root:
        yield root


def bare(folder: str) -> str:
    return BARE.format(folder=folder)


@pytest.mark.parametrize("config", [repositories.CONFIG, ISOLATED], ids=["inherited", "isolated"])
@pytest.mark.parametrize(
    ("script", "words"),
    [
        (NESTED, "a git folder of its own: out/lib/.git"),
        ("mkdir -p out/.GIT; echo x > out/.GIT/config; ", "a git folder of its own: out/.GIT"),
        ("mkdir .Git; echo x > .Git/config; ", "a git folder of its own: .Git"),
        ("mkdir 'out.'; mkdir -p 'o/.git '; echo > 'o/.git /x'; ", "a git folder of its own"),
        ("mkdir out; echo 'gitdir: /tmp/evil' > out/.git; ", "a git folder of its own: out/.git"),
        (bare("out/lib"), "a bare repository of its own: out/lib"),
        (bare("out").replace("HEAD", "head"), "a bare repository of its own: out"),
        (bare("."), "a bare repository of its own: ."),
        ("mkdir o; touch o/HEAD; echo ../x > o/commondir; ", "a bare repository of its own: o"),
    ],
)
def test_a_copy_that_holds_a_repository_is_refused(
    repository: Repository, root: Root, script: str, words: str, config: str
) -> None:
    text = plan(
        step("one", f"{script}echo x", integration="copy", destination="made"),
        base=None,
    )
    end = carry_out(root, text, config=config)
    assert reasons(end) == {"one": "policy_violation"}
    assert words in end["results"][0]["error"]
    assert not (repository.path / "made").exists()


@pytest.mark.parametrize(
    "script", ["git init -q; ", "echo 'gitdir: /tmp/evil' > .git; "], ids=["folder", "file"]
)
def test_a_copy_leaves_the_workspace_s_own_git_folder_behind(
    repository: Repository, root: Root, script: str
) -> None:
    text = plan(
        step("one", f"{script}echo 1 > kept; echo x", integration="copy", destination="made"),
        base=None,
    )
    assert reasons(carry_out(root, text)) == {"one": "copied"}
    assert [path.name for path in (repository.path / "made").iterdir()] == ["kept"]


@pytest.mark.parametrize("config", [repositories.CONFIG, ISOLATED], ids=["inherited", "isolated"])
@pytest.mark.parametrize("folder", ["lib", "a/b/lib", "."])
def test_a_merge_that_brings_a_bare_repository_is_refused(
    repository: Repository, root: Root, folder: str, config: str
) -> None:
    end = carry_out(root, plan(step("one", f"{bare(folder)}echo x")), config=config)
    assert reasons(end) == {"one": "policy_violation"}
    assert f"a bare repository of its own: {folder}" in end["results"][0]["error"]
    note = end["results"][0]["integration"]["workspace_note"]
    assert note.startswith("do not run git in the workspace")


def test_a_result_warns_against_running_git_in_the_workspace(
    repository: Repository, root: Root
) -> None:
    task = root.create_task()
    cut = sh("sleep 60", integration="merge", timeout_seconds=0.3)
    (result,) = root.run(task, cut)
    assert result["status"] == "timeout"
    assert "do not run git in the workspace" in tables.format_result(result)
    view = AnswerBudget(8000, "fetch").shape_result(result)
    assert "without running git there" in view["next"]
    assert view["next"] in answer_text.format_result(view)
    (plain,) = root.run(task, sh("echo x"))
    assert "run git" not in tables.format_result(plain)


def test_a_change_to_a_bare_repository_of_the_project_is_refused(
    repository: Repository, root: Root
) -> None:
    parts = {"lib/HEAD": "ref: refs/heads/main\n", "lib/objects/00/x": "", "lib/refs/heads/x": ""}
    repository.write(parts | {"lib/notes.txt": "1\n", "lib/config": ""})
    repository.commit("a fixture")
    changed = plan(step("one", f"{CONFIG.format(folder='lib')}echo x"))
    assert reasons(carry_out(root, changed)) == {"one": "policy_violation"}
    beside = plan(step("one", "echo 2 > lib/notes.txt; echo x"))
    assert reasons(carry_out(root, beside)) == {"one": "merged"}
    allowed = plan(step("one", f"{CONFIG.format(folder='lib')}echo x", allow=["submodules"]))
    assert reasons(carry_out(root, allowed)) == {"one": "merged"}


def test_two_steps_do_not_complete_a_bare_repository_together(
    repository: Repository, root: Root
) -> None:
    first = "mkdir -p lib/objects/00; touch lib/HEAD lib/objects/00/x; echo x"
    second = f"mkdir -p lib/refs/heads; touch lib/refs/heads/x; {CONFIG.format(folder='lib')}echo x"
    text = plan(
        step("one", first, owns=["lib/HEAD", "lib/objects"]),
        step("two", second, owns=["lib/refs", "lib/config"]),
        on_failure="continue",
    )
    assert reasons(carry_out(root, text)) == {"one": "merged", "two": "policy_violation"}


def test_a_bare_repository_that_git_ignores_stays_behind(
    repository: Repository, root: Root
) -> None:
    end = carry_out(root, plan(step("one", f"{bare('lib')}echo lib/ > .gitignore; echo x")))
    assert reasons(end) == {"one": "merged"}
    assert set(repository.files(end["branch"])) == {"a.txt", ".gitignore"}
