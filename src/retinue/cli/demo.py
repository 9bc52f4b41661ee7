"""The `retinue demo` command: three shell subagents, one of which hangs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from retinue.cli import render, tables
from retinue.cli.options import CliCommand
from retinue.cli.steward_session import CliSession, get_cwd
from retinue.cli.temporary_root import has_root, open_temporary_root
from retinue.cli.timeline_commands import EventFormatter
from retinue.core.errors import RetinueError

if TYPE_CHECKING:
    from retinue.client.blocking_client import Client

TITLE = "A demonstration"
PATIENCE_SECONDS = 30
CONFIG = """\
orchestrator:
  coordination:
    subagent_min_timeout: 1
    subagent_cancel_grace_seconds: [1, 1]
    subagent_runtime_fallback_mode: inherited   # these commands are harmless
"""
# id -> (title, shell script that runs in the subagent's workspace)
WORK = {
    "greeter": (
        "Write a greeting",
        'echo "Hello from $RETINUE_SUBAGENT_ID" > greeting.txt; '
        'echo "greeting.txt is ready" > "$RETINUE_ANSWER"',
    ),
    "counter": (
        "Add up the numbers from 1 to 100",
        "n=0 i=1; while [ $i -le 100 ]; do n=$((n + i)) i=$((i + 1)); done; sleep 1; "
        'echo "$n" > sum.txt; echo "The sum is $n" > "$RETINUE_ANSWER"',
    ),
    "dreamer": (
        "Draft, then never finish",
        'echo "# A draft" > draft.md; echo "A draft is in draft.md" > "$RETINUE_ANSWER"; '
        "exec sleep 3600",
    ),
}


class DemoPresenter:
    """Presenter that prints each step as the command a user would type, and runs it."""

    def __init__(self, session: CliSession, client: Client) -> None:
        self._client = client
        self._silent = session.json

    def tell(self, sentence: str) -> None:
        self._print_text(f"\n{render.format_strong(sentence)}")

    def call_verb(self, *words: str, verb: str, **params: Any) -> Any:
        self._print_text(f"$ {shlex.join(['retinue', *words])}")
        return self._client.call(verb, **params)

    def show(self, text: str) -> None:
        self._print_text("\n".join(f"  {line}".rstrip() for line in text.split("\n")))

    def show_timeline(self, task: str) -> None:
        self._print_text(f"$ retinue timeline {task}")
        view = EventFormatter(lanes=True)
        for event in self._client.stream("task.events", task=task):
            for line in view.format_event(event):
                self._print_text(line)

    def _print_text(self, text: str) -> None:
        if not self._silent:
            render.print_line(text)
            render.flush()


@click.command(cls=CliCommand, example="retinue demo\nretinue demo --keep")
@click.option("--keep", is_flag=True, help="Create a root for it if there is none.")
@click.pass_obj
def demo(session: CliSession, keep: bool) -> int:
    """Run three subagents in a few seconds, without setup or cost.

    The task is kept in the root of this folder. Without a root, a temporary one is used and
    removed.
    """
    with _open_client(session, keep) as (client, kept):
        stage = DemoPresenter(session, client)
        stage.tell("A task is a folder with an event log and its own configuration.")
        stage.show("demo.yaml:\n" + CONFIG.rstrip())
        made = stage.call_verb(
            *("task", "create", "--title", TITLE, "--config", "demo.yaml"),
            verb="task.create",
            title=TITLE,
            config_text=CONFIG,
            config_name="demo.yaml",
        )
        task: str = made["task_id"]
        with _clear_after_failure(session, task):
            stage.show(task)
            _spawn(stage, task)
            first = _wait(stage, task)
            dreamer = _cancel(stage, task)
            listed = _look(stage, task)
            _close(stage, task)
    statuses = {each["agentInstance"]: each["status"] for each in listed}
    if session.json:
        document = {"task_id": task, "first": first, "cancelled": dreamer, "subagents": listed}
        render.print_json(document | {"kept": kept})
    else:
        left = f"The task is in {render.escape_text(made['path'])}"
        left = left if kept else "Its files were removed; --keep keeps them in ./.retinue"
        render.print_line(f"\nThe demo is complete. {left}")
    whole = list(statuses.values()) == ["completed", "completed", "cancelled"]
    return 0 if whole and dreamer["result"]["answer"] else 1


@contextmanager
def _open_client(session: CliSession, keep: bool) -> Iterator[tuple[Client, bool]]:
    """Open a connection to a steward; yield it and whether its root is kept.

    Without `--keep` no root is created: it would apply to every project below this folder.
    """
    if keep or session.root or os.environ.get("RETINUE_ROOT") or has_root(session.find_folder()):
        with session.open_client("task.create") as client:
            yield client, True
        return
    with open_temporary_root() as (client, root):
        session.root = str(root)
        yield client, False


@contextmanager
def _clear_after_failure(session: CliSession, task: str) -> Iterator[None]:
    """If the demo fails or is interrupted, cancel and close its task."""
    try:
        yield
    except BaseException:
        # On a new connection: the old one may still carry an unread response.
        with suppress(RetinueError, OSError), session.open_client() as client:
            client.call("task.cancel", task=task, by="user", reason="demo interrupted", kill=True)
            client.call("task.close", task=task, by="user")
        raise


def _spawn(stage: DemoPresenter, task: str) -> None:
    stage.tell("Three subagents start, each a process in its own workspace.")
    for name, (title, script) in WORK.items():
        argv = ["sh", "-c", script]
        brief = {"subagent_id": name, "title": title, "argv": argv, "context_paths": []}
        words = ("subagent", "spawn", task, "--id", name, "--title", title, "--", *argv)
        spawned = stage.call_verb(
            *words, verb="subagent.spawn", task=task, tasks=[brief], cwd=get_cwd()
        )
        stage.show(tables.format_spawned(spawned["subagents"][0]))


def _wait(stage: DemoPresenter, task: str) -> Any:
    stage.tell("wait-any returns the first that ends; the others continue.")
    first = _wait_any(stage, task)
    last = _wait_any(stage, task)["agentInstance"]
    words = ("subagent", "result", task, last)
    stage.show(
        tables.format_result(
            stage.call_verb(*words, verb="subagent.result", task=task, subagent=last)
        )
    )
    return first


def _wait_any(stage: DemoPresenter, task: str) -> Any:
    settled = stage.call_verb(
        *("subagent", "wait-any", task, "--timeout-seconds", str(PATIENCE_SECONDS)),
        verb="subagent.wait_any",
        task=task,
        timeout_seconds=PATIENCE_SECONDS,
    )
    stage.show(f"{settled['agentInstance']}  {render.format_status(settled['status'])}")
    return settled


def _cancel(stage: DemoPresenter, task: str) -> Any:
    stage.tell("The dreamer hangs. Cancelled, it still returns its draft.")
    reason = "it hangs"
    cancelled = stage.call_verb(
        *("subagent", "cancel", task, "dreamer", "--reason", reason),
        verb="subagent.cancel",
        task=task,
        subagent="dreamer",
        by="user",
        reason=reason,
    )
    stage.show(tables.format_result(cancelled["result"]))
    return cancelled


def _look(stage: DemoPresenter, task: str) -> Any:
    stage.tell("The subagents, and the events of the task.")
    listed = stage.call_verb("subagent", "list", task, verb="subagent.list", task=task)
    stage.show(tables.format_subagents(listed))
    stage.show_timeline(task)
    return listed


def _close(stage: DemoPresenter, task: str) -> None:
    stage.tell("A closed task takes no more work. One subagent was cancelled, so its run failed.")
    closed = stage.call_verb("task", "close", task, verb="task.close", task=task, by="user")
    stage.show(tables.format_closed(closed))
