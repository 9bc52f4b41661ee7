"""Which folders are roots, and which could become one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from retinue.core.errors import BadInput, StorageFailed
from retinue.mcp_server.http_transport import TOKEN_FILE, read_token
from retinue.settings import (
    MAX_PATH_BYTES,
    REMOVED_IF_UNUSED,
    find_root,
    read_settings,
    require_usable,
    was_used,
)
from retinue.store.database import DATABASE, Database
from retinue.store.root_lock import prepare_root
from retinue.trust import mark_root


def test_a_root_that_a_server_made_its_token_in_is_one_to_be_used(tmp_path: Path) -> None:
    root = tmp_path / "mine"
    token = read_token(root, make=True)
    require_usable(root)
    assert read_token(root, make=True) == token and not was_used(root)


def test_no_token_is_made_in_a_folder_of_other_things(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BadInput) as refused:
        read_token(tmp_path, make=True)
    assert refused.value.code == "bad_root" and not (tmp_path / TOKEN_FILE).exists()


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_link_pipe_or_folder_in_place_of_the_token_is_refused(tmp_path: Path, kind: str) -> None:
    other, token = tmp_path / "other", tmp_path / ".retinue" / TOKEN_FILE
    other.write_text("a text of more than sixteen characters")
    other.chmod(0o644)
    token.parent.mkdir(mode=0o700)
    mark_root(token.parent, os.environ)
    {"link": lambda: token.symlink_to(other), "pipe": lambda: os.mkfifo(token)}.get(
        kind, token.mkdir
    )()
    with pytest.raises(StorageFailed) as refused:
        read_token(token.parent, make=True)
    assert str(token) in refused.value.message
    assert other.stat().st_mode & 0o777 == 0o644


def test_a_root_has_as_long_a_path_as_a_database_can_have(tmp_path: Path) -> None:
    parent = tmp_path.joinpath(*["x" * 99] * 3).resolve()
    parent /= "y" * (MAX_PATH_BYTES - len(str(parent)) - len("/") - len("/.retinue"))
    prepare_root(parent / ".retinue")
    Database(parent / ".retinue" / DATABASE).close()
    with pytest.raises(BadInput) as refused:
        prepare_root(parent / ".retinue2")
    assert refused.value.code == "bad_root" and not (parent / ".retinue2").exists()


def test_a_link_by_the_name_of_a_root_makes_none_of_a_folder_of_other_things(
    tmp_path: Path,
) -> None:
    other, link = tmp_path / "other", tmp_path / ".retinue"
    other.mkdir(mode=0o755)
    link.symlink_to(other)
    (other / "notes.txt").write_text("mine")
    with pytest.raises(BadInput) as refused:
        prepare_root(link)
    assert refused.value.code == "bad_root"
    assert (os.listdir(other), other.stat().st_mode & 0o777) == (["notes.txt"], 0o755)
    (other / "notes.txt").unlink()
    other.chmod(0o700)
    prepare_root(link)
    assert (other / "tasks").is_dir()


@pytest.mark.parametrize("name", ["retinue.db", "steward.lock", "tasks/t/task.yaml"])
def test_a_folder_is_a_root_by_files_that_only_roots_have(tmp_path: Path, name: str) -> None:
    assert not was_used(tmp_path)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).touch()
    assert was_used(tmp_path)
    (tmp_path / "anything").touch()
    require_usable(tmp_path)


@pytest.mark.parametrize("socket", ["/steward.sock", "steward.sock", ".", "/"])
def test_a_way_to_a_steward_that_leads_nowhere_is_bad_input(tmp_path: Path, socket: str) -> None:
    with pytest.raises(BadInput, match="RETINUE_STEWARD"):
        find_root(None, tmp_path, {"RETINUE_STEWARD": socket})


@pytest.mark.parametrize("seconds", ["nan", "-1", "0", "soon", ""])
def test_a_steward_that_would_end_before_it_is_asked_is_not_started(
    tmp_path: Path, seconds: str
) -> None:
    with pytest.raises(BadInput, match="RETINUE_IDLE_SECONDS"):
        read_settings(tmp_path, {"RETINUE_IDLE_SECONDS": seconds})


@pytest.mark.parametrize("removed", range(len(REMOVED_IF_UNUSED) + 1))
def test_a_root_stays_usable_at_each_step_of_its_removal(tmp_path: Path, removed: int) -> None:
    root = tmp_path / "mine"  # not named .retinue: only its files show that it is a root
    prepare_root(root)
    (root / "desk").mkdir()
    for name in REMOVED_IF_UNUSED[removed:]:
        if name != "desk":
            (root / name).touch()
    if "desk" in REMOVED_IF_UNUSED[:removed]:
        (root / "desk").rmdir()
    require_usable(root)
