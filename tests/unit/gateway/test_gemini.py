"""Google's format: requests and answers as its own package describes them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.genai import types

from retinue.core.conversation import Call, ModelFailed, Reply, Tool, Turn
from retinue.gateway.vendors import VENDORS
from retinue.gateway.vendors.base import Rates, parse_documents
from support import upstream

GEMINI = VENDORS["gemini"]
CALL = Call(id="c1", tool="look", arguments={"at": "sky"})
TALK = [
    Turn(role="system", text="be kind"),
    Turn(role="user", text="hello"),
    Turn(role="assistant", text="let me see", calls=(CALL,)),
    Turn(role="tool", text="blue", call=CALL),
    Turn(role="user", text="go on"),
]


def streamed(*pieces: list[dict[str, Any]]) -> bytes:
    """Responses as the vendor's own package reads them, each with these parts."""
    usage = {"promptTokenCount": 7, "candidatesTokenCount": 3, "totalTokenCount": 10}
    responses = [
        {
            "candidates": [{"content": {"role": "model", "parts": parts}, "index": 0}],
            "usageMetadata": usage,
            "modelVersion": "m",
        }
        for parts in pieces
    ]
    for response in responses:
        types.GenerateContentResponse.model_validate(response)
    return "".join(f"data: {json.dumps(each)}\r\n\r\n" for each in responses).encode()


def heard(body: bytes) -> Reply:
    return GEMINI.parse_reply(parse_documents(body), Rates())


def sent(*turns: Turn) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = GEMINI.build_request("g", "s", turns, []).document["contents"]
    for content in found:
        types.Content.model_validate(content)
    return found


def test_a_request_equals_that_of_the_vendors_package() -> None:
    tool = Tool(name="look", description="Look.", parameters={"type": "object"})
    asking = GEMINI.build_request("models/g-1", "secret", TALK, [tool])
    assert asking.path == "/v1beta/models/g-1:streamGenerateContent?alt=sse"
    assert asking.headers == {"x-goog-api-key": "secret"}
    types.Content.model_validate(asking.document["systemInstruction"])
    types.Tool.model_validate(asking.document["tools"][0])
    contents = sent(*TALK)
    assert [each["role"] for each in contents] == ["user", "model", "user", "user"]
    told = contents[2]["parts"][0]["functionResponse"]
    assert told == {"name": "look", "id": "c1", "response": {"output": "blue"}}


def test_schemas_omit_keys_that_the_vendor_refuses() -> None:
    schema = {
        "type": "object",
        "$schema": "x",
        "title": "T",
        "properties": {
            "title": {"type": "string", "format": "uri", "minLength": 1},
            "kind": {"const": "a"},
            "list": {"type": "array", "items": {"type": "integer", "exclusiveMinimum": 0}},
        },
        "required": ["title"],
        "additionalProperties": False,
    }
    tool = Tool(name="look", description="Look.", parameters=schema)
    (declared,) = GEMINI.build_request("g", "s", TALK, [tool]).document["tools"][0][
        "functionDeclarations"
    ]
    assert declared["parametersJsonSchema"] == {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "kind": {"enum": ["a"]},
            "list": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["title"],
        "additionalProperties": False,
    }


def test_a_recorded_stream_gives_text_and_tokens() -> None:
    pieces, _ = upstream.gemini("x:streamGenerateContent", True)
    reply = heard(b"".join(pieces or []))
    assert reply.text == "".join(upstream.WORDS) and not reply.calls
    assert (reply.used.input_tokens, reply.used.output_tokens) == (upstream.INPUT, upstream.OUTPUT)


def test_text_is_joined_and_thoughts_are_left_out() -> None:
    reply = heard(
        streamed(
            [{"text": "h", "thought": True}],
            [{"text": "m", "thought": True}],
            [{"text": "so "}],
            [{"text": "it is"}, {"text": ""}],
        )
    )
    assert reply.text == "so it is" and reply.used.input_tokens == 7
    assert sent(reply.turn)[0]["parts"] == [{"text": "hm", "thought": True}, {"text": "so it is"}]


def test_a_signed_call_goes_back_with_its_signature_and_an_id() -> None:
    call = {"functionCall": {"name": "look", "args": {"at": 1}}, "thoughtSignature": "YWJj"}
    reply = heard(streamed([call]))
    assert (reply.calls[0].tool, reply.calls[0].arguments) == ("look", {"at": 1})
    told = Turn(role="tool", text="a tree", call=reply.calls[0])
    said, answered = sent(reply.turn, told)
    assert said["parts"][0]["thoughtSignature"] == "YWJj"
    asked, given = said["parts"][0]["functionCall"], answered["parts"][0]["functionResponse"]
    assert asked["id"] == given["id"] and asked["id"]


def test_only_the_first_unsigned_call_gets_the_placeholder_signature() -> None:
    parts = sent(Turn(role="assistant", calls=(CALL, CALL)))[0]["parts"]
    assert ["thoughtSignature" in part for part in parts] == [True, False]


def test_a_call_without_arguments_has_none() -> None:
    reply = heard(streamed([{"functionCall": {"name": "look"}}]))
    assert reply.calls[0].arguments == {} and not reply.calls[0].malformed


def test_a_blocked_request_is_reported() -> None:
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}}
    types.GenerateContentResponse.model_validate(blocked)
    with pytest.raises(ModelFailed, match="SAFETY"):
        heard(f"data: {json.dumps(blocked)}\n\n".encode())
