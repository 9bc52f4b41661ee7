"""A demonstration that needs nothing but a shell: three subagents, one of which gets stuck."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from retinue.domain.errors import RetinueError
from retinue.doors.cli import render, views
from retinue.doors.cli.options import Verb
from retinue.doors.cli.session import Session, here
from retinue.doors.cli.timeline import Condensed

if TYPE_CHECKING:
    from retinue.steward.client import Client

TITLE = "A demonstration"
PATIENCE_SECONDS = 30
CONFIG = """\
orchestrator:
  coordination:
    subagent_min_timeout: 1
    subagent_cancel_grace_seconds: [1, 1]
    subagent_runtime_fallback_mode: inherited   # these commands are harmless
"""
# id -> (title, what sh runs in the subagent's workspace)
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


class Stage:
    """Says what it does, as the commands that a person would type, and does it."""

    def __init__(self, session: Session, client: Client) -> None:
        self._client = client
        self._silent = session.json

    def tell(self, sentence: str) -> None:
        self._say(f"\n{render.strong(sentence)}")

    def do(self, *words: str, verb: str, **params: Any) -> Any:
        self._say(f"$ {shlex.join(['retinue', *words])}")
        return self._client.call(verb, **params)

    def show(self, text: str) -> None:
        self._say("\n".join(f"  {line}".rstrip() for line in text.split("\n")))

    def timeline(self, task: str) -> None:
        self._say(f"$ retinue timeline {task}")
        view = Condensed(lanes=True)
        for event in self._client.stream("task.events", task=task):
            for line in view.lines(event):
                self._say(line)

    def _say(self, text: str) -> None:
        if not self._silent:
            render.say(text)
            render.flush()


@click.command(cls=Verb, example="retinue demo")
@click.pass_obj
def demo(session: Session) -> int:
    """Three subagents at work, in a few seconds: nothing to set up, nothing to pay."""
    with session.client("task.create") as client:
        stage = Stage(session, client)
        stage.tell("A task is a folder and a history, with a configuration that it keeps.")
        stage.show("demo.yaml:\n" + CONFIG.rstrip())
        made = stage.do(
            *("task", "create", "--title", TITLE, "--config", "demo.yaml"),
            verb="task.create",
            title=TITLE,
            config_text=CONFIG,
            config_name="demo.yaml",
        )
        task: str = made["task_id"]
        with _cleared(session, task):
            stage.show(task)
            _spawn(stage, task)
            first = _wait(stage, task)
            dreamer = _cancel(stage, task)
            listed = _look(stage, task)
            _close(stage, task)
    statuses = {each["agentInstance"]: each["status"] for each in listed}
    if session.json:
        render.say_json(
            {"task_id": task, "first": first, "cancelled": dreamer, "subagents": listed}
        )
    else:
        render.say(
            f"\nThat was all, and as it should be. It is kept in {render.plain(made['path'])}"
        )
    whole = list(statuses.values()) == ["completed", "completed", "cancelled"]
    return 0 if whole and dreamer["result"]["answer"] else 1


@contextmanager
def _cleared(session: Session, task: str) -> Iterator[None]:
    """Nobody works in the task after a demonstration that was broken off, and it is closed."""
    try:
        yield
    except BaseException:
        # By a connection of its own: on the other an answer may still be on its way.
        with suppress(RetinueError, OSError), session.client() as client:
            client.call("task.cancel", task=task, by="user", reason="broken off", kill=True)
            client.call("task.close", task=task, by="user")
        raise


def _spawn(stage: Stage, task: str) -> None:
    stage.tell("Three subagents start at once, each a process in a workspace of its own.")
    for name, (title, script) in WORK.items():
        argv = ["sh", "-c", script]
        brief = {"subagent_id": name, "title": title, "argv": argv, "context_paths": []}
        words = ("subagent", "spawn", task, "--id", name, "--title", title, "--", *argv)
        spawned = stage.do(*words, verb="subagent.spawn", task=task, tasks=[brief], cwd=here())
        stage.show(views.spawned(spawned["subagents"][0]))


def _wait(stage: Stage, task: str) -> Any:
    stage.tell("The first to end is told at once; the others go on.")
    first = _wait_any(stage, task)
    last = _wait_any(stage, task)["agentInstance"]
    words = ("subagent", "result", task, last)
    stage.show(views.result(stage.do(*words, verb="subagent.result", task=task, subagent=last)))
    return first


def _wait_any(stage: Stage, task: str) -> Any:
    settled = stage.do(
        *("subagent", "wait-any", task, "--timeout-seconds", str(PATIENCE_SECONDS)),
        verb="subagent.wait_any",
        task=task,
        timeout_seconds=PATIENCE_SECONDS,
    )
    stage.show(f"{settled['agentInstance']}  {render.status(settled['status'])}")
    return settled


def _cancel(stage: Stage, task: str) -> Any:
    stage.tell("The dreamer hangs. Cancelled, it still returns what it had earned.")
    reason = "it dreams"
    cancelled = stage.do(
        *("subagent", "cancel", task, "dreamer", "--reason", reason),
        verb="subagent.cancel",
        task=task,
        subagent="dreamer",
        by="user",
        reason=reason,
    )
    stage.show(views.result(cancelled["result"]))
    return cancelled


def _look(stage: Stage, task: str) -> Any:
    stage.tell("What became of them, and how.")
    listed = stage.do("subagent", "list", task, verb="subagent.list", task=task)
    stage.show(views.subagents(listed))
    stage.timeline(task)
    return listed


def _close(stage: Stage, task: str) -> None:
    stage.tell("Closed, the task takes no more work. One was cancelled, so its run has failed.")
    closed = stage.do("task", "close", task, verb="task.close", task=task, by="user")
    stage.show(views.closed(closed))
