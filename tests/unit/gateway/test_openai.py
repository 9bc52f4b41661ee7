"""OpenAI's chat format: requests as its own package describes them, answers as given."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletionChunk
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from pydantic import TypeAdapter

from retinue.core.conversation import Call, Reply, Tool, Turn
from retinue.gateway.vendors import VENDORS
from retinue.gateway.vendors.base import Rates, UnreadableAnswer, VendorError, parse_documents
from support import upstream

OPENAI = VENDORS["openai"]
LOOK = Tool(
    name="look",
    description="Look.",
    parameters={"type": "object", "properties": {"at": {"type": "string"}}},
)
CALL = Call(id="c1", tool="look", arguments={"at": "sky"})
TALK = [
    Turn(role="system", text="be kind"),
    Turn(role="user", text="hello"),
    Turn(role="assistant", text="", calls=(CALL,)),
    Turn(role="tool", text="blue", call=CALL),
    Turn(role="assistant", text="it is blue"),
    Turn(role="user", text="go on"),
]
REQUEST: TypeAdapter[Any] = TypeAdapter(CompletionCreateParamsStreaming)


def streamed(*deltas: dict[str, Any]) -> bytes:
    """Chunks as the vendor's own package reads them."""
    shared = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    chunks: list[dict[str, Any]] = [
        {**shared, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in deltas
    ]
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    chunks.append({**shared, "choices": [], "usage": usage})
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


def heard(body: bytes) -> Reply:
    return OPENAI.parse_reply(parse_documents(body), Rates())


def piece(index: int | None, arguments: str, name: str = "", tool: str = "") -> dict[str, Any]:
    function: dict[str, Any] = {"arguments": arguments}
    if tool:
        function["name"] = tool
    return {"tool_calls": [{"index": index, "id": name or None, "function": function}]}


def test_a_request_equals_that_of_the_vendors_package() -> None:
    asking = OPENAI.build_request("m", "secret", TALK, [LOOK])
    REQUEST.validate_python(asking.document, strict=True)
    assert asking.headers == {"authorization": "Bearer secret"}
    roles = [each["role"] for each in asking.document["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
    (call,) = asking.document["messages"][2]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"at": "sky"}
    assert asking.document["messages"][3]["tool_call_id"] == call["id"]


def test_a_request_without_tools_has_no_tools_key() -> None:
    assert "tools" not in OPENAI.build_request("m", "secret", TALK, []).document


def test_a_recorded_stream_gives_text_and_tokens() -> None:
    pieces, _ = upstream.chat({"model": "m", "stream": True}, stated=True)
    reply = heard(b"".join(pieces or []))
    assert reply.text == "".join(upstream.WORDS) and not reply.calls
    assert (reply.used.input_tokens, reply.used.output_tokens) == (upstream.INPUT, upstream.OUTPUT)


def test_calls_are_assembled_from_deltas() -> None:
    reply = heard(
        streamed(
            {"role": "assistant", "content": "so "},
            piece(0, "", "a", "look"),
            piece(0, '{"at": '),
            piece(1, '{"at": 2}', "b", "look"),
            piece(0, "1}"),
        )
    )
    assert [(call.id, call.arguments) for call in reply.calls] == [
        ("a", {"at": 1}),
        ("b", {"at": 2}),
    ]
    assert reply.text == "so " and reply.used.output_tokens == 3


@pytest.mark.parametrize("index", [0, None], ids=["all of them the first", "not counted"])
def test_calls_with_the_same_index_are_distinguished(index: int | None) -> None:
    first, second = piece(index, "{}", "a", "look"), piece(index, '{"at": 1}', "b", "look")
    shared = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    chunks = [{**shared, "choices": [{"index": 0, "delta": each}]} for each in (first, second)]
    reply = heard("".join(f"data: {json.dumps(each)}\n\n" for each in chunks).encode())
    assert [call.id for call in reply.calls] == ["a", "b"]


def test_reasoning_is_returned_to_the_vendor_and_not_shown() -> None:
    reply = heard(streamed({"reasoning_content": "hm"}, {"content": "yes"}))
    sent = OPENAI.build_request("m", "s", [Turn(role="user", text="?"), reply.turn], []).document
    assert reply.text == "yes"
    assert sent["messages"][1]["reasoning_content"] == "hm"


def test_reasoning_in_the_text_is_not_shown() -> None:
    reply = heard(streamed({"content": "<think>\nhm"}, {"content": "</think>\n\nyes"}))
    assert reply.text == "yes"
    assert heard(streamed({"content": "a <think> b"})).text == "a <think> b"


def test_extra_fields_of_a_call_are_returned_to_the_vendor() -> None:
    given = piece(0, "{}", "a", "look")
    given["tool_calls"][0]["extra_content"] = {"google": {"thought_signature": "abc"}}
    reply = heard(streamed(given))
    (call,) = OPENAI.build_request("m", "s", [reply.turn], []).document["messages"][0]["tool_calls"]
    assert call["extra_content"] == {"google": {"thought_signature": "abc"}}


def test_malformed_arguments_are_returned_as_an_object() -> None:
    reply = heard(streamed(piece(0, '{"at": ', "a", "look")))
    assert reply.calls[0].malformed
    (call,) = OPENAI.build_request("m", "s", [reply.turn], []).document["messages"][0]["tool_calls"]
    assert call["function"]["arguments"] == "{}"


def test_parts_that_are_not_text_are_left_out() -> None:
    chunk = {
        "choices": [{"delta": {"content": [{"type": "thinking"}, {"type": "text", "text": "a"}]}}]
    }
    assert heard(f"data: {json.dumps(chunk)}\n\n".encode()).text == "a"


def test_an_empty_answer_can_be_followed_by_a_turn() -> None:
    reply = heard(streamed({"role": "assistant"}))
    assert not reply.text and not reply.calls
    sent = OPENAI.build_request("m", "s", [reply.turn, Turn(role="user", text="?")], []).document
    REQUEST.validate_python(sent)
    assert sent["messages"][0]["content"]


def test_an_error_in_the_stream_is_reported() -> None:
    body = streamed({"content": "a"}) + b'data: {"error": {"message": "overloaded"}}\n\n'
    with pytest.raises(VendorError, match="overloaded"):
        heard(body)


@pytest.mark.parametrize("body", [b"", b"data: {\n\n", b"data: [1]\n\n", b": alive\n\n"])
def test_an_invalid_answer_is_reported(body: bytes) -> None:
    with pytest.raises(UnreadableAnswer):
        heard(body)


def test_an_error_about_an_unstreamed_answer_quotes_its_start() -> None:
    with pytest.raises(UnreadableAnswer, match=r"the answer was not streamed.*<html>"):
        list(parse_documents(b"<html>\nsign in first"))
    with pytest.raises(UnreadableAnswer, match="nothing in the answer"):
        list(parse_documents(b": alive\n\n"))


def test_an_unstreamed_answer_is_read_like_a_streamed_one() -> None:
    function = {"name": "look", "arguments": '{"at": "sky"}'}
    calls = [{"id": name, "type": "function", "function": function} for name in ("c1", "c2")]
    message = {"role": "assistant", "content": "let me see", "tool_calls": calls}
    choices = [{"index": 0, "message": message, "finish_reason": "tool_calls"}]
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    whole = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    reply = heard(json.dumps(whole | {"choices": choices, "usage": usage}, indent=1).encode())
    assert (reply.text, [call.id for call in reply.calls]) == ("let me see", ["c1", "c2"])
    assert [call.arguments for call in reply.calls] == [{"at": "sky"}] * 2
    assert (reply.used.input_tokens, reply.used.output_tokens) == (7, 3)


def test_an_unstreamed_error_is_reported() -> None:
    with pytest.raises(VendorError, match="overloaded"):
        heard(b'{"error": {"message": "overloaded"}}')
    with pytest.raises(UnreadableAnswer, match=r"not streamed.*no such page"):
        heard(b'{"detail": "no such page"}')
