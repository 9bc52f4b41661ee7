"""Verbs for maintenance of a root: status, metrics, checks, garbage, messages and gates."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from retinue.core.errors import BadInput, NotFound, Refused
from retinue.core.ids import TaskId
from retinue.core.placement import make_ambiguous_node_error
from retinue.core.subagent import Gate
from retinue.core.task_config import TaskConfig
from retinue.formats import views_json
from retinue.processes import finish_work
from retinue.steward import doctor, maintenance
from retinue.steward.agent_staffing import agent_to_json
from retinue.steward.app import App
from retinue.steward.backup import write_backup
from retinue.steward.garbage_collection import CollectRequest, collect, delete_task
from retinue.steward.metrics import format_for_prometheus, measure_root
from retinue.steward.trust_review import review_root
from retinue.steward.verbs.params import MOST, Params
from retinue.steward.verbs.subagent_rows import make_spawned_row, make_subagent_row
from retinue.steward.verbs.task_verbs import Verb
from retinue.version import VERSION


async def report_status(app: App, params: Params) -> Any:
    params.refuse_unknown()
    open_tasks = app.records.list_tasks(-1, open_only=True)
    return {
        "running": True,
        "pid": os.getpid(),
        "version": VERSION,
        "root": str(app.settings.root),
        "subagents": {"alive": app.supervisor.alive},
        "tasks": {"open": len(open_tasks)},
    }


async def list_nodes(app: App, params: Params) -> Any:
    """List the nodes of the hub that this root is connected to."""
    params.refuse_unknown()
    cluster = _require_cluster(app)
    nodes = await cluster.list_now()
    current = cluster.link.connection.is_connected
    return views_json.nodes_to_json(nodes, cluster.list_heard(), current=current)


async def report_cluster(app: App, params: Params) -> Any:
    """Return which hub this root uses and whether it answers."""
    params.refuse_unknown()
    cluster = _require_cluster(app)
    nodes = await cluster.list_now()
    link = cluster.link
    return {
        "hub": link.connection.address.url,
        "connected": link.connection.is_connected,
        "steward": link.steward,
        "lease": link.lease_s,
        "nodes_up": sum(node.state == "up" for node in nodes),
    }


def _require_cluster(app: App) -> Any:  # a ClusterRuntime; see App
    """Return the connection to the hub.

    Raises:
        NotFound: this root is connected to none.
    """
    if app.cluster is None:
        raise NotFound(
            "this root is not connected to a hub",
            code="not_connected",
            hint="'retinue cluster connect' uses this machine's hub, or that of an invitation; "
            "'retinue hub start' makes one",
        )
    return app.cluster


async def drain_node(app: App, params: Params) -> Any:
    """Ask a node to accept no more orders."""
    name = params.take_text("node")
    within = params.take_raw("within")
    params.refuse_unknown()
    nodes = await app.cluster.list_now() if app.cluster is not None else []
    found = [node for node in nodes if name in (node.name, node.id) and node.state != "left"]
    # A machine that was set up anew has the name of one that was lost.
    found = [node for node in found if node.state != "lost"] or found[:1]
    if len(found) > 1:
        raise make_ambiguous_node_error(name, [node.id for node in found])
    if not found:
        raise NotFound(
            f"there is no node {name[:64]!a}",
            code="unknown_node",
            hint="'retinue nodes' lists them",
        )
    seconds = float(within) if isinstance(within, int | float) else None
    answered = await app.cluster.drain(found[0].id, seconds)
    return {"node": found[0].name, "draining": answered}


async def run_doctor(app: App, params: Params) -> Any:
    configured = _make_config_reader(app, params)
    params.refuse_unknown()
    checks = await doctor.run_checks(app, configured)
    return {
        "ok": all(check["ok"] for check in checks),
        "checks": checks,
        "isolation": await doctor.describe_boundary(app, doctor.read_launch_prefix(configured)),
    }


def _make_config_reader(app: App, params: Params) -> Callable[[], TaskConfig]:
    """Return a reader of the root's configuration, or of the one sent with the request.

    The command line sends one if there is no root yet.
    """
    text = params.take_text("config_text", "")
    where = params.take_text("config_name", "configuration")
    return partial(maintenance.read_root_config, app, text, where)


async def verify(app: App, params: Params) -> Any:
    task = params.take_text("task", "")
    params.refuse_unknown()
    task_id = app.records.get_task(TaskId(task)).id if task else None
    problems, repaired = maintenance.verify(app, task_id)
    answer: dict[str, Any] = {"ok": not problems, "problems": problems}
    return answer | ({"repaired": repaired} if repaired else {})


async def show_review(app: App, params: Params) -> Any:
    """Return what the root would run, for the decision whether to trust it."""
    params.refuse_unknown()
    return review_root(app)


async def collect_garbage(app: App, params: Params) -> Any:
    request = CollectRequest(
        force=params.take_flag("force"),
        dry_run=params.take_flag("dry_run"),
        tasks=params.take_flag("tasks"),
        older_than_seconds=params.take_number("older_than_seconds"),
        keep=params.take_count("keep", 0, MOST),
    )
    params.refuse_unknown()
    return await collect(app, request)


async def delete_one_task(app: App, params: Params) -> Any:
    task = params.take_task()
    by = params.get_actor()
    force = params.take_flag("force")
    params.refuse_unknown()
    return await delete_task(app, app.records.get_task(task), by=by, force=force)


async def show_metrics(app: App, params: Params) -> Any:
    params.refuse_unknown()
    return {"text": format_for_prometheus(measure_root(app))}


async def back_up(app: App, params: Params) -> Any:
    target = Path(params.take_text("path"))
    params.refuse_unknown()
    if not target.is_absolute():
        raise BadInput("path must be absolute", code="invalid_request")
    # The log and the files of all tasks should show what the database has.
    app.projector.flush()
    # One at a time with gc and deletions, which remove files.
    async with app.collection_lock:
        return await finish_work(asyncio.to_thread(write_backup, app.settings.root, target))


async def list_models(app: App, params: Params) -> Any:
    configured = _make_config_reader(app, params)
    params.refuse_unknown()
    return await doctor.list_models(app, configured())


async def send_message(app: App, params: Params) -> Any:
    task = params.take_task()
    name = params.take_text("subagent")
    by = params.get_actor()
    message = params.take_text("message")
    urgent = params.take_flag("now")
    params.refuse_unknown()
    sent = app.subagents.send(task, name, message, by=by, urgent=urgent)
    return make_subagent_row(app, sent)


async def list_agents(app: App, params: Params) -> Any:
    """Return the coding agents of this machine and of the configuration."""
    configured = _make_config_reader(app, params)
    params.refuse_unknown()
    found = app.spawning.agents.list_agents(app.folders.complete_config(configured()))
    return [agent_to_json(each) for each in found]


async def approve_gate(app: App, params: Params) -> Any:
    task = params.take_task()
    name = params.take_text("gate")
    by = params.get_actor()
    answer = params.take_text("answer", "approved")
    params.refuse_unknown()
    gate = _find_open_gate(app, task, name)
    asking = app.records.get_subagent(task, gate.subagent)
    if asking.standing.in_review:
        await app.supervisor.joiner.approve(asking, by=by, answer=answer)
        return make_spawned_row(app, app.records.get_subagent(task, gate.subagent))
    subagent = await app.spawning.continue_(task, gate.subagent, answer, by=by)
    return make_spawned_row(app, subagent)


async def reject_gate(app: App, params: Params) -> Any:
    task = params.take_task()
    name = params.take_text("gate")
    by = params.get_actor()
    reason = params.take_text("reason", "")
    params.refuse_unknown()
    gate = _find_open_gate(app, task, name)
    asking = app.records.get_subagent(task, gate.subagent)
    if asking.standing.in_review:
        await app.supervisor.joiner.reject(asking, by=by, reason=reason)
        return make_subagent_row(app, app.records.get_subagent(task, gate.subagent))
    why = f"gate {gate.id} rejected" + (f": {reason}" if reason else "")
    await app.subagents.cancel(task, gate.subagent, by=by, reason=why)
    return make_subagent_row(app, app.records.get_subagent(task, gate.subagent))


ADMIN_VERBS: dict[str, Verb] = {
    "steward.status": report_status,
    "nodes.list": list_nodes,
    "cluster.status": report_cluster,
    "nodes.drain": drain_node,
    "doctor": run_doctor,
    "verify": verify,
    "root.review": show_review,
    "gc": collect_garbage,
    "backup": back_up,
    "metrics": show_metrics,
    "task.delete": delete_one_task,
    "model.list": list_models,
    "agent.list": list_agents,
    "subagent.send": send_message,
    "gate.approve": approve_gate,
    "gate.reject": reject_gate,
}


def _find_open_gate(app: App, task: TaskId, name: str) -> Gate:
    gates = app.records.list_gates(app.records.get_task(task).id)
    found = [gate for gate in gates if gate.id == name]
    hint = f"'retinue gate list {task}' lists the gates"
    if not found:
        raise NotFound(f"no gate {name[:80]!a} in task {task}", code="unknown_gate", hint=hint)
    (gate,) = found
    if gate.state != "open":
        raise Refused(f"gate {gate.id} is {gate.state}", code="gate_closed", hint=hint)
    return gate
