"""Tasks as traces: whatever came to its end is told as spans, one trace for each task.

Nothing is kept meanwhile. A span's ids follow from whose it is, so what is told before and
after a restart of the steward belongs together. What was said, asked and answered is not told:
only who, when, how it ended, and what it took. The names of the GenAI conventions stand here
alone, because they still move.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from threading import Thread
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from retinue.app import App
from retinue.domain import event as events
from retinue.domain.event import Recorded
from retinue.domain.ids import TaskId
from retinue.domain.lane import Lane
from retinue.domain.page import Paid
from retinue.domain.subagent import Subagent
from retinue.version import VERSION

OPERATION, PROVIDER, MODEL = "gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"
AGENT_ID, AGENT_NAME = "gen_ai.agent.id", "gen_ai.agent.name"
AGENT_DESCRIPTION = "gen_ai.agent.description"
CONVERSATION, WORKFLOW = "gen_ai.conversation.id", "gen_ai.workflow.name"
INPUT_TOKENS, OUTPUT_TOKENS = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
TOOL_NAME, TOOL_CALL_ID = "gen_ai.tool.name", "gen_ai.tool.call.id"
INVOKE_WORKFLOW, INVOKE_AGENT = "invoke_workflow", "invoke_agent"
CHAT, EXECUTE_TOOL = "chat", "execute_tool"

TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
LEAVE_SECONDS = 1.0
Attributes = Mapping[str, str | int | float]


class Telemetry:
    """Told of every event; tells of ends."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._resource = Resource.create({"service.name": "retinue", "service.version": VERSION})
        self._out = BatchSpanProcessor(OTLPSpanExporter())

    def __call__(self, task: TaskId, recorded: Sequence[Recorded]) -> None:
        loop = asyncio.get_running_loop()
        for entry in recorded:
            if entry.event.type == events.SUBAGENT_CLOSED:
                loop.call_soon(self._tell_subagent, entry)
            elif entry.event.type == events.TASK_CLOSED:
                loop.call_soon(self._tell_task, entry)

    def close(self) -> None:
        """What was told is sent, or given up soon."""
        last = Thread(target=self._out.shutdown, daemon=True)
        last.start()
        last.join(LEAVE_SECONDS)

    def _tell_task(self, closed: Recorded) -> None:
        task = self._app.records.task(closed.task)
        totals = self._app.pages.totals(task)
        about: Attributes = {
            OPERATION: INVOKE_WORKFLOW,
            WORKFLOW: task.title,
            CONVERSATION: task.id,
            INPUT_TOKENS: totals.input_tokens,
            OUTPUT_TOKENS: totals.output_tokens,
            "retinue.cost_usd": totals.estimated_cost,
            "retinue.outcome": task.outcome,
        }
        span = _Span(closed.run, INVOKE_WORKFLOW, [closed.task], task.outcome == "failed")
        self._tell(span, (task.created_at, closed.ts), about)

    def _tell_subagent(self, closed: Recorded) -> None:
        subagent = self._app.records.subagent(closed.task, str(closed.event.subagent))
        lane = self._app.pages.lane(subagent.task, subagent.id)
        path: list[str] = [subagent.task, subagent.id]
        above = subagent.contract.delegated_by
        parent: list[str] = [subagent.task, above] if above else [subagent.task]
        failed = subagent.standing.final_status == "failed"
        name = f"{INVOKE_AGENT} {subagent.id}"
        span = _Span(subagent.run, name, path, failed, parent)
        span.links = _links(subagent)
        self._tell(span, (lane.created_at, closed.ts), self._about(subagent))
        self._tell_attempts(subagent, lane, path)
        for number, paid in enumerate(self._app.pages.paid(subagent.task, subagent.id)):
            asked = _Span(
                subagent.run, f"{CHAT} {paid.model}", [*path, CHAT, str(number)], False, path
            )
            self._tell(asked, (paid.ts, paid.ts), _paid(paid), SpanKind.CLIENT)
        self._tell_tools(subagent, path)

    def _tell_attempts(self, subagent: Subagent, lane: Lane, path: list[str]) -> None:
        for stint in lane.stints:
            bad = stint.status in ("error", "timeout", "cancelled")
            number = str(stint.number)
            span = _Span(subagent.run, f"attempt {number}", [*path, number], bad, path)
            taken = (stint.started_at, stint.ended_at or stint.started_at)
            self._tell(span, taken, {"retinue.status": stint.status})

    def _tell_tools(self, subagent: Subagent, path: list[str]) -> None:
        """From the turn that called until the one that has the tool's word."""
        entries, _ = self._app.inspection.conversation(subagent)
        called: dict[str, str] = {}
        for entry in entries:
            at = entry.get("at")
            if not isinstance(at, str) or not _is_moment(at):
                continue
            for call in _calls(entry.get("calls")):
                called[call["id"]] = at
            for call in _calls([entry.get("call")]):
                about = {OPERATION: EXECUTE_TOOL, TOOL_NAME: call["tool"], TOOL_CALL_ID: call["id"]}
                name = f"{EXECUTE_TOOL} {call['tool'][:80]}"
                span = _Span(subagent.run, name, [*path, EXECUTE_TOOL, call["id"]], False, path)
                self._tell(span, (called.get(call["id"], at), at), about)

    def _about(self, subagent: Subagent) -> Attributes:
        result = self._app.records.result(subagent)
        usage = result.token_usage if result else None
        return {
            OPERATION: INVOKE_AGENT,
            AGENT_ID: subagent.id,
            AGENT_NAME: subagent.contract.agent,
            AGENT_DESCRIPTION: subagent.contract.step.title,
            CONVERSATION: subagent.task,
            INPUT_TOKENS: (usage.input_tokens or 0) if usage else 0,
            OUTPUT_TOKENS: (usage.output_tokens or 0) if usage else 0,
            "retinue.cost_usd": float(usage.estimated_cost or 0.0) if usage else 0.0,
            "retinue.status": subagent.standing.status,
            "retinue.close_reason": subagent.standing.close_reason,
        }

    def _tell(
        self,
        span: _Span,
        taken: tuple[str, str],
        about: Attributes,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> None:
        self._out.on_end(
            ReadableSpan(
                name=span.name,
                context=span.context,
                parent=span.parent,
                links=span.links,
                resource=self._resource,
                attributes=about,
                kind=kind,
                status=Status(StatusCode.ERROR if span.failed else StatusCode.UNSET),
                start_time=_nanoseconds(taken[0]),
                end_time=max(_nanoseconds(taken[0]), _nanoseconds(taken[1])),
            )
        )


class _Span:
    """Whose span it is: its ids follow from that."""

    def __init__(
        self, run: str, name: str, path: list[str], failed: bool, parent: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.failed = failed
        self.context = _context(run, path)
        self.parent = _context(run, parent) if parent else None
        self.links: list[Link] = []


def _links(subagent: Subagent) -> list[Link]:
    """To the call that asked for it, where its caller said which: that stands in another trace."""
    caller = subagent.contract.parent.caller
    found = TRACEPARENT.fullmatch(caller.trace) if caller is not None else None
    if found is None:
        return []
    trace, span, flags = (int(part, 16) for part in found.groups())
    context = SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(flags))
    return [Link(context)] if context.is_valid else []


def _context(run: str, path: Sequence[str]) -> SpanContext:
    def number(text: str, size: int) -> int:
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size]) or 1

    whose = number("/".join(path).lower(), 8)
    return SpanContext(number(run, 16), whose, is_remote=False, trace_flags=TraceFlags(1))


def _paid(paid: Paid) -> Attributes:
    return {
        OPERATION: CHAT,
        PROVIDER: paid.provider,
        MODEL: paid.model,
        INPUT_TOKENS: paid.spending.input_tokens,
        OUTPUT_TOKENS: paid.spending.output_tokens,
        "retinue.cost_usd": paid.spending.cost,
    }


def _calls(given: Any) -> list[dict[str, str]]:
    """Calls of tools in what a child wrote, as far as they can be believed."""
    found = given if isinstance(given, list) else []
    return [
        {"id": call["id"], "tool": call["tool"]}
        for call in found
        if isinstance(call, dict) and all(isinstance(call.get(key), str) for key in ("id", "tool"))
    ]


def _is_moment(text: str) -> bool:
    try:
        _nanoseconds(text)
    except (ValueError, OverflowError):
        return False
    return True


def _nanoseconds(stamp: str) -> int:
    return int(datetime.fromisoformat(stamp).timestamp() * 1_000_000) * 1000
