"""A workspace over a base: what is seen in it, and how it becomes whole, however often it dies."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from retinue.domain.join import JoinFailed
from retinue.workspaces import layers
from retinue.workspaces.layers import Below
from retinue.workspaces.survey import Left, Survey, Surveyor

COMMIT = "c0ffee" + "0" * 34
BASE = {
    "kept": "k",
    "changed": "old",
    "removed": "r",
    "anew/gone": "g",
    "anew/back": "b",
    "marked/one": "1",
    "deep/er/kept": "d",
    "deep/er/changed": "c",
    "file": "f",
    "folder/in": "i",
    "sub/.keep": "",
}
SEEN = {
    "kept": "k",
    "changed": "new",
    "anew/back": "again",
    "deep/er/kept": "d",
    "deep/er/changed": "C",
    "deep/new": "n",
    "file/now": "a folder",
    "folder": "now a file",
    "sub/.keep": "",
    "link": "-> kept",
}


class Died(Exception):
    """As a process that is killed."""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base as `bases` makes it, with its files."""
    base = tmp_path / "bases" / COMMIT
    for path, text in BASE.items():
        _write(base / layers.TREE / path, text)
    (base / layers.TREE / "kept").chmod(0o755)
    os.utime(base / layers.TREE / "kept", (1000, 1000))
    return base


@pytest.fixture
def workspace(tmp_path: Path, base: Path) -> Path:
    """As the kernel leaves one after all of what can happen to a file."""
    workspace = tmp_path / "tasks" / "t" / "agents" / "one" / "workspace"
    workspace.mkdir(parents=True)
    layers.put_over(workspace, base)
    for path in ("changed", "anew/back", "deep/er/changed", "deep/new", "file/now", "folder"):
        _write(workspace / path, SEEN[path])
    (workspace / "link").symlink_to("kept")
    for path in ("removed", "marked"):
        os.mknod(workspace / path, stat.S_IFCHR, 0)
    for path in ("anew", "file"):
        os.setxattr(workspace / path, "user.overlay.opaque", b"y")
    return workspace


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _held(workspace: Path) -> dict[str, str]:
    return {
        str(path.relative_to(workspace)): f"-> {path.readlink()}"
        if path.is_symlink()
        else path.read_text()
        for path in workspace.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }


def _make_whole(workspace: Path) -> None:
    """As `bases` does it, with a checkout of all that its base has."""
    base, fill = layers.base_of(workspace), layers.fill_of(workspace)
    if base is None:
        return
    if not layers.is_filled(workspace):
        with suppress(FileNotFoundError):
            shutil.rmtree(fill)
        for path in _names_below(base):
            _write(fill / path, "")
            shutil.copy2(layers.of_base(base).find(path) or "", fill / path)
    layers.make_whole(workspace)
    layers.let_go(workspace)


def _names_below(base: Path) -> list[str]:
    bare = base.parents[1] / "tasks/t/agents/bare/workspace"  # over the same, with nothing in it
    bare.mkdir(parents=True, exist_ok=True)
    layers.put_over(bare, base)
    return layers.names(bare, 1000)


def test_what_is_seen_is_found_where_it_is(workspace: Path, base: Path) -> None:
    tree = base / layers.TREE
    places = {
        "kept": tree,
        "deep/er/kept": tree,
        "changed": workspace,
        "removed": workspace,  # where there is only its mark
        "anew/gone": workspace,
        "marked/one": workspace,
        "folder/in": workspace,
        "file": workspace,
        "nowhere": workspace,
    }
    assert {path: layers.holder_of(workspace, path) for path in places} == places


@pytest.mark.parametrize(
    "path", ["", ".", f"../../../../../bases/{COMMIT}/tree/kept", "/etc/passwd", "a\0b"]
)
def test_no_path_leads_out_of_a_workspace_or_its_base(workspace: Path, path: str) -> None:
    assert layers.holder_of(workspace, path) == workspace


@pytest.mark.parametrize("place", ["../../../../../bases/--output=x", "/etc", "../../x"])
def test_a_link_that_is_not_ours_is_no_base(workspace: Path, place: str) -> None:
    link = workspace.parent / layers.FOLDER / layers.BASE
    link.unlink()
    link.symlink_to(place)
    assert layers.base_of(workspace) is None
    assert layers.below(workspace) is None


def test_names_are_those_that_are_seen(workspace: Path) -> None:
    assert sorted(layers.names(workspace, 100)) == sorted(SEEN)
    assert len(layers.names(workspace, 3)) == 3
    for folder in ("deep", "deep/er", "anew"):
        inside = sorted(path for path in SEEN if path.startswith(f"{folder}/"))
        assert sorted(layers.names(workspace, 100, inside=folder)) == inside
    for path in ("kept", "deep/er/kept", "removed", "kept/x", ".git", "..", "/", "deep/", "."):
        assert layers.names(workspace, 100, inside=path) == ([path] if path in SEEN else [])


