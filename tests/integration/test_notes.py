"""Answers that people write into shared/human-notes.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.reader import Reader
from support.roots import Root, fresh, held, sh, until

__all__ = ["fresh"]

ASKS = """
if grep -q '^## Answer' "$RETINUE_BRIEF"; then sed '1,/^## Answer/d' "$RETINUE_BRIEF"; exit 0; fi
echo '{"status": "blocked", "questions": ["Which colour?"]}' > "$RETINUE_FINAL"
"""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    with held(tmp_path / ".retinue") as root:
        yield root
        Reader(root.path).check(finished=False)


def notes(root: Root, task: str) -> Path:
    return root.task_folder(task) / "shared" / "human-notes.md"


def is_asking(root: Root, task: str, name: str) -> bool:
    return bool(root.rows(task).get(name, {}).get("status") == "blocked")


def test_an_answer_in_the_notes_takes_a_blocked_subagent_on(root: Root) -> None:
    task = root.create_task()
    root.spawn(task, sh(ASKS, subagent_id="one"), sh(ASKS, subagent_id="two"))
    until(lambda: is_asking(root, task, "one") and is_asking(root, task, "two"))
    file = notes(root, task)
    assert f"retinue gate approve {task} one-1" in file.read_text()
    answers = {"one": "Blue, of course.", "two": "Red.\n\n- dark red"}
    head, one, two = file.read_text().split("\n## ")
    first = one[:3]
    texts = [f"{part}{answers[part[:3]]}\n" for part in (one, two)]
    # One editor writes into the file, the other puts a new one in its place.
    file.write_text("\n## ".join([head, texts[0], two]))
    until(lambda: root.rows(task)[first]["status"] == "completed")
    assert is_asking(root, task, "two" if first == "one" else "one")
    new = file.with_name("new")
    new.write_text("\n## ".join([head, *texts]))
    new.replace(file)
    for name, answer in answers.items():
        until(lambda name=name: root.rows(task)[name]["status"] == "completed")  # type: ignore[misc]
        assert root.call("subagent.result", task=task, subagent=name)["answer"].strip() == answer
        (gate,) = [e for e in root.events(task, name) if e["type"] == "gate.answered"]
        assert (gate["by"], gate["payload"]["answer"]) == ("user", answer)
        assert root.types(task, name).count("started") == 2
    root.sound()


def test_an_answer_written_while_no_steward_runs_counts(fresh: Root) -> None:
    task = fresh.create_task()
    fresh.spawn(task, sh(ASKS, subagent_id="one"))
    until(lambda: is_asking(fresh, task, "one"))
    fresh.stop()
    with notes(fresh, task).open("a") as file:
        file.write("Green.\n")
    until(lambda: fresh.rows(task)["one"]["status"] == "completed")
    assert "Green." in fresh.call("subagent.result", task=task, subagent="one")["answer"]


def test_an_answer_waits_until_a_slot_is_free(root: Root) -> None:
    task = root.create_task(limit=1)
    root.spawn(task, sh(ASKS, subagent_id="one"))
    until(lambda: is_asking(root, task, "one"))
    root.spawn(task, sh("until [ -e go ]; do sleep 0.02; done; echo x", subagent_id="busy"))
    with notes(root, task).open("a") as file:
        file.write("Green.\n")
    (gate,) = root.call("gate.list", task=task)
    assert gate["state"] == "open" and is_asking(root, task, "one")
    (root.folder(task, "busy") / "workspace" / "go").touch()
    until(lambda: root.rows(task)["one"]["status"] == "completed")


@pytest.mark.requirement("R112")
def test_text_that_is_no_answer_changes_nothing(root: Root) -> None:
    task = root.create_task()
    root.spawn(task, sh(ASKS, subagent_id="one"))
    until(lambda: is_asking(root, task, "one"))
    file = notes(root, task)
    file.write_text(f"Blue, above the heading.\n{file.read_text()}\n \n\n")
    file.with_name("other.md").write_text("## one-1\n\nWrite your answer below this line\n\nBlue\n")
    (gate,) = root.call("gate.list", task=task)
    assert gate["state"] == "open"
    file.unlink()
    file.symlink_to("other.md")
    root.call("task.show", task=task)
    assert root.call("gate.list", task=task)[0]["state"] == "open"
    root.call("task.close", task=task)
    assert root.rows(task)["one"]["close_reason"] == "blocked_unresolved"


def test_a_steward_does_not_end_as_idle_while_an_answer_is_worked_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_IDLE_SECONDS", "1")
    with held(tmp_path / ".retinue") as root:
        task = root.create_task()
        root.spawn(task, sh("grep -q '^## Answer' \"$RETINUE_BRIEF\" && sleep 2\n" + ASKS))
        until(lambda: is_asking(root, task, "subagent-1"))
        root.release()  # from here on nobody asks
        file = notes(root, task)
        file.write_text(f"{file.read_text()}Blue.\n")
        until(lambda: "closed" in root.events(task)[-1]["type"])
