"""The open gates in task.yaml: shown while they are open, beside whatever people wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from retinue.domain.ids import SubagentId
from retinue.domain.subagent import Gate
from retinue.store.gates import edit_gates
from retinue.store.roster import RosterEntry
from retinue.store.taskfile import TaskFile

HEAD = 'id: "site"\nstate: open\n'
OURS = '  - id: "bio-1"\n    instance: "bio"\n    questions: ["Which colour?"]\n'


def gate(name: str = "bio", *questions: str) -> Gate:
    asked = questions or ("Which colour?",)
    return Gate(id=f"{name}-1", subagent=SubagentId(name), state="open", questions=asked)


def shown(text: str) -> list[str]:
    return [each["id"] for each in YAML(typ="safe").load(text)["gates"]]


def test_a_gate_comes_and_goes_and_the_block_is_as_it_was() -> None:
    for block in ("gates: []   # none\n", "gates: []", "gates: []\r\n", "gates: []\n\n# mine\n"):
        opened = edit_gates(block, [gate()])
        assert shown(opened) == ["bio-1"], opened
        assert edit_gates(opened, []) == block


def test_a_gate_is_written_with_its_questions_in_short() -> None:
    assert edit_gates("gates: []\n", [gate()]) == f"gates:\n{OURS}"
    odd = gate("bio", 'a "b"\n\x1b[2J', "x" * 500)
    (entry,) = YAML(typ="safe").load(edit_gates("gates: []\n", [odd]))["gates"]
    assert entry["instance"] == "bio"
    assert entry["questions"] == ['a "b" \x1b[2J', "x" * 119 + "…"]


def test_what_people_wrote_beside_a_gate_stays() -> None:
    block = f"gates:  # for Mia\n  # the first\n{OURS}    note: urgent\n  # the last\n"
    more = edit_gates(block, [gate(), gate("docs")])
    assert more.startswith(block) and shown(more) == ["bio-1", "docs-1"]
    fewer = edit_gates(more, [gate("docs")])
    assert shown(fewer) == ["docs-1"]
    assert all(f"# {word}" in fewer for word in ("for Mia", "the first", "the last"))


@pytest.mark.parametrize(
    "block",
    [
        'gates: [{id: "bio-1", instance: x}]\n',
        "gates:\n- instance: bio\n  # mine\n  id: bio-1\n",
        "gates: something\n",
        "gates:\n  - 3\n",
    ],
)
def test_a_block_in_another_style_is_written_anew(block: str) -> None:
    edited = edit_gates(block, [gate("docs")])
    assert shown(edited) == ["docs-1"]
    assert ("# mine" in edited) == ("# mine" in block)


@pytest.mark.parametrize("roster", ["", "roster: []\n"])
@pytest.mark.parametrize("below", [False, True])
def test_other_keys_are_found_after_gates_have_moved_them(
    tmp_path: Path, roster: str, below: bool
) -> None:
    path = tmp_path / "task.yaml"
    rest = 'gates: []  # none\nmine: kept\nupdatedAt: "before"\n'
    path.write_text(HEAD + (roster + rest if below else rest + roster))
    file = TaskFile(path)
    file.update_roster([], "open", "first", [gate()])
    entry = RosterEntry(instance="bio", agent="explorer", state="active")
    file.update_roster([entry], "closed", "second", [])
    document = YAML(typ="safe").load(path.read_text())
    assert (document["state"], document["updatedAt"]) == ("closed", "second")
    assert (document["gates"], document["mine"]) == ([], "kept")
    assert "gates: []  # none\n" in path.read_text()


def test_a_key_that_people_removed_stays_away_and_same_gates_write_nothing(tmp_path: Path) -> None:
    path = tmp_path / "task.yaml"
    path.write_text(HEAD)
    TaskFile(path).update_roster([], "open", "later", [gate()])
    assert path.read_text() == HEAD
    path.write_text(f"{HEAD}gates:\n{OURS}")
    before = path.stat().st_ino
    TaskFile(path).update_roster([], "open", "later", [gate()])
    assert path.stat().st_ino == before
