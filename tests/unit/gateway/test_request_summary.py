"""Summaries of requests: model, estimated size and output limit."""

from __future__ import annotations

import json

import pytest

from retinue.gateway.request_summary import LONGEST_ANSWER, MOST_COPIES, describe_request
from retinue.gateway.vendors import VENDORS


@pytest.mark.parametrize(
    ("path", "members", "most"),
    [
        ("/v1/chat/completions", {"max_tokens": 7}, 7),
        ("/v1/chat/completions", {"max_output_tokens": 1, "max_tokens": 100_000}, 100_000),
        ("/v1/chat/completions", {"max_completion_tokens": 9, "n": 128}, 9 * 128),
        ("/v1/chat/completions", {"max_tokens": "12", "n": 2.0}, 24),
        ("/v1/chat/completions", {}, LONGEST_ANSWER),
        ("/v1/chat/completions", {"max_output_tokens": 1}, LONGEST_ANSWER),
        ("/v1/chat/completions", {"max_tokens": [1]}, LONGEST_ANSWER),
        ("/v1/chat/completions", {"max_tokens": 0}, LONGEST_ANSWER),
        ("/v1/chat/completions", {"max_tokens": 1, "n": "x"}, MOST_COPIES),
        ("/v1/responses", {"max_tokens": 1}, LONGEST_ANSWER),
        ("/v1/responses", {"max_output_tokens": 5}, 5),
    ],
)
def test_the_output_limit_is_the_largest_that_a_vendor_may_read(
    path: str, members: dict[str, object], most: int
) -> None:
    body = json.dumps({"model": "m"} | members).encode()
    assert describe_request(VENDORS["openai"], path, body).most_output_tokens == most


@pytest.mark.parametrize(
    ("config", "most"),
    [
        ({"maxOutputTokens": 5, "candidateCount": 4}, 20),
        ({"max_output_tokens": 5, "candidate_count": 4}, 20),
        ({"candidateCount": 8}, 8 * LONGEST_ANSWER),
    ],
)
def test_each_copy_of_an_answer_counts(config: dict[str, object], most: int) -> None:
    body = json.dumps({"contents": [], "generationConfig": config}).encode()
    asked = describe_request(VENDORS["gemini"], "/v1beta/models/g:generateContent", body)
    assert asked.most_output_tokens == most


def test_a_request_is_summarised_and_junk_raises_no_error() -> None:
    body = json.dumps({"model": "m", "max_tokens": 7, "messages": ["x" * 40]})
    asked = describe_request(VENDORS["openai"], "/v1/chat/completions", body.encode())
    assert (asked.model, asked.most_output_tokens) == ("m", 7)
    assert asked.input_tokens == 11
    for junk in (b"", b"{", b"[1]", b'{"model": 3, "max_tokens": "x"}', b"\xff"):
        describe_request(VENDORS["openai"], "/v1/chat/completions", junk)


def test_images_count_few_tokens() -> None:
    body = json.dumps({"messages": [{"image": "A" * 4_000_000}]}).encode()
    assert describe_request(VENDORS["openai"], "/v1/chat/completions", body).input_tokens < 2000
