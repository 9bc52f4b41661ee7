"""task.yaml: the part above the marker stays byte for byte; the part below is rewritten."""

from __future__ import annotations

import errno
import os
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from retinue.core.errors import BadInput, IntegrityBroken, StorageFailed
from retinue.core.ids import SubagentId
from retinue.core.subagent import Gate
from retinue.core.task_config import NewConfig
from retinue.store.task_yaml import CUT_NOTE, MARKER, MOST_ENDED, RosterEntry, TaskFile
from support.values import TASK

EDITABLE = """\
# The spring site. Ask Mia before changing limits.
id: "site"
title: 'Site'   # short

description: |
  Build it.

  state: this is text
createdAt: "2024-05-01T10:00:00Z"


config:
    # two at once is what the laptop stands
    maxConcurrentAgents: 2
    timeoutSeconds:   60
    orchestrator: {coordination: {subagent_min_timeout: 0.1}}
mine: kept
# the end
"""
BELOW = """\
updatedAt: "2024-05-01T10:00:00Z"
state: "running"
gates: []
roster:
  - instance: "bio"
    agent: "explorer"
    state: "active"
    skills: ["write"]
  - instance: "docs"
    agent: "x"
    state: "active"
    skills: []
"""
GOLDEN = f"{EDITABLE}{MARKER}\n{BELOW}"
# As an older version wrote it: no marker, and our keys between those of people.
UNMARKED = """\
# The spring site.
id: "site"
createdAt: "2024-05-01T10:00:00Z"
updatedAt: 2024-05-01T10:00:00Z  # by the machine
state:   running    # of the task

# what the laptop stands
config:
    maxConcurrentAgents: 2
# who is here
roster:   # kept by the machine

  # the first one
  - instance: "bio"  # writes bio.md
    agent: "explorer"
    state: active
    skills: ["write"]

  - agent: 'x'
    state: "active"
    instance: docs
    note: |
      state: active

# gates follow
gates: []   # none
mine: kept
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "task.yaml"


@pytest.fixture
def golden(path: Path) -> TaskFile:
    path.write_text(GOLDEN)
    return TaskFile(path)


def entry(instance: str, state: str = "active") -> RosterEntry:
    return RosterEntry(instance=instance, agent="explorer", state=state)


def create(file: TaskFile, *, config: dict[str, object] | None = None, **more: str) -> None:
    file.create(replace(TASK, **more), NewConfig(document=config or {}))


def roster(path: Path) -> list[dict[str, object]]:
    document = YAML(typ="safe", pure=True).load(path)
    return list(document["roster"])


def names(path: Path) -> list[str]:
    return [each.name for each in path.parent.iterdir()]


def edit(path: Path, old: str, replacement: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, replacement))


# Creation


def test_a_new_file_has_the_documented_keys_in_order(path: Path) -> None:
    config = {
        "agents": [{"id": "one", "backend": {"type": "local"}, "system_message": "a\nb\n"}],
        "orchestrator": {"coordination": {"subagent_max_concurrent": 2, "enable_subagents": True}},
    }
    create(TaskFile(path), title="Site: one", description="D", config=config)
    assert (
        path.read_text()
        == """\
id: "site"
title: "Site: one"
description: "D"
createdAt: "2026-01-01T00:00:00.000Z"
config:
  maxConcurrentAgents: 2
  timeoutSeconds: 3600
  agents:
    - id: "one"
      backend:
        type: "local"
      system_message: |
        a
        b
  orchestrator:
    coordination:
      enable_subagents: true
