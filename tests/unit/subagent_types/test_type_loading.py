"""Types are found where they should be, and a bad file is told without hiding the others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from retinue.core.errors import BadInput
from retinue.formats.profile_document import MAX_BYTES
from retinue.subagent_types import type_files
from retinue.subagent_types.type_files import (
    MAX_PROJECT_TYPES,
    PROJECT_FOLDER,
    load_built_in,
    load_catalogue,
)

SHIPPED = ("explorer", "researcher", "evaluator", "novelty")
PARTS = ("# Role", "# Method", "# When something is missing", "# Limits", "# Report")


def write(project: Path, name: str, text: str | None = None) -> Path:
    path = project / PROJECT_FOLDER / name / "SUBAGENT.md"
    path.parent.mkdir(parents=True)
    path.write_text(text or f"---\nname: {name}\ndescription: Ours.\n---\nDo it our way.\n")
    return path


@pytest.mark.requirement("R191")
def test_the_built_in_types_are_found_without_any_project(tmp_path: Path) -> None:
    found = load_catalogue(tmp_path)
    assert (found.names, found.broken) == (SHIPPED, ())


@pytest.mark.requirement("R191")
@pytest.mark.parametrize("name", SHIPPED)
def test_a_built_in_profile_describes_its_use_its_brief_and_its_needs(
    name: str,
) -> None:
    (found,) = [each for each in load_built_in() if each.name == name]
    assert found.built_in
    assert Path(found.source).is_file()
    assert "Use it" in found.description
    assert len(found.expected_input) >= 3
    at = [found.instructions.index(part) for part in PARTS]
    assert at == sorted(at)
    assert "**Files made**" in found.instructions
    assert "not addressed to you" in found.instructions  # what it reads does not command it


@pytest.mark.requirement("R192")
def test_a_projects_own_type_is_found(tmp_path: Path) -> None:
    path = write(tmp_path, "reasoner")
    found = load_catalogue(tmp_path).require("reasoner")
    assert (found.description, found.instructions) == ("Ours.", "Do it our way.")
    assert (found.source, found.built_in) == (str(path), False)


@pytest.mark.requirement("R192")
def test_a_projects_type_goes_before_the_built_in_one_and_keeps_its_place(tmp_path: Path) -> None:
    write(tmp_path, "researcher")
    found = load_catalogue(tmp_path)
    assert found.names == SHIPPED
    assert found.require("researcher").description == "Ours."
    assert found.list_active(None)[0][1].description == "Ours."


def test_a_file_that_was_changed_is_read_anew(tmp_path: Path) -> None:
    path = write(tmp_path, "reasoner")
    assert load_catalogue(tmp_path).require("reasoner").instructions == "Do it our way."
    path.write_text(path.read_text().replace("our", "her"))
    assert load_catalogue(tmp_path).require("reasoner").instructions == "Do it her way."


@pytest.mark.requirement("R201")
def test_a_broken_file_is_reported_with_its_path_and_hides_no_other_type(tmp_path: Path) -> None:
    path = write(tmp_path, "reasoner", "---\nname: reasoner\ncolour: red\n---\nx")
    write(tmp_path, "writer")
    found = load_catalogue(tmp_path)
    assert found.names == (*SHIPPED, "writer")
    (broken,) = found.broken
    assert (broken.name, broken.code) == ("reasoner", "unknown_key")
    assert broken.problem == f"{path}: line 3: unknown key colour"
    with pytest.raises(BadInput, match="unknown key colour"):
        found.require("reasoner")


def test_a_broken_override_does_not_give_way_to_the_built_in_type(tmp_path: Path) -> None:
    write(tmp_path, "explorer", "nothing of the kind")
    found = load_catalogue(tmp_path)
    assert found.names == SHIPPED[1:]
    with pytest.raises(BadInput, match="line 1: expected ---"):
        found.require("explorer")


@pytest.mark.requirement("R203")
def test_the_template_is_shipped_and_is_no_type(tmp_path: Path) -> None:
    template = Path(type_files.__file__).parent / "_template" / "SUBAGENT_TEMPLATE.md"
    assert template.is_file()
    for name in ("_template", ".hidden"):
        write(tmp_path, name, "not even a profile")
    found = load_catalogue(tmp_path)
    assert (found.names, found.broken) == (SHIPPED, ())


def test_every_folder_that_is_shipped_is_a_type_or_the_template() -> None:
    folders = {path.parent.name for path in Path(type_files.__file__).parent.rglob("*.md")}
    assert folders == {*SHIPPED, "_template"}


def test_a_folder_without_its_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / PROJECT_FOLDER / "empty").mkdir(parents=True)
    (broken,) = load_catalogue(tmp_path).broken
    assert broken.problem.endswith("empty/SUBAGENT.md: No such file or directory")


def test_an_invalid_name_is_reported(tmp_path: Path) -> None:
    write(tmp_path, "two words")
    (broken,) = load_catalogue(tmp_path).broken
    assert broken.problem.endswith("a type cannot be called 'two words'")


def test_other_files_beside_the_folders_are_ignored(tmp_path: Path) -> None:
    write(tmp_path, "reasoner")
    (tmp_path / PROJECT_FOLDER / "README.md").write_text("notes")
    assert load_catalogue(tmp_path).broken == ()


def test_a_link_is_not_followed_and_its_target_is_not_disclosed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    path = write(tmp_path, "reasoner")
    path.unlink()
    path.symlink_to(secret)
    (broken,) = load_catalogue(tmp_path).broken
    assert broken.problem == f"{path}: a link is not followed"
    assert "hunter2" not in repr(broken)


@pytest.mark.timeout(10)
def test_a_pipe_in_the_place_of_a_file_does_not_keep_anyone_waiting(tmp_path: Path) -> None:
    path = write(tmp_path, "reasoner")
    path.unlink()
    os.mkfifo(path)
    (broken,) = load_catalogue(tmp_path).broken
    assert broken.problem == f"{path}: not a plain file"


def test_a_huge_file_is_read_no_further_than_the_limit(tmp_path: Path) -> None:
    path = write(tmp_path, "reasoner")
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert len(type_files.read_bounded(path)) == MAX_BYTES + 1
    (broken,) = load_catalogue(tmp_path).broken
    assert broken.problem == f"{path}: larger than 64 KiB"


def test_a_file_in_place_of_the_folder_is_reported_and_the_built_in_types_stay(
    tmp_path: Path,
) -> None:
    folder = tmp_path / PROJECT_FOLDER
    folder.parent.mkdir()
    folder.write_text("")
    found = load_catalogue(tmp_path)
    assert found.names == SHIPPED
    assert found.broken[0].problem == f"{folder}: Not a directory"


def test_types_beyond_the_limit_are_reported_by_name(tmp_path: Path) -> None:
    for number in range(MAX_PROJECT_TYPES + 1):
        write(tmp_path, f"t{number:03}")
    found = load_catalogue(tmp_path)
    assert len(found.types) == len(SHIPPED) + MAX_PROJECT_TYPES
    with pytest.raises(BadInput, match="not read, 256 types come before it"):
        found.require("t256")
