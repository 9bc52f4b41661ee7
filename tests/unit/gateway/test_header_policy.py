"""Headers and query parameters that pass between children and providers."""

from __future__ import annotations

import pytest

from retinue.gateway.providers import BUILT_IN
from retinue.gateway.request_policy import (
    build_request_headers,
    build_url,
    filter_response_headers,
    read_token,
)


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
    assert read_token(headers, query) == "secret"


def test_the_childs_token_is_not_forwarded() -> None:
    provider = BUILT_IN["gemini"]
    sent = [("X-Goog-Api-Key", "token"), ("Content-Type", "a/b"), ("Connection", "close")]
    sent += [("X-HTTP-Method-Override", "DELETE"), ("OpenAI-Organization", "o"), ("Cookie", "c")]
    sent += [("X-Goog-User-Project", "p"), ("X-Forwarded-For", "1.2.3.4")]
    passed = build_request_headers(sent, provider, "real")
    assert passed == [("Content-Type", "a/b"), ("x-goog-api-key", "real")]
    url = build_url(provider, "/v1beta/models/m:generateContent", "key=token&alt=sse")
    assert url == f"{provider.base_url}/v1beta/models/m:generateContent?alt=sse"


def test_headers_of_vendors_clients_reach_the_provider() -> None:
    sent = [("Anthropic-Beta", "b"), ("X-Stainless-Lang", "js"), ("User-Agent", "u")]
    assert build_request_headers(sent, BUILT_IN["ollama"], None) == sent


def test_a_query_keeps_only_parameters_that_vendors_clients_send() -> None:
    query = "beta=true&$httpMethod=DELETE&access_token=x&alt=sse&a%6ct=media"
    address = build_url(BUILT_IN["anthropic"], "/v1/messages", query)
    assert address.endswith("/v1/messages?beta=true&alt=sse")


def test_only_readable_encodings_are_requested() -> None:
    sent = [("Accept-Encoding", "br, gzip, zstd")]
    assert build_request_headers(sent, BUILT_IN["ollama"], None) == [("Accept-Encoding", "gzip")]


@pytest.mark.parametrize("query", ["key=retinue-1&alt=sse", "alt=sse&k%65y=retinue-1"])
def test_the_childs_token_is_removed_from_the_query_in_any_spelling(query: str) -> None:
    address = build_url(BUILT_IN["gemini"], "/v1beta/models/g:generateContent", query)
    assert address.endswith("generateContent?alt=sse")


def test_response_headers_of_one_connection_are_dropped_and_others_are_ascii() -> None:
    received = [
        ("Transfer-Encoding", "chunked"),
        ("Request-Id", "r"),
        ("X-Region", "caf\udce9\x01"),
    ]
    assert filter_response_headers(received) == [("Request-Id", "r"), ("X-Region", "caf??")]
