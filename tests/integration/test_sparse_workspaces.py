"""What lies in a workspace that is sparse, and what becomes of changes in it and beyond it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from retinue.core.contract import Outputs, Permissions
from retinue.core.globs import matches_any
from retinue.core.join_result import Change, JoinFailed
from retinue.core.task_config import Boundary
from support import repositories
from support.repositories import ISOLATED, Repository, carry_out, plan, reasons, step
from support.roots import CONFIG, Root
from support.stands import FILES, Stand, held, run

repository, root = repositories.repository, repositories.root
SPARSE = Boundary(workspaces="sparse")
ODD = {
    "top": "",
    "src/a.py": "",
    "src/deep/b.py": "",
    "src/deep/er/c.txt": "",
    "#docs/x": "",
    "!not/x": "",
    "end /x": "",
    "end/x": "",
    "[a]/x": "",
    "a/x": "",
}


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    made = Stand(tmp_path)
    made.missing = "not here"
    return made


def lay_out(stand: Stand, *owned: str) -> Path:
    run(stand.joining.lay_out(stand.subagent(owns=owned, boundary=SPARSE)))
    return stand.workspace()


def take_in(stand: Stand, *owned: str) -> Change:
    change: Change = run(stand.joining.take_in(stand.subagent(owns=owned, boundary=SPARSE)))
    return change


def test_without_overlay_mounts_a_step_has_its_owned_files(stand: Stand) -> None:
    workspace = lay_out(stand, "b/c.txt")
    assert held(workspace) == {"a.txt": "one\n", "b/c.txt": "two\n"}
    inside = partial(stand.repository.git, "-C", str(workspace))
    assert inside("status", "--porcelain") == ""
    assert inside("show", "HEAD:b/d.txt") == "three"
    assert take_in(stand, "b/c.txt").files == 0
    inside("sparse-checkout", "disable")
    assert held(workspace) == FILES
    assert take_in(stand, "b/c.txt").files == 0
    assert not any((stand.root / "tasks/t/repo.git/sparse").iterdir())


def test_where_the_kernel_can_a_step_sees_it_all(stand: Stand) -> None:
    stand.missing = None
    _, below = run(stand.joining.lay_out(stand.subagent(owns=("b/c.txt",), boundary=SPARSE)))
    assert [held(each) for each in below] == [FILES]


@pytest.mark.parametrize(
    "lack",
    [
        {"owns": ()},
        {"owns": ("b/c\n.txt",)},
        {"boundary": Boundary()},
        {"permissions": Permissions(can_spawn_children=True, max_delegation_depth=1)},
        {"copied": True},
    ],
)
def test_a_step_that_needs_every_file_gets_a_whole_checkout(
    stand: Stand, lack: dict[str, Any]
) -> None:
    terms = {"owns": ("b/c.txt",), "boundary": SPARSE} | lack
    copied = terms.pop("copied", False)
    subagent = stand.subagent(**terms)
    if copied:
        outputs: Outputs = replace(subagent.contract.outputs, integration="copy")
        subagent = replace(subagent, contract=replace(subagent.contract, outputs=outputs))
    run(stand.joining.lay_out(subagent))
    assert held(stand.workspace()) == FILES


def test_absent_files_are_unchanged_and_present_files_count(stand: Stand) -> None:
    workspace = lay_out(stand, "b/**", "new/**")
    (workspace / "b/c.txt").write_text("changed\n")
    (workspace / "b/d.txt").unlink()
    (workspace / "new").mkdir()
    (workspace / "new/file").write_text("new\n")
    change = take_in(stand, "b/**", "new/**")
    assert (change.files, sorted(change.brought)) == (3, ["b/c.txt", "new/file"])


@pytest.mark.parametrize("path", ["b/d.txt", "b/brand-new", "a.txt"])
def test_a_change_beyond_owned_paths_is_found_and_refused(stand: Stand, path: str) -> None:
    workspace = lay_out(stand, "b/c.txt")
    (workspace / path).write_text("changed\n")
    with pytest.raises(JoinFailed, match="does not own"):
        take_in(stand, "b/c.txt")


def test_a_copy_of_a_file_that_is_not_checked_out_is_no_change(stand: Stand) -> None:
    workspace = lay_out(stand, "b/c.txt")
    (workspace / "b/d.txt").write_text(FILES["b/d.txt"])
    assert take_in(stand, "b/c.txt").files == 0


@pytest.mark.parametrize(
    "pattern",
    ["src", "src/", "src/*.py", "src/**", "**/b.py", "src/d*/?.py", "src/**/c.txt", "**",
     "#docs", "!not/x", "end ", "end /x", "[a]/x", "[ab]/x", "[!b]/x"],
)  # fmt: skip
def test_all_that_a_pattern_owns_is_checked_out(tmp_path: Path, pattern: str) -> None:
    stand = Stand(tmp_path, ODD)
    stand.missing = "not here"
    there = set(held(lay_out(stand, pattern)))
    assert {path for path in ODD if matches_any([pattern], path)} | {"top"} <= there


@pytest.mark.parametrize(
    "config", [CONFIG, ISOLATED + "    subagent_host_launch_prefix: [env]\n"], ids=["ours", "other"]
)
def test_steps_of_a_plan_merge_their_sparse_workspaces(
    repository: Repository, root: Root, config: str
) -> None:
    repository.write({"docs/one.md": "1\n", "docs/two.md": "2\n", "src/a.py": "a\n"})
    repository.commit("more")
    edits = "test ! -e src && ls docs > docs/list.md && rm docs/one.md && echo done"
    text = plan(
        step("docs", edits, owns=["docs"]),
        step("code", "test ! -e docs && echo b >> src/a.py; echo x", owns=["src/*"],
             depends_on=["docs"]),
    )  # fmt: skip
    end = carry_out(root, text, config=config + "    subagent_workspaces: sparse\n")
    assert reasons(end) == {"docs": "merged", "code": "merged"}, end["results"]
    assert repository.files(end["branch"]) == {
        "a.txt": "one\ntwo\nthree",
        "docs/list.md": "list.md\none.md\ntwo.md",
        "docs/two.md": "2",
        "src/a.py": "a\nb",
    }
