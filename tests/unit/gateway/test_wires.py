"""What is let through, where keys stand, and how a refusal looks to each vendor's clients."""

from __future__ import annotations

import json

import pytest

from retinue.domain.staffing import ModelBackend
from retinue.gateway import wires
from retinue.gateway.providers import BUILT_IN, provider_of, routes


@pytest.mark.parametrize(
    ("wire", "method", "path", "kind"),
    [
        ("openai", "POST", "/v1/chat/completions", wires.CHAT),
        ("openai", "POST", "/v1/responses", wires.RESPONSES),
        ("openai", "GET", "/v1/models", wires.FREE),
        ("openai", "GET", "/v1/files", None),
        ("openai", "DELETE", "/v1/models/mine", None),
        ("openai", "GET", "/v1/models/../files", None),
        ("openai", "GET", "/v1/models/%2e%2e/files", None),
        ("openai", "GET", "/v1/responses/resp_1", None),
        ("anthropic", "POST", "/v1/messages", wires.MESSAGES),
        ("anthropic", "POST", "/v1/messages/count_tokens", wires.FREE),
        ("anthropic", "POST", "/v1/messages/batches", None),
        ("gemini", "POST", "/v1beta/models/gemini-2.5-flash:generateContent", wires.GENERATE),
        ("gemini", "POST", "/v1beta/models/g:streamGenerateContent", wires.GENERATE),
        ("gemini", "POST", "/v1beta/cachedContents", None),
    ],
)
def test_models_are_let_through_and_nothing_else(
    wire: str, method: str, path: str, kind: str | None
) -> None:
    assert wires.endpoint(wire, method, path) == kind


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({"authorization": "Bearer secret"}, ""),
        ({"x-api-key": "secret"}, ""),
        ({"x-goog-api-key": "secret"}, "alt=sse"),
        ({}, "alt=sse&key=secret"),
    ],
)
def test_the_token_is_found_wherever_a_client_puts_its_key(
    headers: dict[str, str], query: str
) -> None:
    assert wires.presented(headers, query) == "secret"


def test_the_childs_token_goes_no_further() -> None:
    provider = BUILT_IN["gemini"]
    sent = [("X-Goog-Api-Key", "token"), ("Content-Type", "a/b"), ("Connection", "close")]
    passed = wires.passed_on(sent, provider, "real")
    assert passed == [("Content-Type", "a/b"), ("x-goog-api-key", "real")]
    url = wires.target(provider, "/v1beta/models/m:generateContent", "key=token&alt=sse")
    assert url == f"{provider.base_url}/v1beta/models/m:generateContent?alt=sse"


def test_only_encodings_that_can_be_read_are_asked_for() -> None:
    sent = [("Accept-Encoding", "br, gzip, zstd")]
    assert wires.passed_on(sent, BUILT_IN["ollama"], None) == [("Accept-Encoding", "gzip")]


def test_a_refusal_has_the_shape_that_the_vendors_clients_read() -> None:
    shapes = {
        wire: json.loads(wires.refusal(wire, 402, "budget_exceeded", "why"))
        for wire in ("openai", "anthropic", "gemini")
    }
    assert shapes["openai"]["error"]["message"] == "why"
    assert shapes["anthropic"] == {
        "type": "error",
        "error": {"type": "budget_exceeded", "message": "why"},
    }
    assert shapes["gemini"]["error"]["status"] == "BUDGET_EXCEEDED"


def test_a_request_is_described_without_being_trusted() -> None:
    body = json.dumps({"model": "m", "max_tokens": 7, "messages": ["x" * 40]})
    asked = wires.describe("openai", "/v1/chat/completions", body.encode())
    assert (asked.model, asked.most_output_tokens) == ("m", 7)
    assert asked.input_tokens == 11
    for junk in (b"", b"{", b"[1]", b'{"model": 3, "max_tokens": "x"}', b"\xff"):
        wires.describe("openai", "/v1/chat/completions", junk)


def test_pictures_count_for_little() -> None:
    body = json.dumps({"messages": [{"image": "A" * 4_000_000}]}).encode()
    assert wires.describe("openai", "/v1/chat/completions", body).input_tokens < 2000


def test_a_configured_server_is_its_own_provider_and_wants_no_key() -> None:
    mine = ModelBackend(name="mine", type="chatcompletion", base_url="http://127.0.0.1:9/v1/")
    found = provider_of(mine)
    assert (found.name, found.free, found.base_url) == ("mine", True, "http://127.0.0.1:9/v1")


def test_a_well_known_address_means_the_well_known_provider() -> None:
    url = BUILT_IN["groq"].base_url
    found = provider_of(ModelBackend(name="fast", type="chatcompletion", base_url=url))
    assert (found.name, found.key_variables) == ("groq", ("GROQ_API_KEY",))


def test_another_key_is_another_provider() -> None:
    found = provider_of(ModelBackend(name="team", type="openai", api_key_env="TEAM_KEY"))
    assert (found.name, found.key_variables) == ("team", ("TEAM_KEY",))
    assert found.key({"TEAM_KEY": " k\n", "OPENAI_API_KEY": "other"}) == "k"


def test_a_wire_format_means_the_first_provider_named_for_it() -> None:
    found = routes(
        [
            ModelBackend(name="a", type="chatcompletion", base_url="http://h/v1"),
            ModelBackend(name="b", type="openai"),
            ModelBackend(name="c", type="anthropic", base_url="https://proxy/v1"),
        ]
    )
    assert {name: each.base_url for name, each in found.items()} == {
        "openai": "http://h/v1",
        "a": "http://h/v1",
        "b": "https://api.openai.com/v1",
        "anthropic": "https://proxy",
        "c": "https://proxy",
    }


@pytest.mark.parametrize("query", ["key=retinue-1&alt=sse", "alt=sse&k%65y=retinue-1"])
def test_the_childs_token_leaves_the_query_however_it_is_spelled(query: str) -> None:
    address = wires.target(BUILT_IN["gemini"], "/v1beta/models/g:generateContent", query)
    assert address.endswith("generateContent?alt=sse")


def test_one_name_at_two_addresses_is_two_providers() -> None:
    places = [f"http://127.0.0.1:{port}/v1" for port in (1, 2)]
    here, there = (
        provider_of(ModelBackend(name="cheap", type="chatcompletion", base_url=place))
        for place in places
    )
    assert here.name == there.name
    assert here.place != there.place


def test_a_member_named_local_is_not_the_local_model() -> None:
    backend = ModelBackend(name="local", type="openai", base_url="http://127.0.0.1:1/v1")
    assert not provider_of(backend).local