# Retinue rewrites everything below this line; edit above it.
updatedAt: "2026-01-01T00:00:00.000Z"
state: "open"
gates: []
roster: []
"""
    )


def test_a_new_file_is_private_and_leaves_no_temporary_file(path: Path) -> None:
    before = os.umask(0)
    try:
        create(TaskFile(path))
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert names(path) == ["task.yaml"]


def test_an_existing_file_is_not_overwritten(golden: TaskFile) -> None:
    with pytest.raises(IntegrityBroken, match="exists already"):
        create(golden)
    assert golden.path.read_text() == GOLDEN


def test_an_invalid_configuration_leaves_no_file(path: Path) -> None:
    with pytest.raises(BadInput, match=r"unknown key orchestrator\.cordination"):
        create(TaskFile(path), config={"orchestrator": {"cordination": {}}})
    assert names(path) == []


TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=80) | st.sampled_from(
    [
        "",
        "- a",
        "a: b",
        "# no",
        "'\"\\",
        "roster:\n- x",
        "\nroster: []\nstate: x\n",
        "a\nb\n",
        "\x00\x1b\x7f\x85\u2028\u2029\ufeff",
        "\N{GRINNING FACE}",
        "null",
        "---",
        "a\n---\nb",
        "\ta",
        "\r\n",
    ]
)


@settings(max_examples=150, deadline=None)
@given(TEXTS, TEXTS)
def test_any_title_and_description_are_read_back(title: str, description: str) -> None:
    with TemporaryDirectory() as folder:
        file = TaskFile(Path(folder) / "task.yaml")
        create(file, title=title, description=description)
        file.update_roster([entry("a")], "closed", "later")
        document = TaskFile(file.path).read_document()
        assert document["title"] == title
        assert document["description"] == description
        assert document["state"] == "closed"
        assert roster(file.path)[0]["instance"] == "a"


@pytest.mark.parametrize("character", ["x", "\x01", "\x00", "\n", "\u2028", "\N{GRINNING FACE}"])
def test_a_description_of_100_kb_is_read_back(path: Path, character: str) -> None:
    description = character * (100_000 // len(character.encode()))
    create(TaskFile(path), description=description)
    assert TaskFile(path).read_document()["description"] == description


# Reading


@pytest.mark.requirement("R40")
def test_the_file_decides_the_policy(golden: TaskFile) -> None:
    config = golden.read_config()
    assert config.max_concurrent == 2
    assert config.wait_timeout_seconds == 60
    assert config.min_timeout_ms == 100


def test_a_hand_edit_takes_effect_at_once(golden: TaskFile) -> None:
    for limit in range(3, 10):  # same size, same inode, within the same clock tick
        edit(golden.path, f"Agents: {limit - 1}", f"Agents: {limit}")
        assert golden.read_config().max_concurrent == limit
        golden.update_roster([entry(f"n{limit}")], "running", "later")


@pytest.mark.parametrize("granule_ns", [1, 1_000_000_000])
def test_an_edit_with_the_old_time_stamp_and_size_is_seen(
    golden: TaskFile, granule_ns: int
) -> None:
    now = time.time_ns() // granule_ns * granule_ns
    os.utime(golden.path, ns=(now, now))
    assert golden.read_config().max_concurrent == 2
    edit(golden.path, "Agents: 2", "Agents: 8")
    os.utime(golden.path, ns=(now, now))
    assert golden.read_config().max_concurrent == 8


def test_a_settled_file_is_not_read_again(golden: TaskFile) -> None:
    os.utime(golden.path, (1, 1))
    config = golden.read_config()
    edit(golden.path, "Agents: 2", "Agents: 8")
    os.utime(golden.path, (1, 1))  # only a forged time stamp can show that it was not read
    assert golden.read_config() is config


def test_a_file_that_retinue_wrote_is_not_read_again(
    golden: TaskFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden.update_roster([entry("n1")], "running", "later")
    monkeypatch.setattr("retinue.store.task_yaml.read_text", None)
    assert golden.read_config().max_concurrent == 2


def test_the_document_is_everything_but_the_roster(golden: TaskFile) -> None:
    document = golden.read_document()
    assert list(document) == [
        "id",
        "title",
        "description",
        "createdAt",
        "config",
        "mine",
        "updatedAt",
        "state",
        "gates",
    ]
    assert document["mine"] == "kept"
    document["config"] = None
    assert golden.read_config().max_concurrent == 2


def test_the_cost_of_the_configuration_does_not_grow_with_the_roster(path: Path) -> None:
    file = TaskFile(path)
    create(file)

    def once() -> float:
        started = time.process_time()
        TaskFile(path).read_config()
        return time.process_time() - started

    alone = min(once() for _ in range(5))
    file.update_roster([entry(f"agent-{n}") for n in range(10_000)], "open", "later")
    assert min(once() for _ in range(5)) < alone + 0.05  # parsing it would take seconds


@pytest.mark.parametrize(
    ("old", "replacement", "message"),
    [
        ("timeoutSeconds:   60", "\ttimeoutSeconds: 60", "line 15: .*tabs"),
        ("timeoutSeconds:   60", "timeoutSeconds: -1", "line 15: config.timeoutSeconds: expected"),
        ("maxConcurrentAgents", "maxConcurentAgents", "line 14: unknown key config.maxConcurent"),
        ("mine: kept", "mine: [", r"line \d+: "),
        ("mine: kept", "state: again", "line 17: key 'state' appears twice"),
        ("mine: kept", "roster: []", "line 17: key 'roster' appears twice"),
        ("gates: []", "gates: []\nconfig: {}", "line 23: your keys belong above the line"),
        ("config:", "confg:", "line 12: unknown key 'confg'; did you mean config?"),
        ("mine: kept", "maxConcurrentAgents: 9", "did you mean config.maxConcurrentAgents?"),
        ('id: "site"', "", "id is missing"),
        ("mine: kept", "mine: !!python/name:os.system", "line 17: tag"),
    ],
)
def test_a_broken_hand_edit_is_refused_with_file_and_line(
    golden: TaskFile, old: str, replacement: str, message: str
) -> None:
    edit(golden.path, old, replacement)
    with pytest.raises(BadInput, match=message) as refused:
        golden.read_config()
    assert refused.value.message.startswith(f"{golden.path}: line ")
    golden.path.write_text(GOLDEN)
    assert golden.read_config().max_concurrent == 2  # mended, and believed again


@pytest.mark.parametrize("text", ["", "# empty\n", "[]\n", "just words\n"])
def test_a_file_that_is_not_a_task_is_refused(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(BadInput, match="line 1: "):
        TaskFile(path).read_config()


def test_bytes_that_are_not_utf8_are_refused(path: Path) -> None:
    path.write_bytes(b'id: "x"\ntitle: \xff\n')
    with pytest.raises(BadInput, match="line 2: not UTF-8"):
        TaskFile(path).read_config()


def test_a_missing_file_is_reported_and_not_recreated(golden: TaskFile) -> None:
    golden.read_config()
    golden.path.unlink()
    for call in (
        golden.read_config,
        golden.read_document,
        lambda: golden.update_roster([entry("a")], "running", "later"),
    ):
        with pytest.raises(IntegrityBroken, match=r"task\.yaml is missing") as refused:
            call()
        assert refused.value.hint
    assert names(golden.path) == []


def test_a_pipe_in_its_place_does_not_hang(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(IntegrityBroken, match="not a regular file"):
        TaskFile(path).read_config()


# The roster


def test_everything_above_the_marker_survives_byte_for_byte(golden: TaskFile) -> None:
    golden.update_roster([entry("docs", "completed")], "closed", "2024-06-01T00:00:00Z")
    expected = (
        GOLDEN.replace('updatedAt: "2024-05-01T10:00:00Z"', 'updatedAt: "2024-06-01T00:00:00Z"')
        .replace('state: "running"', 'state: "closed"')
        .replace('agent: "x"\n    state: "active"', 'agent: "explorer"\n    state: "completed"')
    )
    assert golden.path.read_text() == expected


def test_new_entries_stand_after_the_last_one(golden: TaskFile) -> None:
    golden.update_roster([entry("bio", "failed"), entry("new"), entry("1e3")], "running", "12:30")
    assert [(each["instance"], each["state"]) for each in roster(golden.path)] == [
        ("bio", "failed"),
        ("docs", "active"),
        ("new", "active"),
        ("1e3", "active"),
    ]


def test_a_file_without_the_marker_gets_one_and_keeps_its_text(path: Path) -> None:
    path.write_text(UNMARKED)
    file = TaskFile(path)
    assert file.read_config().max_concurrent == 2
    assert not file.update_roster([entry("new")], "running", "later")
    text = path.read_text()
    assert (
        text.partition(MARKER)[0]
        == """\
