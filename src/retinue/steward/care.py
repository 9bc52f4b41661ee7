"""Verbs that look after a root: what is in force, what is broken, what can go."""

from __future__ import annotations

import os
from typing import Any

from retinue import upkeep
from retinue.app import App
from retinue.domain.errors import NotFound, Refused
from retinue.domain.ids import TaskId
from retinue.domain.subagent import Gate
from retinue.steward.params import Params
from retinue.steward.rows import spawned_row, subagent_row
from retinue.steward.verbs import Verb
from retinue.version import VERSION


async def status(app: App, params: Params) -> Any:
    params.done()
    open_tasks = app.records.tasks(-1, open_only=True)
    return {
        "running": True,
        "pid": os.getpid(),
        "version": VERSION,
        "root": str(app.settings.root),
        "subagents": {"alive": app.service.supervisor.alive},
        "tasks": {"open": len(open_tasks)},
    }


async def doctor(app: App, params: Params) -> Any:
    params.done()
    checks = await upkeep.examine(app)
    return {
        "ok": all(check["ok"] for check in checks),
        "checks": checks,
        "isolation": await upkeep.boundary(app),
    }


async def verify(app: App, params: Params) -> Any:
    task = params.text("task", "")
    params.done()
    problems = upkeep.verify(app, TaskId(task) if task else None)
    return {"ok": not problems, "problems": problems}


async def collect_garbage(app: App, params: Params) -> Any:
    force = params.flag("force")
    params.done()
    removed, kept = await upkeep.collect(app, force=force)
    return {"removed": removed, "kept": kept}


async def model_list(app: App, params: Params) -> Any:
    params.done()
    return await upkeep.models(app)


async def subagent_send(app: App, params: Params) -> Any:
    task, name, by = params.task(), params.text("subagent"), params.by()
    message = params.text("message")
    params.done()
    return subagent_row(app, app.service.subagents.send(task, name, message, by=by))


async def gate_approve(app: App, params: Params) -> Any:
    task, name, by = params.task(), params.text("gate"), params.by()
    answer = params.text("answer", "approved")
    params.done()
    gate = _open_gate(app, task, name)
    subagent = await app.service.spawning.continue_(task, gate.subagent, answer, by=by)
    return spawned_row(app, subagent)


async def gate_reject(app: App, params: Params) -> Any:
    task, name, by = params.task(), params.text("gate"), params.by()
    reason = params.text("reason", "")
    params.done()
    gate = _open_gate(app, task, name)
    why = f"gate {gate.id} rejected" + (f": {reason}" if reason else "")
    await app.service.subagents.cancel(task, gate.subagent, by=by, reason=why)
    return subagent_row(app, app.service.subagents.get(task, gate.subagent))


CARE: dict[str, Verb] = {
    "steward.status": status,
    "doctor": doctor,
    "verify": verify,
    "gc": collect_garbage,
    "model.list": model_list,
    "subagent.send": subagent_send,
    "gate.approve": gate_approve,
    "gate.reject": gate_reject,
}


def _open_gate(app: App, task: TaskId, name: str) -> Gate:
    found = [gate for gate in app.service.subagents.gates(task) if gate.id == name]
    hint = f"'retinue gate list {task}' shows the open ones"
    if not found:
        raise NotFound(f"no gate {name[:80]!a} in task {task}", code="unknown_gate", hint=hint)
    (gate,) = found
    if gate.state != "open":
        raise Refused(f"gate {gate.id} is {gate.state}", code="gate_closed", hint=hint)
    return gate