def test_a_workspace_becomes_whole(workspace: Path, base: Path) -> None:
    _make_whole(workspace)
    assert _held(workspace) == SEEN
    kept = (workspace / "kept").stat()
    assert (kept.st_mode & 0o777, kept.st_mtime) == (0o755, 1000)
    assert not layers.hides_below(workspace / "anew")
    assert layers.base_of(workspace) is None
    assert not (workspace.parent / layers.FOLDER).exists()
    assert {path: (base / layers.TREE / path).read_text() for path in BASE} == BASE


def test_a_base_over_another_is_seen_as_one(workspace: Path, base: Path) -> None:
    upper = base.with_name("d" * 40)
    _write(upper / layers.TREE / "deep/er/kept", "D")
    _write(upper / layers.TREE / "deep/more", "m")
    for path in ("kept", "sub"):
        os.mknod(upper / layers.TREE / path, stat.S_IFCHR, 0)
    (upper / layers.ON).symlink_to(f"../{base.name}")
    (workspace.parent / layers.FOLDER / layers.BASE).unlink()
    (workspace.parent / layers.FOLDER / layers.BASE).symlink_to(
        f"../../../../../bases/{upper.name}"
    )
    seen = {path: text for path, text in SEEN.items() if path not in ("kept", "sub/.keep")}
    seen |= {"deep/er/kept": "D", "deep/more": "m"}
    assert sorted(layers.names(workspace, 100)) == sorted(seen)
    assert layers.holder_of(workspace, "sub/.keep") == workspace
    assert layers.holder_of(workspace, "deep/more") == upper / layers.TREE
    _make_whole(workspace)
    assert _held(workspace) == seen
    assert not (workspace / "sub").exists()


@pytest.mark.parametrize("point", range(20))
def test_whoever_dies_while_making_it_whole_leaves_nothing_wrong(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, point: int
) -> None:
    left = [point]

    def dying(act: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Died
            return act(*given, **more)

        return counted

    with monkeypatch.context() as patched:
        for name in ("rename", "unlink", "removexattr", "rmdir"):
            patched.setattr(layers.os, name, dying(getattr(os, name)))
        with suppress(Died):
            _make_whole(workspace)
    assert sorted(layers.names(workspace, 100)) == sorted(SEEN)  # as seen through, at any time
    _make_whole(workspace)
    assert _held(workspace) == SEEN


def test_a_survey_tells_what_became_of_the_base(workspace: Path, base: Path) -> None:
    seen = _survey(workspace, base)
    assert {each.path: each.known for each in seen.left} == {
        "changed": True,
        "anew/back": True,
        "deep/er/changed": True,
        "deep/new": False,
        "file/now": False,
        "folder": False,
        "link": False,
    }
    assert sorted(seen.gone) == ["anew", "file", "folder", "marked", "removed"]
    assert {each.mode for each in seen.left} == {0o100644, 0o120000}


def test_a_survey_leaves_out_what_is_not_the_parents(workspace: Path, base: Path) -> None:
    for path in (".git/hooks/evil", ".retinue/team/x", "report.md", "sub/.git/config"):
        _write(workspace / path, "x")
    os.mkfifo(workspace / "pipe")
    seen = _survey(workspace, base)
    assert seen.nested == ["sub/.git"]
    paths = {each.path for each in seen.left}
    assert not paths & {"report.md", "pipe", "sub/.git/config", ".git/hooks/evil"}


def test_a_submodule_stays_whatever_lies_in_its_folder(workspace: Path, base: Path) -> None:
    (base / layers.TREE / "anew" / "module").mkdir()
    _write(workspace / "anew/module/x", "x")
    _write(workspace / "other/x", "x")
    seen = _survey(workspace, base, {"anew/module": "1" * 40, "other": "2" * 40})
    assert seen.kept == ["anew/module"]
    assert not {each.path for each in seen.left} & {"anew/module/x", "other/x"}


def test_a_file_that_became_something_else_is_refused(workspace: Path, base: Path) -> None:
    os.mkfifo(workspace / "kept")
    with pytest.raises(JoinFailed, match="kept is no plain file"):
        _survey(workspace, base)


def test_a_link_of_the_base_is_not_followed_into_what_is_known(
    workspace: Path, base: Path, tmp_path: Path
) -> None:
    _write(tmp_path / "elsewhere" / "secret", "s")
    (base / layers.TREE / "way").symlink_to(tmp_path / "elsewhere")
    _write(workspace / "way/secret", "mine")
    os.setxattr(workspace / "way", "user.overlay.opaque", b"y")
    seen = _survey(workspace, base)
    assert "way" in seen.gone
    assert Left(path="way/secret", mode=0o100644, size=4, known=False) in seen.left


def _survey(workspace: Path, base: Path, submodules: dict[str, str] | None = None) -> Survey:
    under = Below((base / layers.TREE,))
    return Surveyor(workspace, under, submodules or {}, "report.md").survey()
