"""Forwarded endpoints, keys, request summaries and error formats of each vendor."""

from __future__ import annotations

import json

import pytest

from retinue.core.staffing import ModelBackend
from retinue.gateway import vendor_http
from retinue.gateway.providers import BUILT_IN, build_routes, resolve_provider


@pytest.mark.parametrize(
    ("wire", "method", "path", "kind"),
    [
        ("openai", "POST", "/v1/chat/completions", vendor_http.CHAT),
        ("openai", "POST", "/v1/responses", vendor_http.RESPONSES),
        ("openai", "GET", "/v1/models", vendor_http.FREE),
        ("openai", "GET", "/v1/files", None),
        ("openai", "DELETE", "/v1/models/mine", None),
        ("openai", "GET", "/v1/models/../files", None),
        ("openai", "GET", "/v1/models/%2e%2e/files", None),
        ("openai", "GET", "/v1/responses/resp_1", None),
        ("openai", "GET", "/v1/models/qwen/qwen3-8b:free", vendor_http.FREE),
        ("openai", "GET", "/v1/models/ft%3Agpt-4o%3Aours%3A%3A1", vendor_http.FREE),
        ("openai", "GET", "/v1/models/..;/files", None),
        ("openai", "GET", "/v1/models/%252e%252e/files", None),
        ("openai", "GET", "/v1/models/..%5cfiles", None),
        ("openai", "GET", "/v1/models/x\\..\\files", None),
        ("openai", "GET", "/v1/models//files", None),
        ("openai", "GET", "/v1/models/x/", None),
        ("openai", "GET", "/v1/models/x%0d%0aHost:y", None),
        ("anthropic", "GET", "/v1/models/%2e%2e;/organizations", None),
        ("gemini", "GET", "/v1beta/models/gemini-2.5-flash", vendor_http.FREE),
        ("gemini", "GET", "/v1beta/models/..", None),
        ("gemini", "POST", "/v1beta/models/%2e%2e%2fx:generateContent", None),
        ("anthropic", "POST", "/v1/messages", vendor_http.MESSAGES),
        ("anthropic", "POST", "/v1/messages/count_tokens", vendor_http.FREE),
        ("anthropic", "POST", "/v1/messages/batches", None),
        ("gemini", "POST", "/v1beta/models/gemini-2.5-flash:generateContent", vendor_http.GENERATE),
        ("gemini", "POST", "/v1beta/models/g:streamGenerateContent", vendor_http.GENERATE),
        ("gemini", "POST", "/v1beta/cachedContents", None),
    ],
)
def test_only_model_endpoints_are_forwarded(
    wire: str, method: str, path: str, kind: str | None
) -> None:
    assert vendor_http.find_endpoint_kind(wire, method, path) == kind


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
    assert vendor_http.read_token(headers, query) == "secret"


def test_the_childs_token_is_not_forwarded() -> None:
    provider = BUILT_IN["gemini"]
    sent = [("X-Goog-Api-Key", "token"), ("Content-Type", "a/b"), ("Connection", "close")]
    sent += [("X-HTTP-Method-Override", "DELETE"), ("OpenAI-Organization", "o"), ("Cookie", "c")]
    sent += [("X-Goog-User-Project", "p"), ("X-Forwarded-For", "1.2.3.4")]
    passed = vendor_http.build_request_headers(sent, provider, "real")
    assert passed == [("Content-Type", "a/b"), ("x-goog-api-key", "real")]
    url = vendor_http.build_url(provider, "/v1beta/models/m:generateContent", "key=token&alt=sse")
    assert url == f"{provider.base_url}/v1beta/models/m:generateContent?alt=sse"


def test_headers_of_vendors_clients_reach_the_provider() -> None:
    sent = [("Anthropic-Beta", "b"), ("X-Stainless-Lang", "js"), ("User-Agent", "u")]
    assert vendor_http.build_request_headers(sent, BUILT_IN["ollama"], None) == sent


def test_a_query_keeps_only_what_vendors_clients_send() -> None:
    query = "beta=true&$httpMethod=DELETE&access_token=x&alt=sse&a%6ct=media"
    address = vendor_http.build_url(BUILT_IN["anthropic"], "/v1/messages", query)
    assert address.endswith("/v1/messages?beta=true&alt=sse")


