"""A new type is written whole, once, and never over another."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.core.errors import BadInput, Refused, StorageFailed
from retinue.core.subagent_type import SubagentType
from retinue.subagent_types.type_files import PROJECT_FOLDER, add, create, load_catalogue


@pytest.mark.requirement("R203")
def test_a_type_made_from_the_template_is_found_at_once(tmp_path: Path) -> None:
    path = create(tmp_path, "reasoner")
    assert path == tmp_path / PROJECT_FOLDER / "reasoner" / "SUBAGENT.md"
    found = load_catalogue(tmp_path)
    assert found.broken == ()
    assert found.require("reasoner").source == str(path)
    assert [each.name for each in path.parent.iterdir()] == ["SUBAGENT.md"]


def test_an_existing_type_is_left_as_it_is(tmp_path: Path) -> None:
    path = create(tmp_path, "reasoner")
    path.write_text("mine")
    with pytest.raises(Refused) as refused:
        create(tmp_path, "reasoner")
    assert refused.value.code == "type_exists"
    assert path.read_text() == "mine"
    assert [each.name for each in path.parent.iterdir()] == ["SUBAGENT.md"]


def test_a_link_that_leads_nowhere_is_not_written_through(tmp_path: Path) -> None:
    folder = tmp_path / PROJECT_FOLDER / "reasoner"
    folder.mkdir(parents=True)
    (folder / "SUBAGENT.md").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused):
        create(tmp_path, "reasoner")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["", "..", "a/b", "_template", "a b", "a\nskills: [x]", "x" * 65])
def test_a_name_that_cannot_be_a_folder_is_refused_and_nothing_is_made(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(BadInput):
        create(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_a_type_that_could_not_be_read_back_is_refused_and_nothing_is_made(
    tmp_path: Path,
) -> None:
    profile = SubagentType(name="r", description="d", instructions="i", skills=("x" * 1001,))
    with pytest.raises(BadInput, match="skills"):
        add(tmp_path, profile)
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / ".agent").write_text("a file")
    with pytest.raises(StorageFailed, match="cannot write"):
        create(tmp_path, "reasoner")
