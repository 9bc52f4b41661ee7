"""Anthropic's format: requests and events as its own package describes them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import RawMessageStreamEvent
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from pydantic import TypeAdapter

from retinue.core.conversation import Call, Reply, Tool, Turn
from retinue.gateway.vendors import VENDORS
from retinue.gateway.vendors.base import Rates, VendorError, parse_documents
from support import upstream

ANTHROPIC = VENDORS["anthropic"]
LOOK = Tool(name="look", description="Look.", parameters={"type": "object", "properties": {}})
CALL = Call(id="c1", tool="look", arguments={"at": "sky"})
OTHER = Call(id="c2", tool="look", arguments={"at": "sea"})
TALK = [
    Turn(role="system", text="be kind"),
    Turn(role="user", text="hello"),
    Turn(role="assistant", text="let me see", calls=(CALL, OTHER)),
    Turn(role="tool", text="blue", call=CALL),
    Turn(role="tool", text="", call=OTHER),
    Turn(role="user", text="go on"),
]
REQUEST: TypeAdapter[Any] = TypeAdapter(MessageCreateParamsStreaming)
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
USAGE = {"input_tokens": 7, "output_tokens": 1, "cache_read_input_tokens": 2}


def streamed(*blocks: tuple[dict[str, Any], list[dict[str, Any]]]) -> bytes:
    """Events as the vendor's own package reads them: each block, and what is added to it."""
    message = {"id": "x", "type": "message", "role": "assistant", "model": "m", "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": USAGE}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    for index, (block, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [
            {"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas
        ]
        events.append({"type": "content_block_stop", "index": index})
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    events.append({"type": "message_delta", "delta": end, "usage": {"output_tokens": 3}})
    events.append({"type": "message_stop"})
    for event in events:
        EVENT.validate_python(event)
    lines = [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events]
    return "".join(lines).encode()


def heard(body: bytes) -> Reply:
    return ANTHROPIC.parse_reply(parse_documents(body), Rates(fresh=1.0, cached=0.5, output=2.0))


def sent(*turns: Turn) -> list[dict[str, Any]]:
    document = ANTHROPIC.build_request("claude-x", "s", turns, []).document
    REQUEST.validate_python(document)
    found: list[dict[str, Any]] = document["messages"]
    return found


def test_a_request_equals_that_of_the_vendors_package() -> None:
    asking = ANTHROPIC.build_request("claude-x", "secret", TALK, [LOOK])
    REQUEST.validate_python(asking.document)
    assert asking.headers == {"x-api-key": "secret", "anthropic-version": "2023-06-01"}
    assert asking.document["system"] == "be kind"
    assert [each["role"] for each in asking.document["messages"]] == ["user", "assistant", "user"]
    last = asking.document["messages"][2]["content"]
    assert [each["type"] for each in last] == ["tool_result", "tool_result", "text"]
    assert [each.get("tool_use_id") for each in last] == ["c1", "c2", None]


@pytest.mark.parametrize(
    ("model", "most"),
    [
        ("claude-sonnet-4-5", 64_000),
        ("claude-opus-5", 64_000),
        ("claude-3-haiku-20240307", 4_096),
        ("claude-sonnet-4-20250514", 4_096),
        ("somebody-elses", 16_384),
    ],
)
def test_max_tokens_depends_on_the_model(model: str, most: int) -> None:
    assert ANTHROPIC.build_request(model, "s", TALK, []).document["max_tokens"] == most


def test_a_recorded_stream_gives_text_and_tokens() -> None:
    pieces, _ = upstream.messages({"model": "m", "stream": True})
    reply = heard(b"".join(pieces or []))
    assert reply.text == "".join(upstream.WORDS) and not reply.calls
    assert (reply.used.input_tokens, reply.used.output_tokens) == (upstream.INPUT, upstream.OUTPUT)


def test_text_and_calls_are_assembled_from_deltas() -> None:
    reply = heard(
        streamed(
            ({"type": "text", "text": ""}, [{"type": "text_delta", "text": "so"}]),
            (
                {"type": "tool_use", "id": "a", "name": "look", "input": {}},
                [
                    {"type": "input_json_delta", "partial_json": each}
                    for each in ("", '{"at"', ": 1}")
                ],
            ),
            ({"type": "tool_use", "id": "b", "name": "look", "input": {}}, []),
        )
    )
    assert reply.text == "so"
    assert [(call.id, call.arguments) for call in reply.calls] == [("a", {"at": 1}), ("b", {})]
    assert (reply.used.input_tokens, reply.used.output_tokens) == (9, 3)
    assert reply.used.cost == 7 * 1.0 + 2 * 0.5 + 3 * 2.0
    assert [each["type"] for each in sent(reply.turn)[0]["content"]] == [
        *("text", "tool_use", "tool_use"),
    ]


def test_signed_thoughts_are_returned_unchanged_and_not_shown() -> None:
    reply = heard(
        streamed(
            (
                {"type": "thinking", "thinking": "", "signature": ""},
                [
                    {"type": "thinking_delta", "thinking": "hm"},
                    {"type": "signature_delta", "signature": "abc"},
                ],
            ),
            ({"type": "redacted_thinking", "data": "xyz"}, []),
            ({"type": "text", "text": "yes"}, []),
        )
    )
    assert reply.text == "yes"
    assert sent(reply.turn)[0]["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "abc"},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "text", "text": "yes"},
    ]


def test_content_that_the_vendor_refuses_is_not_returned() -> None:
    reply = heard(
        streamed(
            ({"type": "text", "text": " "}, []),
            ({"type": "thinking", "thinking": "hm", "signature": ""}, []),
            (
                {"type": "tool_use", "id": "a", "name": "look", "input": {}},
                [{"type": "input_json_delta", "partial_json": '{"at'}],
            ),
        )
    )
    assert reply.calls[0].malformed
    (block,) = sent(reply.turn)[0]["content"]
    assert (block["type"], block["input"]) == ("tool_use", {})


def test_an_empty_answer_can_be_followed() -> None:
    reply = heard(streamed())
    assert not reply.text and not reply.calls
    assert sent(reply.turn, Turn(role="user", text="?"))[0]["content"][0]["text"]


def test_an_error_in_the_stream_is_reported() -> None:
    error = b'event: error\ndata: {"type": "error", "error": {"message": "overloaded"}}\n\n'
    with pytest.raises(VendorError, match="overloaded"):
        heard(streamed() + error)


def test_an_unstreamed_answer_is_read_like_a_streamed_one() -> None:
    blocks = [
        {"type": "text", "text": "let me see"},
        {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "sky"}},
    ]
    message = {"id": "x", "type": "message", "role": "assistant", "model": "m", "content": blocks}
    message |= {"stop_reason": "tool_use", "stop_sequence": None, "usage": USAGE}
    reply = heard(json.dumps(message).encode())
    assert (reply.text, reply.calls, reply.source) == ("let me see", (CALL,), blocks)
    assert (reply.used.input_tokens, reply.used.output_tokens) == (9, 1)
