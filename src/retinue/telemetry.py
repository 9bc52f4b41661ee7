"""OpenTelemetry export: one trace for each task, with spans for what has ended, and metrics.

No state is kept. Span ids are hashes of ids in the database, so spans from before and after a
restart of the steward belong to one trace. Prompts and answers are not exported: only names,
times, outcomes and usage. A title is the start of a prompt, and a task's id begins with its title:
both are left out unless the environment asks for them. The names of the GenAI conventions are in
this module alone, because they still change.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from threading import Thread
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from retinue.core import events
from retinue.core.events import BilledRequest, Recorded
from retinue.core.ids import TaskId, make_slug
from retinue.core.safe_text import clean_text
from retinue.core.subagent import Subagent, Task
from retinue.core.timeline import Lane
from retinue.steward.app import App
from retinue.steward.metrics import measure_root
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
LONGEST_NAME = 200  # characters of a tool's name or of a call's id
TITLES = "RETINUE_TELEMETRY_TITLES"  # 1: spans carry titles, and ids made from them
# Standard variables of OpenTelemetry: where each signal goes, and how often metrics do.
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
METRICS_ENDPOINT = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
INTERVAL_MS = "OTEL_METRIC_EXPORT_INTERVAL"
USUAL_INTERVAL_MS = 60_000
Attributes = Mapping[str, str | int | float]


class MetricExport:
    """Exports the figures of a root after they changed, at most once in each interval.

    An idle steward exports nothing and is not woken.
    """

    def __init__(self, app: App, resource: Resource) -> None:
        self._app = app
        self._interval_s = _read_interval_ms(os.environ) / 1000
        self._scheduled = False
        metrics = measure_root(app)
        self._metrics = {metric.name: metric for metric in metrics}
        # With an infinite interval the reader starts no thread: it exports when it is flushed.
        self._reader = PeriodicExportingMetricReader(OTLPMetricExporter(), math.inf)
        self._provider = MeterProvider([self._reader], resource, shutdown_on_exit=False)
        meter = self._provider.get_meter("retinue", VERSION)
        for metric in metrics:
            name = f"retinue.{metric.name.removesuffix('_total')}"
            callbacks = [partial(self._observe, metric.name)]
            if metric.kind == "counter":
                meter.create_observable_counter(name, callbacks, description=metric.description)
            else:
                meter.create_observable_gauge(name, callbacks, description=metric.description)

    def note_change(self) -> None:
        """Schedule an export, unless one is scheduled."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_later(self._interval_s, self._export)

    def measure(self) -> None:
        """Take the figures that the next export sends."""
        self._metrics = {metric.name: metric for metric in measure_root(self._app)}

    def shutdown(self) -> None:
        """Send the figures that were taken last; the collector may keep this waiting."""
        self._reader.force_flush()
        self._provider.shutdown()

    def _export(self) -> None:
        self._scheduled = False
        self.measure()
        # In a thread, because the collector may be slow; the database belongs to the loop's.
        Thread(target=self._reader.force_flush, daemon=True).start()

    def _observe(self, name: str, _options: CallbackOptions) -> Iterable[Observation]:
        metric = self._metrics[name]
        for value, number in metric.values.items():
            yield Observation(number, {metric.label: value} if metric.label else {})


