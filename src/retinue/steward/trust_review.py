"""Review of an untrusted root: what it would run, and what its configurations name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from retinue.core.errors import RetinueError
from retinue.core.subagent import Subagent, Task
from retinue.files import read_plain
from retinue.formats.config_document import NamedResources, find_named_resources
from retinue.formats.views_json import reviewed_to_json
from retinue.formats.yaml_document import load_yaml
from retinue.steward.app import App

CONFIG = "config.yaml"
# The file is untrusted: read no more than this.
MOST_BYTES = 4 * 1024 * 1024
FIRST_EVENTS = 10  # a run's plan is among these


def review_root(app: App) -> dict[str, Any]:
    """Return what would be resumed in the root once it is trusted."""
    tasks = app.records.list_tasks(-1, open_only=True)
    subagents = [each for task in tasks for each in app.records.list_unclosed(task.id)]
    named = NamedResources()
    for task in tasks:
        named |= _read_named_resources(app, task)
    return {
        "subagents": [reviewed_to_json(each, list_commands(each)) for each in subagents],
        "steps": [step for task in tasks for step in _list_planned_steps(app, task)],
        "named": named.to_json(),
    }


def review_config(root: Path) -> tuple[NamedResources, str]:
    """Return what the root's configuration names, and what is wrong with it, or ""."""
    try:
        text = read_plain(root / CONFIG, MOST_BYTES).decode()
        return find_named_resources(load_yaml(text, where=str(root / CONFIG))), ""
    except FileNotFoundError:
        return NamedResources(), ""
    except (RetinueError, OSError, UnicodeDecodeError) as error:
        return NamedResources(), str(error)


def list_commands(subagent: Subagent) -> list[Sequence[str]]:
    """Return every command that the contract can run: its own, checks and tool servers."""
    contract = subagent.contract
    outputs = contract.outputs
    prefix = contract.boundary.launch_prefix
    servers = [server.argv for server in contract.servers]
    return [
        words
        for words in (prefix, contract.command, outputs.verify, outputs.inspect, *servers)
        if words
    ]


def _read_named_resources(app: App, task: Task) -> NamedResources:
    try:
        return find_named_resources(app.folders.get_file(task.id).read_document().get("config"))
    except RetinueError:
        # A file that cannot be read has no effect, so there is nothing to review.
        return NamedResources()


def _list_planned_steps(app: App, task: Task) -> Iterator[dict[str, Any]]:
    """Yield the steps of the task's plan, started or not."""
    for recorded in app.records.list_events(task.id, after=0, limit=FIRST_EVENTS):
        plan: Any = recorded.event.payload.get("plan")
        for step in plan.get("steps", []) if isinstance(plan, dict) else []:
            commands = [step.get(name) for name in ("command", "verify") if step.get(name)]
            name = step.get("id") or step.get("title")
            yield {"task_id": task.id, "step": name, "commands": commands}