@pytest.mark.parametrize(
    ("path", "members", "most"),
    [
        ("/v1/chat/completions", {"max_tokens": 7}, 7),
        ("/v1/chat/completions", {"max_output_tokens": 1, "max_tokens": 100_000}, 100_000),
        ("/v1/chat/completions", {"max_completion_tokens": 9, "n": 128}, 9 * 128),
        ("/v1/chat/completions", {"max_tokens": "12", "n": 2.0}, 24),
        ("/v1/chat/completions", {}, vendor_http.LONGEST_ANSWER),
        ("/v1/chat/completions", {"max_output_tokens": 1}, vendor_http.LONGEST_ANSWER),
        ("/v1/chat/completions", {"max_tokens": [1]}, vendor_http.LONGEST_ANSWER),
        ("/v1/chat/completions", {"max_tokens": 0}, vendor_http.LONGEST_ANSWER),
        ("/v1/chat/completions", {"max_tokens": 1, "n": "x"}, vendor_http.MOST_COPIES),
        ("/v1/responses", {"max_tokens": 1}, vendor_http.LONGEST_ANSWER),
        ("/v1/responses", {"max_output_tokens": 5}, 5),
    ],
)
def test_the_output_limit_is_the_largest_that_a_vendor_may_read(
    path: str, members: dict[str, object], most: int
) -> None:
    body = json.dumps({"model": "m"} | members).encode()
    assert vendor_http.describe("openai", path, body).most_output_tokens == most


@pytest.mark.parametrize(
    ("config", "most"),
    [
        ({"maxOutputTokens": 5, "candidateCount": 4}, 20),
        ({"max_output_tokens": 5, "candidate_count": 4}, 20),
        ({"candidateCount": 8}, 8 * vendor_http.LONGEST_ANSWER),
    ],
)
def test_each_copy_of_an_answer_counts(config: dict[str, object], most: int) -> None:
    body = json.dumps({"contents": [], "generationConfig": config}).encode()
    asked = vendor_http.describe("gemini", "/v1beta/models/g:generateContent", body)
    assert asked.most_output_tokens == most


def test_only_readable_encodings_are_requested() -> None:
    sent = [("Accept-Encoding", "br, gzip, zstd")]
    assert vendor_http.build_request_headers(sent, BUILT_IN["ollama"], None) == [
        ("Accept-Encoding", "gzip")
    ]


def test_a_refusal_has_the_vendors_error_format() -> None:
    shapes = {
        wire: json.loads(vendor_http.format_refusal(wire, 402, "budget_exceeded", "why"))
        for wire in ("openai", "anthropic", "gemini")
    }
    assert shapes["openai"]["error"]["message"] == "why"
    assert shapes["anthropic"] == {
        "type": "error",
        "error": {"type": "budget_exceeded", "message": "why"},
    }
    assert shapes["gemini"]["error"]["status"] == "BUDGET_EXCEEDED"


def test_a_request_is_summarised_and_junk_raises_no_error() -> None:
    body = json.dumps({"model": "m", "max_tokens": 7, "messages": ["x" * 40]})
    asked = vendor_http.describe("openai", "/v1/chat/completions", body.encode())
    assert (asked.model, asked.most_output_tokens) == ("m", 7)
    assert asked.input_tokens == 11
    for junk in (b"", b"{", b"[1]", b'{"model": 3, "max_tokens": "x"}', b"\xff"):
        vendor_http.describe("openai", "/v1/chat/completions", junk)


def test_images_count_few_tokens() -> None:
    body = json.dumps({"messages": [{"image": "A" * 4_000_000}]}).encode()
    assert vendor_http.describe("openai", "/v1/chat/completions", body).input_tokens < 2000


def test_a_configured_server_is_a_provider_without_a_key() -> None:
    mine = ModelBackend(name="mine", type="chatcompletion", base_url="http://127.0.0.1:9/v1/")
    found = resolve_provider(mine)
    assert (found.name, found.free, found.base_url) == ("mine", True, "http://127.0.0.1:9/v1")


def test_the_address_of_a_built_in_provider_selects_it() -> None:
    url = BUILT_IN["groq"].base_url
    found = resolve_provider(ModelBackend(name="fast", type="chatcompletion", base_url=url))
    assert (found.name, found.key_variables) == ("groq", ("GROQ_API_KEY",))


def test_another_key_is_another_provider() -> None:
    found = resolve_provider(ModelBackend(name="team", type="openai", api_key_env="TEAM_KEY"))
    assert (found.name, found.key_variables) == ("team", ("TEAM_KEY",))
    assert found.read_key({"TEAM_KEY": " k\n", "OPENAI_API_KEY": "other"}) == "k"


def test_a_wire_format_means_the_first_provider_named_for_it() -> None:
    found = build_routes(
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
def test_the_childs_token_is_removed_from_the_query_in_any_spelling(query: str) -> None:
    address = vendor_http.build_url(BUILT_IN["gemini"], "/v1beta/models/g:generateContent", query)
    assert address.endswith("generateContent?alt=sse")


def test_one_name_at_two_addresses_is_two_providers() -> None:
    places = [f"http://127.0.0.1:{port}/v1" for port in (1, 2)]
    here, there = (
        resolve_provider(ModelBackend(name="cheap", type="chatcompletion", base_url=place))
        for place in places
    )
    assert here.name == there.name
    assert here.place != there.place


def test_a_member_named_local_is_not_the_local_model() -> None:
    backend = ModelBackend(name="local", type="openai", base_url="http://127.0.0.1:1/v1")
    assert not resolve_provider(backend).local