class Telemetry:
    """Observer of events that exports metrics, and spans of closed tasks and subagents."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._resource = Resource.create({"service.name": "retinue", "service.version": VERSION})
        self._spans: BatchSpanProcessor | None = None
        self._metrics: MetricExport | None = None
        if os.environ.get(ENDPOINT) or os.environ.get(TRACES_ENDPOINT):
            self._spans = BatchSpanProcessor(OTLPSpanExporter())
        if os.environ.get(ENDPOINT) or os.environ.get(METRICS_ENDPOINT):
            self._metrics = MetricExport(app, self._resource)
        self._titles = os.environ.get(TITLES, "").strip().lower() in ("1", "true", "yes")

    def __call__(self, task: TaskId, recorded: Sequence[Recorded]) -> None:
        if self._metrics is not None:
            self._metrics.note_change()
        if self._spans is None:
            return
        # Exported later: the caller is still inside the recording of the event.
        loop = asyncio.get_running_loop()
        for entry in recorded:
            if entry.event.type == events.SUBAGENT_CLOSED:
                loop.call_soon(self._export_subagent, entry)
            elif entry.event.type == events.TASK_CLOSED:
                loop.call_soon(self._export_task, entry)

    def measure(self) -> None:
        """Take the last figures, while the database is open."""
        if self._metrics is not None:
            self._metrics.measure()

    def close(self) -> None:
        """Send the remaining spans and figures, within LEAVE_SECONDS."""
        # In threads, because an unreachable collector would block the exit for longer.
        senders = [each.shutdown for each in (self._spans, self._metrics) if each is not None]
        threads = [Thread(target=sender, daemon=True) for sender in senders]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + LEAVE_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _export_task(self, closed: Recorded) -> None:
        task = self._app.records.get_task(closed.task)
        totals = self._app.pages.get_totals(task)
        about: Attributes = {
            OPERATION: INVOKE_WORKFLOW,
            **({WORKFLOW: task.title} if self._titles else {}),
            CONVERSATION: self._get_conversation_id(task),
            INPUT_TOKENS: totals.input_tokens,
            OUTPUT_TOKENS: totals.output_tokens,
            "retinue.cost_usd": totals.estimated_cost,
            "retinue.outcome": task.outcome,
        }
        span = _Span(closed.run, INVOKE_WORKFLOW, [closed.task], task.outcome == "failed")
        self._export_span(span, (task.created_at, closed.ts), about)

    def _export_subagent(self, closed: Recorded) -> None:
        subagent = self._app.records.get_subagent(closed.task, str(closed.event.subagent))
        lane = self._app.pages.get_lane(subagent.task, subagent.id)
        path: list[str] = [subagent.task, subagent.id]
        above = subagent.contract.delegated_by
        parent: list[str] = [subagent.task, above] if above else [subagent.task]
        failed = subagent.standing.final_status == "failed"
        name = f"{INVOKE_AGENT} {subagent.id}"
        span = _Span(subagent.run, name, path, failed, parent)
        span.links = _make_links(subagent)
        self._export_span(span, (lane.created_at, closed.ts), self._describe_subagent(subagent))
        self._export_attempts(subagent, lane, path)
        for number, request in enumerate(
            self._app.pages.list_model_requests(subagent.task, subagent.id)
        ):
            asked = _Span(
                subagent.run, f"{CHAT} {request.model}", [*path, CHAT, str(number)], False, path
            )
            self._export_span(
                asked, (request.ts, request.ts), _describe_request(request), SpanKind.CLIENT
            )
        self._export_tool_calls(subagent, path)

    def _export_attempts(self, subagent: Subagent, lane: Lane, path: list[str]) -> None:
        for stint in lane.stints:
            bad = stint.status in ("error", "timeout", "cancelled")
            number = str(stint.number)
            span = _Span(subagent.run, f"attempt {number}", [*path, number], bad, path)
            taken = (stint.started_at, stint.ended_at or stint.started_at)
            self._export_span(span, taken, {"retinue.status": stint.status})

    def _export_tool_calls(self, subagent: Subagent, path: list[str]) -> None:
        """Export each tool call as a span, from the calling turn to the turn with its result."""
        entries, _ = self._app.workspace_inspector.read_entries(subagent)
        called: dict[str, str] = {}
        for entry in entries:
            at = entry.get("at")
            if not isinstance(at, str) or not _is_moment(at):
                continue
            for call in _parse_calls(entry.get("calls")):
                called[call["id"]] = at
            for call in _parse_calls([entry.get("call")]):
                about = {OPERATION: EXECUTE_TOOL, TOOL_NAME: call["tool"], TOOL_CALL_ID: call["id"]}
                name = f"{EXECUTE_TOOL} {call['tool'][:80]}"
                span = _Span(subagent.run, name, [*path, EXECUTE_TOOL, call["id"]], False, path)
                self._export_span(span, (called.get(call["id"], at), at), about)

    def _describe_subagent(self, subagent: Subagent) -> Attributes:
        result = self._app.records.get_result(subagent)
        usage = result.token_usage if result else None
        title = subagent.contract.step.title
        return {
            OPERATION: INVOKE_AGENT,
            AGENT_ID: subagent.id,
            AGENT_NAME: subagent.contract.agent,
            **({AGENT_DESCRIPTION: title} if self._titles else {}),
            CONVERSATION: self._get_conversation_id(self._app.records.get_task(subagent.task)),
            INPUT_TOKENS: (usage.input_tokens or 0) if usage else 0,
            OUTPUT_TOKENS: (usage.output_tokens or 0) if usage else 0,
            "retinue.cost_usd": float(usage.estimated_cost or 0.0) if usage else 0.0,
            "retinue.status": subagent.standing.status,
            "retinue.close_reason": subagent.standing.close_reason,
        }

    def _get_conversation_id(self, task: Task) -> str:
        """Return the task's id, without the words of the title."""
        words = make_slug(task.title)
        if self._titles or not words or not task.id.startswith(f"{words}-"):
            return task.id
        return task.id.removeprefix(f"{words}-")

    def _export_span(
        self,
        span: _Span,
        taken: tuple[str, str],
        about: Attributes,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> None:
        assert self._spans is not None
        self._spans.on_end(
            ReadableSpan(
                name=span.name,
                context=span.context,
                parent=span.parent,
                links=span.links,
                resource=self._resource,
                attributes=about,
                kind=kind,
                status=Status(StatusCode.ERROR if span.failed else StatusCode.UNSET),
                start_time=_to_nanoseconds(taken[0]),
                end_time=max(_to_nanoseconds(taken[0]), _to_nanoseconds(taken[1])),
            )
        )


class _Span:
    """Name, ids and parent of a span; the ids are hashes of run and path."""

    def __init__(
        self, run: str, name: str, path: list[str], failed: bool, parent: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.failed = failed
        self.context = _make_context(run, path)
        self.parent = _make_context(run, parent) if parent else None
        self.links: list[Link] = []


def _read_interval_ms(environment: Mapping[str, str]) -> float:
    try:
        given = float(environment.get(INTERVAL_MS) or USUAL_INTERVAL_MS)
    except ValueError:
        given = 0.0
    return given if 0 < given < math.inf else USUAL_INTERVAL_MS


def _make_links(subagent: Subagent) -> list[Link]:
    """Return a link to the span of the caller, which is in another trace, if it gave one."""
    caller = subagent.contract.parent.caller
    found = TRACEPARENT.fullmatch(caller.trace) if caller is not None else None
    if found is None:
        return []
    trace, span, flags = (int(part, 16) for part in found.groups())
    context = SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(flags))
    return [Link(context)] if context.is_valid else []


def _make_context(run: str, path: Sequence[str]) -> SpanContext:
    def hash_number(text: str, size: int) -> int:
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size]) or 1

    whose = hash_number("/".join(path).lower(), 8)
    return SpanContext(hash_number(run, 16), whose, is_remote=False, trace_flags=TraceFlags(1))


def _describe_request(request: BilledRequest) -> Attributes:
    return {
        OPERATION: CHAT,
        PROVIDER: request.provider,
        MODEL: request.model,
        INPUT_TOKENS: request.spending.input_tokens,
        OUTPUT_TOKENS: request.spending.output_tokens,
        "retinue.cost_usd": request.spending.cost,
    }


def _parse_calls(given: Any) -> list[dict[str, str]]:
    """Return the well-formed tool calls in what a child wrote, which is not trusted."""
    found = given if isinstance(given, list) else []
    return [
        # One text that cannot be encoded would cost all spans that are sent together.
        {key: clean_text(call[key])[:LONGEST_NAME] for key in ("id", "tool")}
        for call in found
        if isinstance(call, dict) and all(isinstance(call.get(key), str) for key in ("id", "tool"))
    ]


def _is_moment(text: str) -> bool:
    """Return whether a child's text is a time that a span can have: 64 bits without a sign."""
    try:
        return 0 <= _to_nanoseconds(text) < 2**63
    except (ValueError, OverflowError):
        return False


def _to_nanoseconds(stamp: str) -> int:
    return int(datetime.fromisoformat(stamp).timestamp() * 1_000_000) * 1000
