"""A collector gets spans of what ended, one trace for each task, and the figures of the root."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from support.roots import Root, python, sh, until

SPENDS = """
import json, os
costs = {"total_input_tokens": 12, "total_output_tokens": 5, "total_estimated_cost": 0.25}
with open(os.environ["RETINUE_LOGS"] + "/status.json", "w") as file:
    json.dump({"costs": costs, "agents": {}}, file)
print("a secret answer")
"""


class Collector:
    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.figures: list[dict[str, float]] = []
        self.bodies: list[bytes] = []
        collector = self

        class Taking(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.path.endswith("/metrics"):
                    collector.take_metrics(body)
                else:
                    collector.take(body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, body: bytes) -> None:
        self.bodies.append(body)
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def take_metrics(self, body: bytes) -> None:
        found: dict[str, float] = {}
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    kind = metric.WhichOneof("data")
                    for point in getattr(metric, kind).data_points:
                        labels = "".join(f".{each.value.string_value}" for each in point.attributes)
                        found[metric.name + labels] = getattr(point, point.WhichOneof("value"))
        self.figures.append(found)

    def named(self, name: str) -> Any:
        return next((span for span in self.spans if span.name == name), None)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    collector = Collector()
    port = collector.server.server_address[1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    yield collector
    collector.server.shutdown()
    collector.server.server_close()


def attributes(span: Any) -> dict[str, Any]:
    found = {}
    for each in span.attributes:
        kind = each.value.WhichOneof("value")
        found[each.key] = getattr(each.value, kind)
    return found


def test_a_task_is_one_trace_over_two_stewards(collector: Collector, fresh: Root) -> None:
    task = fresh.create_task()
    fresh.run(task, python(SPENDS, subagent_id="good"))
    fresh.stop()
    fresh.run(task, sh("exit 3", subagent_id="bad", max_retries=1))
    fresh.call("task.close", task=task)
    root = until(lambda: collector.named("invoke_workflow"))
    good, bad = (until(lambda n=n: collector.named(f"invoke_agent {n}")) for n in ("good", "bad"))
    assert {good.trace_id, bad.trace_id} == {root.trace_id}
    assert {good.parent_span_id, bad.parent_span_id} == {root.span_id}
    told = attributes(good)
    assert told["gen_ai.operation.name"] == "invoke_agent"
    assert told["gen_ai.agent.id"] == "good"
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (12, 5)
    assert told["retinue.cost_usd"] == 0.25
    assert (good.status.code, bad.status.code) == (0, 2)
    assert root.start_time_unix_nano <= good.start_time_unix_nano <= good.end_time_unix_nano
    attempts = [span for span in collector.spans if span.parent_span_id == bad.span_id]
    assert sorted(span.name for span in attempts) == ["attempt 1", "attempt 2"]
    assert len({span.span_id for span in collector.spans}) == len(collector.spans)
    assert not any(b"a secret answer" in body for body in collector.bodies)


def test_metrics_are_exported_after_a_change_and_at_the_end(
    collector: Collector, fresh: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
    task = fresh.create_task()
    fresh.run(task, python(SPENDS, subagent_id="good"))
    until(lambda: collector.figures and collector.figures[-1]["retinue.subagents.completed"] == 1)
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "3600000")
    fresh.stop()
    fresh.call("task.close", task=task)
    fresh.stop()
    last = collector.figures[-1]
    assert last["retinue.tasks.closed"] == 1
    assert last["retinue.tokens.input"] == 12
    assert last["retinue.cost_usd"] == 0.25


def test_each_signal_can_be_exported_alone(
    collector: Collector, fresh: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = collector.server.server_address[1]
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"http://127.0.0.1:{port}/v1/metrics")
    task = fresh.create_task()
    fresh.run(task, sh("echo fine", subagent_id="good"))
    fresh.stop()
    assert collector.figures[-1]["retinue.subagents.completed"] == 1
    assert not collector.spans


@pytest.mark.parametrize("asked", [False, True])
def test_titles_are_exported_only_where_the_environment_asks_for_them(
    collector: Collector, fresh: Root, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    if asked:
        monkeypatch.setenv("RETINUE_TELEMETRY_TITLES", "1")
    task = fresh.call("task.create", title="Sell the Acme shares")["task_id"]
    fresh.run(task, sh("echo fine", subagent_id="a", task="Ask Zorro first"))
    fresh.call("task.close", task=task)
    workflow = attributes(until(lambda: collector.named("invoke_workflow")))
    agent = attributes(until(lambda: collector.named("invoke_agent a")))
    for word in (b"Acme", b"acme", b"Zorro"):
        assert any(word in body for body in collector.bodies) == asked
    assert workflow["gen_ai.conversation.id"] == agent["gen_ai.conversation.id"]
    assert task.endswith(workflow["gen_ai.conversation.id"])
    assert ("gen_ai.workflow.name" in workflow) == asked


def test_a_lost_collector_delays_nothing(collector: Collector, fresh: Root) -> None:
    collector.server.shutdown()
    collector.server.server_close()
    task = fresh.create_task()
    (result,) = fresh.run(task, sh("echo fine"))
    assert result["status"] == "completed"
    fresh.stop()
    fresh.sound()


@pytest.mark.parametrize(
    ("said", "linked"),
    [
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", 1),
        ("00-00000000000000000000000000000000-b7ad6b7169203331-01", 0),
        ("nonsense", 0),
    ],
)
def test_a_subagent_is_linked_to_the_call_that_asked_for_it(
    collector: Collector, fresh: Root, said: str, linked: int
) -> None:
    task = fresh.create_task()
    params = {"task": task, "consumer": "mcp", "wait": True, "caller": {"trace": said}}
    fresh.call("parent.spawn", tasks=[sh("echo fine", subagent_id="asked")], **params)
    span = until(lambda: collector.named("invoke_agent asked"))
    assert len(span.links) == linked
    if linked:
        assert span.links[0].trace_id.hex() == said.split("-")[1]
        assert span.links[0].span_id.hex() == said.split("-")[2]


def test_what_a_child_claims_of_its_tools_costs_no_other_span(
    collector: Collector, fresh: Root
) -> None:
    task = fresh.create_task()
    fresh.run(task, sh("echo fine", subagent_id="hostile", close_on_completion=False))
    claims = {
        "late": "9999-01-01T00:00:00+00:00",
        "early": "0001-01-02T00:00:00+00:00",
        "half\ud800": "2026-01-01T00:00:00+00:00",
        "good": "2026-01-01T00:00:00+00:00",
    }
    with (fresh.folder(task, "hostile") / "conversation.jsonl").open("a") as file:
        for tool, at in claims.items():
            call = {"id": tool, "tool": tool, "arguments": {}}
            file.write(json.dumps({"role": "tool", "content": "x", "at": at, "call": call}) + "\n")
    fresh.call("subagent.close", task=task, subagent="hostile", by="user")
    until(lambda: collector.named("invoke_agent hostile"))
    until(lambda: collector.named("execute_tool good"))
    names = {span.name for span in collector.spans if span.name.startswith("execute_tool")}
    assert names == {"execute_tool good", "execute_tool half\ufffd"}
