"""Overlay workspaces: visible files, surveys, and `make_whole` with crashes."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import LimitExceeded
from retinue.core.join_result import JoinFailed
from retinue.workspaces import overlay
from retinue.workspaces.git.import_overlay import Survey, Surveyor, WorkspaceFile
from retinue.workspaces.overlay import LowerLayers

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
    """Simulated kill of the process."""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base with its files, as `SharedCheckouts` makes it."""
    base = tmp_path / "bases" / COMMIT
    for path, text in BASE.items():
        _write(base / overlay.TREE / path, text)
    (base / overlay.TREE / "kept").chmod(0o755)
    os.utime(base / overlay.TREE / "kept", (1000, 1000))
    return base


@pytest.fixture
def workspace(tmp_path: Path, base: Path) -> Path:
    """A workspace with every kind of change, as the kernel leaves it."""
    workspace = tmp_path / "tasks" / "t" / "agents" / "one" / "workspace"
    workspace.mkdir(parents=True)
    overlay.lay_over(workspace, base)
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
    """Fill the workspace as `SharedCheckouts` does, from a checkout of its base."""
    base, fill = overlay.find_base(workspace), overlay.get_fill_folder(workspace)
    if base is None:
        return
    if not overlay.is_filled(workspace):
        with suppress(FileNotFoundError):
            shutil.rmtree(fill)
        for path in _names_below(base):
            _write(fill / path, "")
            shutil.copy2(overlay.list_layers(base).find(path) or "", fill / path)
    overlay.make_whole(workspace)
    overlay.detach_workspace(workspace)


def _names_below(base: Path) -> list[str]:
    bare = base.parents[1] / "tasks/t/agents/bare/workspace"  # over the same, with nothing in it
    bare.mkdir(parents=True, exist_ok=True)
    overlay.lay_over(bare, base)
    return overlay.list_names(bare, 1000)


def test_find_holder_returns_the_layer_that_shows_a_path(workspace: Path, base: Path) -> None:
    tree = base / overlay.TREE
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
    assert {path: overlay.find_holder(workspace, path) for path in places} == places


@pytest.mark.parametrize(
    "path", ["", ".", f"../../../../../bases/{COMMIT}/tree/kept", "/etc/passwd", "a\0b"]
)
def test_no_path_leads_out_of_a_workspace_or_its_base(workspace: Path, path: str) -> None:
    assert overlay.find_holder(workspace, path) == workspace


@pytest.mark.parametrize("place", ["../../../../../bases/--output=x", "/etc", "../../x"])
def test_a_foreign_link_is_not_accepted_as_a_base(workspace: Path, place: str) -> None:
    link = workspace.parent / overlay.FOLDER / overlay.BASE
    link.unlink()
    link.symlink_to(place)
    assert overlay.find_base(workspace) is None
    assert overlay.find_below(workspace) is None


def test_list_names_returns_the_visible_files(workspace: Path) -> None:
    assert sorted(overlay.list_names(workspace, 100)) == sorted(SEEN)
    assert len(overlay.list_names(workspace, 3)) == 3
    for folder in ("deep", "deep/er", "anew"):
        inside = sorted(path for path in SEEN if path.startswith(f"{folder}/"))
        assert sorted(overlay.list_names(workspace, 100, inside=folder)) == inside
    for path in ("kept", "deep/er/kept", "removed", "kept/x", ".git", "..", "/", "deep/", "."):
        assert overlay.list_names(workspace, 100, inside=path) == ([path] if path in SEEN else [])


def test_make_whole_adds_the_missing_files(workspace: Path, base: Path) -> None:
    _make_whole(workspace)
    assert _held(workspace) == SEEN
    kept = (workspace / "kept").stat()
    assert (kept.st_mode & 0o777, kept.st_mtime) == (0o755, 1000)
    assert not overlay.is_opaque(workspace / "anew")
    assert overlay.find_base(workspace) is None
    assert not (workspace.parent / overlay.FOLDER).exists()
    assert {path: (base / overlay.TREE / path).read_text() for path in BASE} == BASE


