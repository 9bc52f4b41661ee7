"""The inbox of a subagent, in which a child without a sandbox can write."""

from __future__ import annotations

from pathlib import Path

from retinue.workspaces.agent_folder import FolderWorkspace
from support.values import SUBAGENT


def make_agent(root: Path) -> tuple[FolderWorkspace, Path]:
    workspaces = FolderWorkspace(root, {})
    agent = workspaces.get_folder(SUBAGENT.task, SUBAGENT.id)
    agent.mkdir(parents=True)
    return workspaces, agent


def test_the_newest_message_is_the_one_with_the_highest_number(tmp_path: Path) -> None:
    workspaces, agent = make_agent(tmp_path)
    assert workspaces.find_newest_message(SUBAGENT) == 0
    (agent / "inbox").mkdir()
    for number, urgent in ((1, False), (10, True), (2, False)):
        workspaces.deliver(SUBAGENT, number, "hello", urgent=urgent)
    assert workspaces.find_newest_message(SUBAGENT) == 10


def test_files_of_a_child_among_the_messages_are_not_counted(tmp_path: Path) -> None:
    workspaces, agent = make_agent(tmp_path)
    (agent / "inbox").mkdir()
    workspaces.deliver(SUBAGENT, 3, "hello")
    for name in ("notes.txt", "9.now.now.txt", ".12.txt", "9" * 200 + ".txt"):
        (agent / "inbox" / name).touch()
    assert workspaces.find_newest_message(SUBAGENT) == 3


def test_an_inbox_that_a_child_replaced_holds_no_message(tmp_path: Path) -> None:
    workspaces, agent = make_agent(tmp_path)
    (agent / "inbox").write_text("in the place of the folder")
    assert workspaces.find_newest_message(SUBAGENT) == 0
