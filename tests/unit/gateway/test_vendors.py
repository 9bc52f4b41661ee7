"""Forwarded endpoints, error formats and warm-up answers of each vendor."""

from __future__ import annotations

import json

import pytest

from retinue.core.conversation import Call
from retinue.gateway.vendors import VENDORS
from retinue.gateway.vendors.base import Rates, Vendor, parse_documents


@pytest.mark.parametrize(
    ("wire", "method", "path", "forwarded"),
    [
        ("openai", "POST", "/v1/chat/completions", "counted"),
        ("openai", "POST", "/v1/responses", "counted"),
        ("openai", "GET", "/v1/models", "free"),
        ("openai", "GET", "/v1/files", None),
        ("openai", "DELETE", "/v1/models/mine", None),
        ("openai", "GET", "/v1/models/../files", None),
        ("openai", "GET", "/v1/models/%2e%2e/files", None),
        ("openai", "GET", "/v1/responses/resp_1", None),
        ("openai", "GET", "/v1/models/qwen/qwen3-8b:free", "free"),
        ("openai", "GET", "/v1/models/ft%3Agpt-4o%3Aours%3A%3A1", "free"),
        ("openai", "GET", "/v1/models/..;/files", None),
        ("openai", "GET", "/v1/models/%252e%252e/files", None),
        ("openai", "GET", "/v1/models/..%5cfiles", None),
        ("openai", "GET", "/v1/models/x\\..\\files", None),
        ("openai", "GET", "/v1/models//files", None),
        ("openai", "GET", "/v1/models/x/", None),
        ("openai", "GET", "/v1/models/x%0d%0aHost:y", None),
        ("anthropic", "GET", "/v1/models/%2e%2e;/organizations", None),
        ("gemini", "GET", "/v1beta/models/gemini-2.5-flash", "free"),
        ("gemini", "GET", "/v1beta/models/..", None),
        ("gemini", "POST", "/v1beta/models/%2e%2e%2fx:generateContent", None),
        ("anthropic", "POST", "/v1/messages", "counted"),
        ("anthropic", "POST", "/v1/messages/count_tokens", "free"),
        ("anthropic", "POST", "/v1/messages/batches", None),
        ("gemini", "POST", "/v1beta/models/gemini-2.5-flash:generateContent", "counted"),
        ("gemini", "POST", "/v1beta/models/g:streamGenerateContent", "counted"),
        ("gemini", "POST", "/v1beta/cachedContents", None),
    ],
)
def test_only_model_endpoints_are_forwarded(
    wire: str, method: str, path: str, forwarded: str | None
) -> None:
    endpoint = VENDORS[wire].find_endpoint(method, path)
    found = None if endpoint is None else "free" if endpoint.free else "counted"
    assert found == forwarded


def test_a_refusal_has_the_vendors_error_format() -> None:
    shapes = {
        wire: vendor.build_error(402, "budget_exceeded", "why") for wire, vendor in VENDORS.items()
    }
    assert shapes["openai"]["error"]["message"] == "why"
    assert shapes["anthropic"] == {
        "type": "error",
        "error": {"type": "budget_exceeded", "message": "why"},
    }
    assert shapes["gemini"]["error"]["status"] == "BUDGET_EXCEEDED"


@pytest.mark.parametrize("vendor", VENDORS.values(), ids=VENDORS)
def test_a_vendor_can_parse_the_events_that_it_builds(vendor: Vendor) -> None:
    call = Call(id="c", tool="look", arguments={"at": "x"})
    for events, text, calls in (
        (vendor.build_events("hello"), "hello", ()),
        (vendor.build_events("", call), "", (call,)),
    ):
        body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
        reply = vendor.parse_reply(parse_documents(body), Rates())
        assert (reply.text, reply.calls) == (text, calls)
        assert (reply.used.input_tokens, reply.used.output_tokens) == (1, 1)


READ = {"name": "read"}
SHELL = {"name": "shell"}


@pytest.mark.parametrize(
    ("wire", "document"),
    [
        ("anthropic", {"content_block": SHELL | {"type": "tool_use"}}),
        ("anthropic", {"content": [{"type": "text"}, SHELL | {"type": "tool_use"}]}),
        ("openai", {"choices": [{"delta": {"tool_calls": [{"function": SHELL}]}}]}),
        ("openai", {"choices": [{"message": {"tool_calls": [{"function": SHELL}]}}]}),
        ("openai", {"item": SHELL | {"type": "function_call"}}),
        ("openai", {"output": [{"type": "message"}, SHELL | {"type": "custom_tool_call"}]}),
        ("gemini", {"candidates": [{"content": {"parts": [{"functionCall": SHELL}]}}]}),
    ],
)
def test_called_tools_are_found_in_answers_and_events(
    wire: str, document: dict[str, object]
) -> None:
    vendor = VENDORS[wire]
    assert vendor.list_called_tools(document) == {"shell"}
    markers = [each.tool_marker for each in vendor.endpoints if each.tool_marker]
    assert any(marker in json.dumps(document).encode() for marker in markers)


@pytest.mark.parametrize(
    ("wire", "tools"),
    [
        ("anthropic", [READ, SHELL]),
        ("openai", [{"function": READ}, {"function": SHELL}]),
        ("openai", [READ | {"type": "function"}, {"type": "namespace", "tools": [SHELL]}]),
        ("gemini", [{"functionDeclarations": [READ]}, {"function_declarations": [SHELL]}]),
    ],
)
def test_offered_tools_are_found_in_requests(wire: str, tools: list[object]) -> None:
    assert VENDORS[wire].list_offered_tools({"tools": tools}) >= {"read", "shell"}


@pytest.mark.parametrize("wire", list(VENDORS))
def test_documents_of_any_shape_have_no_tools(wire: str) -> None:
    for name in ("tools", "choices", "candidates", "content", "content_block", "item", "output"):
        for value in (None, 7, "text", [None, 7], [{}], {}, [{"name": 7}], [{"content": []}]):
            assert VENDORS[wire].list_called_tools({name: value}) == set()
            assert VENDORS[wire].list_offered_tools({name: value}) == set()