def test_a_base_over_a_lower_base_shows_both(workspace: Path, base: Path) -> None:
    upper = base.with_name("d" * 40)
    _write(upper / overlay.TREE / "deep/er/kept", "D")
    _write(upper / overlay.TREE / "deep/more", "m")
    for path in ("kept", "sub"):
        os.mknod(upper / overlay.TREE / path, stat.S_IFCHR, 0)
    (upper / overlay.ON).symlink_to(f"../{base.name}")
    (workspace.parent / overlay.FOLDER / overlay.BASE).unlink()
    (workspace.parent / overlay.FOLDER / overlay.BASE).symlink_to(
        f"../../../../../bases/{upper.name}"
    )
    seen = {path: text for path, text in SEEN.items() if path not in ("kept", "sub/.keep")}
    seen |= {"deep/er/kept": "D", "deep/more": "m"}
    assert sorted(overlay.list_names(workspace, 100)) == sorted(seen)
    assert overlay.find_holder(workspace, "sub/.keep") == workspace
    assert overlay.find_holder(workspace, "deep/more") == upper / overlay.TREE
    _make_whole(workspace)
    assert _held(workspace) == seen
    assert not (workspace / "sub").exists()


@pytest.mark.parametrize("point", range(20))
def test_make_whole_can_be_repeated_after_a_crash_at_any_step(
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
            patched.setattr(overlay.os, name, dying(getattr(os, name)))
        with suppress(Died):
            _make_whole(workspace)
    assert sorted(overlay.list_names(workspace, 100)) == sorted(
        SEEN
    )  # as seen through, at any time
    _make_whole(workspace)
    assert _held(workspace) == SEEN


def test_a_survey_lists_changed_and_removed_files_of_the_base(workspace: Path, base: Path) -> None:
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


def test_a_survey_leaves_out_private_files(workspace: Path, base: Path) -> None:
    for path in (".git/hooks/evil", ".retinue/team/x", "report.md", "sub/.git/config"):
        _write(workspace / path, "x")
    os.mkfifo(workspace / "pipe")
    seen = _survey(workspace, base)
    assert seen.nested == ["sub/.git"]
    paths = {each.path for each in seen.left}
    assert not paths & {"report.md", "pipe", "sub/.git/config", ".git/hooks/evil"}


def test_a_submodule_is_kept_whatever_its_folder_contains(workspace: Path, base: Path) -> None:
    (base / overlay.TREE / "anew" / "module").mkdir()
    _write(workspace / "anew/module/x", "x")
    _write(workspace / "other/x", "x")
    seen = _survey(workspace, base, {"anew/module": "1" * 40, "other": "2" * 40})
    assert seen.kept == ["anew/module"]
    assert not {each.path for each in seen.left} & {"anew/module/x", "other/x"}


def test_a_file_replaced_by_a_special_file_is_refused(workspace: Path, base: Path) -> None:
    os.mkfifo(workspace / "kept")
    with pytest.raises(JoinFailed, match="kept is not a plain file"):
        _survey(workspace, base)


def test_a_link_of_the_base_is_not_followed(workspace: Path, base: Path, tmp_path: Path) -> None:
    _write(tmp_path / "elsewhere" / "secret", "s")
    (base / overlay.TREE / "way").symlink_to(tmp_path / "elsewhere")
    _write(workspace / "way/secret", "mine")
    os.setxattr(workspace / "way", "user.overlay.opaque", b"y")
    seen = _survey(workspace, base)
    assert "way" in seen.gone
    assert WorkspaceFile(path="way/secret", mode=0o100644, size=4, known=False) in seen.left


def _survey(workspace: Path, base: Path, submodules: dict[str, str] | None = None) -> Survey:
    under = LowerLayers((base / overlay.TREE,))
    return Surveyor(workspace, under, submodules or {}, "report.md").scan_workspace()


def test_a_walk_visits_a_bounded_number_of_files_and_folders(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / "some" / str(number)).mkdir(parents=True)
    for number in range(30):
        (tmp_path / "files" / str(number)).parent.mkdir(exist_ok=True)
        (tmp_path / "files" / str(number)).touch()
    assert len(overlay.list_names(tmp_path, 100, most_entries=100)) == 30
    for inside, most_entries in (("", 90), ("some", 50), ("files", 30)):
        with pytest.raises(LimitExceeded) as refused:
            overlay.list_names(tmp_path, 100, inside=inside, most_entries=most_entries)
        assert refused.value.code == "too_many_files"
