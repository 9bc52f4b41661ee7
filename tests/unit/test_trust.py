"""Which roots are trusted, and by whose word."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path

import pytest

from retinue import trust
from retinue.core.default_models import is_key_variable
from retinue.core.errors import Refused, StorageFailed
from retinue.gateway.providers import BUILT_IN
from retinue.trust import FolderId


@pytest.fixture
def known(tmp_path: Path) -> dict[str, str]:
    """An environment with a state folder of its own."""
    (tmp_path / "state").mkdir()
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


def listed(known: dict[str, str]) -> Path:
    return trust.find_state_folder(known) / trust.LIST


def test_a_root_that_was_made_is_trusted_and_an_unmarked_folder_is_not(
    tmp_path: Path, known: dict[str, str]
) -> None:
    root = tmp_path / ".retinue"
    assert trust.can_be_used(root, known) and not trust.is_trusted(root, known)
    trust.make_root(root, known)
    assert trust.is_trusted(root, known) and not trust.is_copy(root)
    (root / trust.IDENTITY).unlink()
    (root / "retinue.db").touch()
    assert not trust.can_be_used(root, known)
    with pytest.raises(Refused) as refused:
        trust.make_root(root, known)
    assert refused.value.code == trust.NOT_TRUSTED
    trust.trust_root(root, known, ())
    assert trust.is_trusted(root, known)


@pytest.mark.parametrize("name", ["config.yaml", "mcp-token", "gateway.key", "tasks/t/task.yaml"])
def test_a_folder_that_holds_anything_that_decides_is_not_a_new_one(
    tmp_path: Path, name: str
) -> None:
    assert trust.is_unused(tmp_path)
    (tmp_path / "steward.log").touch()
    (tmp_path / "tasks").mkdir()
    assert trust.is_unused(tmp_path)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).touch()
    assert not trust.is_unused(tmp_path)


def test_a_root_with_an_unlisted_mark_is_not_trusted(tmp_path: Path, known: dict[str, str]) -> None:
    root = tmp_path / ".retinue"
    trust.make_root(root, known)
    identity = json.loads((root / trust.IDENTITY).read_text())
    (root / trust.IDENTITY).write_text(json.dumps(identity | {"mark": "0" * 32}))
    assert not trust.is_trusted(root, known)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", "{", "null", "[" * 4096, "\xff"),
        *('{"mark": ""}', '{"mark": "x", "device": "1"}'),
    ],
)
def test_an_identity_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / trust.IDENTITY).write_bytes(text.encode("latin-1"))
    assert trust.read_identity(tmp_path) is None


def test_a_list_that_others_could_have_written_counts_for_nothing(
    tmp_path: Path, known: dict[str, str]
) -> None:
    root = tmp_path / ".retinue"
    trust.make_root(root, known)
    listed(known).chmod(0o620)
    assert not trust.is_trusted(root, known)
    with pytest.raises(StorageFailed) as failed:
        trust.make_root(tmp_path / "other" / ".retinue", known)
    assert failed.value.code == "no_state_folder"
    assert not (tmp_path / "other" / ".retinue").exists()


def test_lines_of_the_list_that_cannot_be_read_leave_the_others_in_force(
    tmp_path: Path, known: dict[str, str]
) -> None:
    root = tmp_path / ".retinue"
    trust.make_root(root, known)
    listed(known).write_text("junk\n{}\n" + listed(known).read_text() + '{"path": 1}\n')
    assert trust.is_trusted(root, known)


def test_entries_of_roots_that_are_gone_are_dropped_once_there_are_many(
    tmp_path: Path, known: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "MOST_ENTRIES", 3)
    for number in range(6):
        trust.make_root(tmp_path / str(number) / ".retinue", known)
    for number in range(5):
        (tmp_path / str(number) / ".retinue" / trust.IDENTITY).unlink()
        (tmp_path / str(number) / ".retinue").rmdir()
    trust.make_root(tmp_path / "last" / ".retinue", known)
    assert len(listed(known).read_text().splitlines()) == 2


def test_a_folder_is_the_same_by_inode_and_time_of_creation() -> None:
    here = FolderId(device=1, inode=2, born_ns=3)
    assert here.is_same(FolderId(device=1, inode=2, born_ns=3))
    assert not here.is_same(FolderId(device=1, inode=2, born_ns=4))  # a number that is used again
    assert not here.is_same(FolderId(device=1, inode=9, born_ns=3))
    assert here.is_same(FolderId(device=1, inode=2))  # where nobody knows better
    assert not here.is_same(FolderId(device=7, inode=2, born_ns=3))
    assert here.is_same(FolderId(device=7, inode=2, born_ns=3), same_path=True)


def test_the_creation_time_is_reported(tmp_path: Path) -> None:
    if not (born := trust.read_birth_time_ns(tmp_path)):
        pytest.skip("this file system does not tell")
    (tmp_path / "later").mkdir()
    assert trust.read_birth_time_ns(tmp_path / "later") >= born  # a clock that ticks coarsely
    assert trust.read_birth_time_ns(tmp_path / "nowhere") == 0


def test_the_variable_names_roots_and_folders_above_them(tmp_path: Path) -> None:
    root = tmp_path / "a" / ".retinue"
    for named in (root, tmp_path / "a", tmp_path, f"relative:{tmp_path}:"):
        assert trust.is_named(root, {"RETINUE_TRUST": str(named)}), named
    for named in ("", "a", str(tmp_path / "b"), str(root / "below"), str(tmp_path) + "x"):
        assert not trust.is_named(root, {"RETINUE_TRUST": named}), named


def test_the_state_folder_is_this_users(tmp_path: Path) -> None:
    own = f"{pwd.getpwuid(os.geteuid()).pw_dir}/.local/state/retinue"
    assert trust.find_state_folder({"HOME": str(tmp_path)}) == tmp_path / ".local/state/retinue"
    for home in ({}, {"HOME": ""}, {"HOME": "relative"}, {"HOME": str(tmp_path / "nowhere")}):
        assert str(trust.find_state_folder(home)) == own
    if os.geteuid() == 0:
        os.chown(tmp_path, 65534, -1)
        assert str(trust.find_state_folder({"HOME": str(tmp_path)})) == own


def test_a_foreign_root_may_use_only_the_keys_that_were_shown(
    tmp_path: Path, known: dict[str, str]
) -> None:
    mine, other = tmp_path / "mine" / ".retinue", tmp_path / "other" / ".retinue"
    trust.make_root(mine, known)
    trust.require_approved(["GITHUB_TOKEN"], mine, known)
    other.mkdir(parents=True)
    (other / "config.yaml").touch()
    trust.trust_root(other, known, ["SHOWN_TOKEN"])
    trust.require_approved(["SHOWN_TOKEN", "GROQ_API_KEY"], other, known)
    with pytest.raises(Refused, match="GITHUB_TOKEN"):
        trust.require_approved(["GITHUB_TOKEN"], other, known)
    trust.require_approved(["GITHUB_TOKEN"], other, known | {"RETINUE_TRUST": str(other)})


def test_every_known_key_is_one_by_its_name() -> None:
    names = [name for each in BUILT_IN.values() for name in each.key_variables]
    assert names and all(map(is_key_variable, names))
    assert not any(map(is_key_variable, ["AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "HOME"]))


def test_a_configuration_written_where_retinue_was_in_use_is_the_users_own(
    tmp_path: Path, known: dict[str, str]
) -> None:
    project = tmp_path / "project"
    root = project / ".retinue"
    project.mkdir()
    trust.note_use(tmp_path / "elsewhere" / ".retinue", known)
    trust.note_use(tmp_path / ".retinue", known)
    trust.note_use(root, known)
    assert not root.exists() and len(listed(known).read_text().splitlines()) == 2
    root.mkdir()
    (root / "config.yaml").touch()
    assert trust.is_trusted(root, known)
    trust.require_approved(["ANY_NAME"], root, known)
    (root / "retinue.db").touch()
    assert not trust.is_trusted(root, known)  # more than a person writes
    (root / "retinue.db").unlink()
    project.rename(tmp_path / "before")
    (tmp_path / "other").mkdir()
    (tmp_path / "before" / ".retinue").rename(tmp_path / "other" / ".retinue")
    (tmp_path / "other").rename(project)
    assert not trust.is_trusted(root, known)  # another project by the same name


def test_an_existing_root_is_not_trusted_by_its_use(tmp_path: Path, known: dict[str, str]) -> None:
    root = tmp_path / ".retinue"
    root.mkdir()
    (root / "config.yaml").touch()
    trust.note_use(root, known)
    assert not trust.is_trusted(root, known)