# The spring site.
id: "site"
createdAt: "2024-05-01T10:00:00Z"

# what the laptop stands
config:
    maxConcurrentAgents: 2
# who is here

# gates follow
mine: kept
"""
    )
    assert [each["instance"] for each in roster(path)] == ["bio", "docs", "new"]
    assert not TaskFile(path).update_roster([entry("new")], "running", "later still")
    assert path.read_text() == text


def test_a_roster_changed_by_hand_is_requested_in_full(golden: TaskFile) -> None:
    roster_text = golden.path.read_text().partition("roster:")[2]
    edit(golden.path, roster_text, " [{instance: bio}]\n")
    assert golden.update_roster([entry("bio")], "running", "later")
    assert not golden.update_roster([entry("bio"), entry("docs")], "running", "later")
    assert [each["instance"] for each in roster(golden.path)] == ["bio", "docs"]


def test_open_gates_are_shown_until_they_are_closed(golden: TaskFile) -> None:
    questions = ("Which: colour?", "x" * 200)
    gate = Gate(id="gate-1", subagent=SubagentId("bio"), questions=questions, state="open")
    golden.update_roster([], "running", "later", [gate])
    (shown,) = YAML(typ="safe", pure=True).load(golden.path)["gates"]
    assert shown["id"] == "gate-1" and shown["instance"] == "bio"
    assert shown["questions"][0] == questions[0] and len(shown["questions"][1]) < 200
    assert TaskFile(golden.path).read_document()["gates"] == [shown]
    golden.update_roster([], "running", "later")
    assert YAML(typ="safe", pure=True).load(golden.path)["gates"] == []


def test_nothing_is_written_when_nothing_changed(golden: TaskFile) -> None:
    before = golden.path.stat()
    known = RosterEntry(instance="bio", agent="explorer", state="active", skills=("write",))
    golden.update_roster([known], "running", "later")
    golden.update_roster([], "running", "later")
    after = golden.path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_the_file_is_replaced_whole_and_stays_private(golden: TaskFile) -> None:
    golden.path.chmod(0o644)
    leftover = golden.path.with_name(".task.yaml.new")
    leftover.write_text("half of an earlier wri")
    leftover.chmod(0o666)
    inode = golden.path.stat().st_ino
    golden.update_roster([entry("new")], "running", "later")
    assert golden.path.stat().st_ino != inode
    assert golden.path.stat().st_mode & 0o777 == 0o600
    assert names(golden.path) == ["task.yaml"]


def test_a_whole_document_in_braces_is_refused_untouched(path: Path) -> None:
    path.write_text("{id: t, state: open}\n")
    with pytest.raises(BadInput):
        TaskFile(path).update_roster([entry("a")], "open", "later")
    assert path.read_text() == "{id: t, state: open}\n"


def test_a_roster_line_inside_a_quoted_text_is_kept(path: Path) -> None:
    path.write_text('id: t\ndescription: "a\nroster: b"\nstate: open\n')
    TaskFile(path).update_roster([entry("a")], "open", "later")
    assert TaskFile(path).read_document()["description"] == "a roster: b"
    assert [each["instance"] for each in roster(path)] == ["a"]


def test_an_edit_made_while_we_write_is_not_lost(
    golden: TaskFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, edits = os.fsync, iter(["Agents: 2", "Agents: 4"])

    def meanwhile(handle: int) -> None:
        real(handle)
        for old in edits:
            edit(golden.path, old, "Agents: 4")
            return

    monkeypatch.setattr(os, "fsync", meanwhile)
    golden.update_roster([entry("new")], "running", "later")
    assert "maxConcurrentAgents: 4" in golden.path.read_text()
    assert len(roster(golden.path)) == 3
    assert golden.read_config().max_concurrent == 4


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failed_write_leaves_the_old_file(
    golden: TaskFile, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(handle: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StorageFailed, match=f"task.yaml: .* \\(errno {code}\\)"):
        golden.update_roster([entry("new")], "running", "later")
    assert golden.path.read_text() == GOLDEN
    assert names(golden.path) == ["task.yaml"]


IDS = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,5}", fullmatch=True)
STATES = st.sampled_from(["active", "awaiting", "completed", "failed"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.tuples(IDS, STATES), max_size=4), max_size=6))
def test_the_roster_is_the_sum_of_its_updates(steps: list[list[tuple[str, str]]]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "task.yaml"
        path.write_text(GOLDEN)
        file = TaskFile(path)
        states = {"bio": "active", "docs": "active"}
        for number, step in enumerate(steps):
            file.update_roster(
                [entry(name, state) for name, state in step], "running", f"u{number}"
            )
            states |= dict(step)
        assert {str(each["instance"]): each["state"] for each in roster(path)} == states
        assert path.read_text().startswith(f"{EDITABLE}{MARKER}\n")


def test_the_file_shows_the_newest_that_ended_and_all_others(path: Path) -> None:
    file = TaskFile(path)
    create(file)
    file.update_roster([entry("waits", "awaiting"), entry("works", "active")], "open", "u0")
    for first in range(0, 3 * MOST_ENDED, MOST_ENDED // 2):
        ended = [entry(f"agent-{first + n}", "completed") for n in range(MOST_ENDED // 2)]
        file.update_roster(ended, "open", f"u{first}")
    newest = [f"agent-{n}" for n in range(2 * MOST_ENDED, 3 * MOST_ENDED)]
    assert [each["instance"] for each in roster(path)] == ["waits", "works", *newest]
    assert CUT_NOTE in path.read_text()
    # Another steward reads the shortened roster as its own and adds to it.
    assert not TaskFile(path).update_roster([entry("late", "failed")], "open", "later")
    assert [each["instance"] for each in roster(path)] == ["waits", "works", *newest[1:], "late"]


def test_its_memory_does_not_grow_with_the_subagents_that_ended(path: Path) -> None:
    file = TaskFile(path)
    create(file)

    def run(first: int, last: int) -> int:
        for start in range(first, last, 500):
            ended = [entry(f"agent-{start + n}", "completed") for n in range(500)]
            file.update_roster(ended, "open", f"u{start}")
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = run(0, 2 * MOST_ENDED)
        assert run(2 * MOST_ENDED, 10 * MOST_ENDED) < before + 64 * 1024
    finally:
        tracemalloc.stop()
