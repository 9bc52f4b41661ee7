"""The roster is edited in whatever style and layout it stands, and quickly."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from retinue.store.roster import Edited, RosterEntry, edit_roster
from retinue.store.taskfile import TaskFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "task.yaml"


def entry(instance: str, state: str = "active") -> RosterEntry:
    return RosterEntry(instance=instance, agent="explorer", state=state)


def roster(path: Path) -> list[dict[str, object]]:
    document = YAML(typ="safe", pure=True).load(path)
    return list(document["roster"])


@pytest.mark.parametrize(
    "block",
    [
        "roster: [{instance: a, agent: x, state: active, skills: []}]  # mine\n",
        "roster: [\n{instance: a, state: active},\n]\n",
        "roster:\n  - {instance: a, state: active}\n",
        "roster:\n  - instance: a\n    state: >-\n      active\n",
        "roster:\n  -\n    instance: a\n    state: active\n",
        "roster:\n- instance: a\n  state: active\n",
        "'roster':\n        -     instance: 'a'\n              state: 'active'\n",
    ],
)
def test_a_roster_in_another_style_is_understood(path: Path, block: str) -> None:
    head, tail = 'id: "t"  # one\nstate: open\n', "\n# below\ngates: []  # none\n"
    path.write_text(head + block + tail)
    file = TaskFile(path)
    assert file.update_roster([entry("a", "active")], "open", "later") is False
    assert path.read_text() == head + block + tail
    assert file.update_roster([entry("b")], "open", "later") is False
    assert file.update_roster([entry("a", "failed")], "open", "later") is False
    states = {each["instance"]: each["state"] for each in roster(path)}
    assert states == {"a": "failed", "b": "active"}
    assert path.read_text().startswith(head)
    assert path.read_text().endswith(tail)


def test_what_people_added_to_entries_of_another_style_is_kept(path: Path) -> None:
    path.write_text("id: t\nroster: [{instance: a, state: active, milestone: {n: 1}}]\n")
    TaskFile(path).update_roster([entry("a", "failed")], "open", "later")
    assert roster(path)[0]["milestone"] == {"n": 1}


def test_a_roster_beyond_reading_is_replaced_and_told(path: Path) -> None:
    head, tail = "id: t\n", "gates: []\n"
    path.write_text(f"{head}roster:\n\t- what\n{tail}")
    assert TaskFile(path).update_roster([entry("a")], "open", "later") is True
    assert [each["instance"] for each in roster(path)] == ["a"]
    assert path.read_text().startswith(head)
    assert path.read_text().endswith(tail)


@pytest.mark.parametrize(
    "text",
    [
        "id: t\nroster: []",
        "id: t\nroster:",
        "id: t\nroster: null  # none\ngates: []",
        "roster: []\nid: t",
        "id: t",
        "id: t\r\nroster: []\r\ngates: []\r\n",
        "id: t\r\nroster:\r\n  - instance: z\r\n    state: active\r\ngates: []\r\n",
    ],
)
def test_entries_find_their_place_in_any_layout(path: Path, text: str) -> None:
    path.write_bytes(text.encode())
    TaskFile(path).update_roster([entry("a")], "open", "later")
    TaskFile(path).update_roster([entry("b"), entry("a", "failed")], "open", "later")
    states = [each["state"] for each in roster(path) if each["instance"] != "z"]
    assert states == ["failed", "active"]
    raw = path.read_bytes()
    assert raw.count(b"\r\n") in (0, raw.count(b"\n"))


def test_an_entry_is_quoted_wherever_a_reader_might_differ() -> None:
    odd = RosterEntry(instance="1e3", agent="a: b", state="off")
    assert edit_roster("roster: []\n", [odd]).text == (
        'roster:\n  - instance: "1e3"\n    agent: "a: b"\n    state: "off"\n    skills: []\n'
    )


def test_the_last_word_on_an_instance_counts() -> None:
    text = edit_roster("roster: []\n", [entry("a", "active"), entry("a", "failed")]).text
    assert text.count("instance") == 1
    assert "state: failed" in text


def test_a_comment_that_looks_like_a_state_is_left_alone() -> None:
    block = 'roster:\n  - instance: "a"\n  # state: x\n    # state: y\n    state: active\n'
    assert edit_roster(block, [entry("a", "failed")]).text == block.replace("active", "failed")


NAMES = st.sampled_from(["a", "b", "agent-1", "agent-11", 'odd "name"', "back\\slash"])
STATES = st.sampled_from(["active", "completed", "failed"])


@given(
    st.sampled_from(["", "roster: []\n", "roster: []\r\n", "roster:\n- instance: b\n  state: x\n"]),
    st.lists(st.lists(st.tuples(NAMES, STATES), max_size=3), max_size=6),
)
def test_a_roster_that_is_known_is_edited_like_one_that_is_read(
    first: str, steps: list[list[tuple[str, str]]]
) -> None:
    known = Edited(text=first)
    for step in steps:
        entries = [entry(name, state) for name, state in step]
        read = edit_roster(known.text, entries)
        known = edit_roster(known.text, entries, ours=known.ours)
        assert known.text == read.text


def test_an_entry_that_a_person_copied_is_one_again() -> None:
    one = '  - instance: "a"\n    agent: "x"\n    state: active\n'
    edited = edit_roster(f"roster:\n{one}{one}", [entry("b")])
    assert edited.text.count("instance:") == 2


def test_an_entry_in_other_words_is_not_entered_again() -> None:
    block = 'roster:\n  - instance: "a"\n    agent: "x"\n    state: active\n'
    mixed = block + "  - instance: b\n    state: active\n"
    assert edit_roster(block, [entry("a", "failed")]).ours
    edited = edit_roster(mixed, [entry("a", "failed")])
    assert not edited.ours
    again = edit_roster(edited.text, [entry("b", "failed")], ours=edited.ours)
    assert again.text == mixed.replace("active", "failed")


def test_one_state_among_10_000_is_changed_quickly(path: Path) -> None:
    path.write_text("id: t\nstate: open\nroster: []\n")
    file = TaskFile(path)
    file.update_roster([entry(f"agent-{n}") for n in range(10_000)], "open", "later")
    took = []
    for number in range(5):
        started = time.process_time()
        file.update_roster([entry("agent-5000", f"state_{'ab'[number % 2]}")], "open", "later")
        took.append(time.process_time() - started)
    assert min(took) < 0.06
