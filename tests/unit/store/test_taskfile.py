"""task.yaml: what people wrote stays byte for byte; what we write is read back."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from retinue.domain.errors import BadInput, IntegrityBroken, StorageFailed
from retinue.domain.policy import NewConfig
from retinue.store.roster import RosterEntry
from retinue.store.taskfile import TaskFile
from support.values import TASK

GOLDEN = """\
# The spring site. Ask Mia before changing limits.
id: "site"
title: 'Site'   # short

description: |
  Build it.

  state: this is text
createdAt: "2024-05-01T10:00:00Z"
updatedAt: 2024-05-01T10:00:00Z  # by the machine
state:   running    # of the task


config:
    # two at once is what the laptop stands
    maxConcurrentAgents: 2
    timeoutSeconds:   60
    orchestrator: {coordination: {subagent_min_timeout: 0.1}}
# who is here
roster:   # kept by the machine

  # the first one
  - instance: "bio"  # writes bio.md
    agent: "explorer"
    # state: commented out
    state: active   # for now
    skills: ["write"]

  - agent: 'x'
    state: "active"
    instance: docs
    note: |
      state: active
    skills:
      - a
  # last words

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
updatedAt: "2026-01-01T00:00:00.000Z"
state: "open"
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
roster: []
gates: []
"""
    )


def test_a_new_file_is_for_its_owner_alone_and_nothing_else_is_left(path: Path) -> None:
    before = os.umask(0)
    try:
        create(TaskFile(path))
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert names(path) == ["task.yaml"]


def test_a_file_that_is_there_is_not_overwritten(golden: TaskFile) -> None:
    with pytest.raises(IntegrityBroken, match="exists already"):
        create(golden)
    assert golden.path.read_text() == GOLDEN


def test_an_unsound_configuration_leaves_no_file(path: Path) -> None:
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
def test_any_title_and_description_come_back(title: str, description: str) -> None:
    with TemporaryDirectory() as folder:
        file = TaskFile(Path(folder) / "task.yaml")
        create(file, title=title, description=description)
        file.update_roster([entry("a")], "closed", "later")
        document = TaskFile(file.path).document()
        assert document["title"] == title
        assert document["description"] == description
        assert document["state"] == "closed"
        assert roster(file.path)[0]["instance"] == "a"


@pytest.mark.parametrize("character", ["x", "\x01", "\x00", "\n", "\u2028", "\N{GRINNING FACE}"])
def test_a_description_of_100_kb_comes_back(path: Path, character: str) -> None:
    description = character * (100_000 // len(character.encode()))
    create(TaskFile(path), description=description)
    assert TaskFile(path).document()["description"] == description


# Reading


@pytest.mark.requirement("R40")
def test_the_file_decides_the_policy(golden: TaskFile) -> None:
    config = golden.config()
    assert config.max_concurrent == 2
    assert config.wait_timeout_seconds == 60
    assert config.min_timeout_ms == 100


def test_a_hand_edit_takes_effect_at_once(golden: TaskFile) -> None:
    for limit in range(3, 10):  # same size, same inode, within the same clock tick
        edit(golden.path, f"Agents: {limit - 1}", f"Agents: {limit}")
        assert golden.config().max_concurrent == limit
        golden.update_roster([entry(f"n{limit}")], "running", "later")


@pytest.mark.parametrize("granule_ns", [1, 1_000_000_000])
def test_an_edit_with_the_old_time_stamp_and_size_is_seen(
    golden: TaskFile, granule_ns: int
) -> None:
    now = time.time_ns() // granule_ns * granule_ns
    os.utime(golden.path, ns=(now, now))
    assert golden.config().max_concurrent == 2
    edit(golden.path, "Agents: 2", "Agents: 8")
    os.utime(golden.path, ns=(now, now))
    assert golden.config().max_concurrent == 8


def test_a_settled_file_is_not_read_again(golden: TaskFile) -> None:
    os.utime(golden.path, (1, 1))
    config = golden.config()
    edit(golden.path, "Agents: 2", "Agents: 8")
    os.utime(golden.path, (1, 1))  # only a forged time stamp can show that it was not read
    assert golden.config() is config


def test_what_we_wrote_ourselves_is_not_read_again(
    golden: TaskFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden.update_roster([entry("n1")], "running", "later")
    monkeypatch.setattr("retinue.store.taskfile.read_text", None)
    assert golden.config().max_concurrent == 2


def test_the_document_is_everything_but_the_roster(golden: TaskFile) -> None:
    document = golden.document()
    assert list(document) == [
        "id",
        "title",
        "description",
        "createdAt",
        "updatedAt",
        "state",
        "config",
        "gates",
        "mine",
    ]
    assert document["mine"] == "kept"
    document["config"] = None
    assert golden.config().max_concurrent == 2


def test_the_cost_of_the_configuration_does_not_grow_with_the_roster(path: Path) -> None:
    file = TaskFile(path)
    create(file)

    def once() -> float:
        started = time.process_time()
        TaskFile(path).config()
        return time.process_time() - started

    alone = min(once() for _ in range(5))
    file.update_roster([entry(f"agent-{n}") for n in range(10_000)], "open", "later")
    assert min(once() for _ in range(5)) < alone + 0.05  # parsing it would take seconds


@pytest.mark.parametrize(
    ("old", "replacement", "message"),
    [
        ("timeoutSeconds:   60", "\ttimeoutSeconds: 60", "line 17: .*tabs"),
        ("timeoutSeconds:   60", "timeoutSeconds: -1", "line 17: config.timeoutSeconds: expected"),
        ("maxConcurrentAgents", "maxConcurentAgents", "line 16: unknown key config.maxConcurent"),
        ("gates: []   # none", "gates: [", r"line \d+: "),
        ("mine: kept", "state: again", "line LAST: key 'state' appears twice"),
        ("mine: kept", "roster: []", "line LAST: key 'roster' appears twice"),
        ("config:", "confg:", "line 14: unknown key 'confg'; did you mean config?"),
        ("mine: kept", "maxConcurrentAgents: 9", "did you mean config.maxConcurrentAgents?"),
        ('id: "site"', "", "id is missing"),
        ("mine: kept", "mine: !!python/name:os.system", "line LAST: tag"),
    ],
)
def test_a_broken_hand_edit_is_refused_with_file_and_line(
    golden: TaskFile, old: str, replacement: str, message: str
) -> None:
    edit(golden.path, old, replacement)
    message = message.replace("LAST", str(GOLDEN.count("\n")))
    with pytest.raises(BadInput, match=message) as refused:
        golden.config()
    assert refused.value.message.startswith(f"{golden.path}: line ")
    golden.path.write_text(GOLDEN)
    assert golden.config().max_concurrent == 2  # mended, and believed again


def test_lines_below_the_roster_stay_right_while_it_grows(path: Path) -> None:
    create(TaskFile(path))
    head, _, config = path.read_text().partition("config:\n")
    path.write_text(f"{head}roster: []\nconfig:\n{config.partition('roster:')[0]}  typo: 1\n")
    file = TaskFile(path)
    file.update_roster([entry("a"), entry("b")], "open", "later")
    edit(path, "\nroster:", "\nroster:\n  # by hand")
    line = 1 + path.read_text().partition("  typo: 1")[0].count("\n")
    with pytest.raises(BadInput, match=f"line {line}: unknown key config.typo"):
        file.config()


@pytest.mark.parametrize("text", ["", "# empty\n", "[]\n", "just words\n"])
def test_a_file_that_is_no_task_is_refused(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(BadInput, match="line 1: "):
        TaskFile(path).config()


def test_bytes_that_are_no_text_are_refused(path: Path) -> None:
    path.write_bytes(b'id: "x"\ntitle: \xff\n')
    with pytest.raises(BadInput, match="line 2: not UTF-8"):
        TaskFile(path).config()


def test_a_missing_file_is_told_and_not_made_anew(golden: TaskFile) -> None:
    golden.config()
    golden.path.unlink()
    for call in (
        golden.config,
        golden.document,
        lambda: golden.update_roster([entry("a")], "running", "later"),
    ):
        with pytest.raises(IntegrityBroken, match=r"task\.yaml is missing") as refused:
            call()
        assert refused.value.hint
    assert names(golden.path) == []


def test_a_pipe_in_its_place_does_not_hang(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(IntegrityBroken, match="not a regular file"):
        TaskFile(path).config()


# The roster


def test_everything_people_wrote_survives_byte_for_byte(golden: TaskFile) -> None:
    golden.update_roster([entry("docs", "completed")], "closed", "2024-06-01T00:00:00Z")
    expected = (
        GOLDEN.replace("updatedAt: 2024-05-01T10:00:00Z", 'updatedAt: "2024-06-01T00:00:00Z"')
        .replace("state:   running ", "state:   closed ")
        .replace('    state: "active"\n    inst', '    state: "completed"\n    inst')
    )
    assert golden.path.read_text() == expected


def test_new_entries_stand_after_the_last_one(golden: TaskFile) -> None:
    golden.update_roster([entry("bio", "failed"), entry("new"), entry("1e3")], "running", "12:30")
    added = "".join(
        f'  - instance: "{name}"\n    agent: "explorer"\n    state: active\n    skills: []\n'
        for name in ("new", "1e3")
    )
    expected = (
        GOLDEN.replace("updatedAt: 2024-05-01T10:00:00Z", 'updatedAt: "12:30"')
        .replace("state: active   # for now", "state: failed   # for now")
        .replace("  # last words\n", "  # last words\n" + added)
    )
    assert golden.path.read_text() == expected
    assert [each["instance"] for each in roster(golden.path)] == ["bio", "docs", "new", "1e3"]


def test_nothing_is_written_when_nothing_changed(golden: TaskFile) -> None:
    before = golden.path.stat()
    golden.update_roster([entry("bio", "active"), entry("docs", "active")], "running", "later")
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


def test_a_roster_line_inside_a_quoted_text_is_no_roster(path: Path) -> None:
    text = 'id: t\ndescription: "a\nroster: b"\nstate: open\n'
    path.write_text(text)
    with pytest.raises(BadInput, match="line "):
        TaskFile(path).update_roster([entry("a")], "open", "later")
    assert path.read_text() == text


def test_a_state_that_people_removed_stays_away(path: Path) -> None:
    path.write_text("id: t\nroster: []\n")
    TaskFile(path).update_roster([entry("a")], "closed", "later")
    assert "closed" not in path.read_text()


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
    assert golden.config().max_concurrent == 4


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_refuses_leaves_the_old_file(
    golden: TaskFile, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(handle: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StorageFailed, match=f"task.yaml: .* \\(errno {code}\\)"):
        golden.update_roster([entry("new")], "running", "later")
    assert golden.path.read_text() == GOLDEN
    assert names(golden.path) == ["task.yaml"]


def comments(text: str) -> list[str]:
    return [line.partition("#")[2] for line in text.split("\n") if "#" in line]


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
        assert comments(path.read_text()) == comments(GOLDEN)
