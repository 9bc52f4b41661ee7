"""Which folders are roots, and which could become one."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.domain.errors import BadInput
from retinue.doors.mcp.http import TOKEN_FILE, read_token
from retinue.settings import find_root, is_made, read_settings, require_usable


def test_a_root_that_a_server_made_its_token_in_is_one_to_be_used(tmp_path: Path) -> None:
    root = tmp_path / "mine"
    token = read_token(root, make=True)
    require_usable(root)
    assert read_token(root, make=True) == token and not is_made(root)


def test_no_token_is_made_in_a_folder_of_other_things(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BadInput) as refused:
        read_token(tmp_path, make=True)
    assert refused.value.code == "bad_root" and not (tmp_path / TOKEN_FILE).exists()


@pytest.mark.parametrize("name", ["retinue.db", "steward.lock", "tasks/t/task.yaml"])
def test_what_only_a_root_has_makes_it_one(tmp_path: Path, name: str) -> None:
    assert not is_made(tmp_path)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).touch()
    assert is_made(tmp_path)
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
