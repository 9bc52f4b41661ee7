"""Request policy: plain model requests pass, hosted features and other models do not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.budget import Budget
from retinue.core.staffing import ModelBackend
from retinue.core.task_config import ModelTerms
from retinue.gateway.providers import resolve_provider
from retinue.gateway.request_policy import PolicyViolation, RequestPolicy, build_policy
from retinue.gateway.request_policy import strip_hosted_search as leave_out
from retinue.gateway.request_summary import LARGE, RequestSummary, describe_request
from retinue.gateway.vendors import VENDORS

PATHS = {
    "chat": ("openai", "/v1/chat/completions"),
    "embeddings": ("openai", "/v1/embeddings"),
    "responses": ("openai", "/v1/responses"),
    "messages": ("anthropic", "/v1/messages"),
    "generate": ("gemini", "/v1beta/models/m:generateContent"),
    "count": ("gemini", "/v1beta/models/m:countTokens"),
}
BACKENDS = {
    kind: ModelBackend(name=kind, type=kind, model="m")
    for kind in ("openai", "anthropic", "gemini")
}
SCHEMA = {"type": "object", "properties": {"url": {"type": "string"}}}
FAR = "https://example.com/?secret"
PICTURE = "data:image/png;base64,aGVsbG8="
INLINE = {"inlineData": {"mimeType": "image/png", "data": "aGVsbG8="}}
FAR_FILE = {"fileData": {"fileUri": FAR}}


def describe(wire: str, path: str, body: bytes) -> RequestSummary:
    return describe_request(VENDORS[wire], path, body)


def said(*parts: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(parts)}]}


def part(**members: Any) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": [members]}]}


def source(**members: Any) -> dict[str, Any]:
    return {"type": "image", "source": members}


PLAIN: list[tuple[str, dict[str, Any]]] = [
    ("chat", {"messages": [{"role": "user", "content": "see https://example.com"}]}),
    ("chat", {"tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]}),
    ("chat", said({"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}})),
    ("chat", said({"type": "text", "text": "https://example.com"}, {"text": "see http://x"})),
    (
        "chat",
        {"service_tier": "auto", "store": False, "n": 2, "min_p": 0.1, "modalities": ["text"]},
    ),
    ("embeddings", {"input": ["https://example.com", "x"], "encoding_format": "float"}),
    ("responses", {"input": "hi", "store": False, "background": False, "include": ["x"]}),
    ("responses", {"tools": [{"type": "custom", "name": "apply"}, {"type": "local_shell"}]}),
    (
        "responses",
        {
            "tools": [
                {"type": "namespace", "name": "s", "tools": [{"type": "function", "name": "f"}]}
            ]
        },
    ),
    ("responses", {"input": [{"type": "function_call_output", "call_id": "1", "output": FAR}]}),
    (
        "responses",
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": PICTURE}]}]},
    ),
    ("messages", {"metadata": {"user_id": "u"}, "system": [{"type": "text", "text": FAR}]}),
    ("messages", {"tools": [{"name": "f", "input_schema": SCHEMA}, {"type": "bash_20250124"}]}),
    ("messages", said(source(type="base64", media_type="image/png", data="aGVsbG8="))),
    (
        "messages",
        said(
            {"type": "tool_use", "id": "1", "name": "fetch", "input": {"url": FAR}},
            role="assistant",
        ),
    ),
    (
        "messages",
        said({"type": "document", "source": {"type": "text", "data": "Note: https://x"}}),
    ),
    ("messages", {"service_tier": "standard_only", "mcp_servers": [], "speed": "standard"}),
    ("generate", {"tools": [{"functionDeclarations": [{"name": "f", "parameters": SCHEMA}]}]}),
    ("generate", part(**INLINE)),
    ("generate", part(functionCall={"name": "fetch", "args": {"fileUri": FAR}})),
    ("generate", part(functionResponse={"name": "f", "response": {"url": FAR}, "parts": [INLINE]})),
]

# Requests with the feature that each of them uses.
BEYOND: list[tuple[str, dict[str, Any], str]] = [
    ("chat", {"web_search_options": {}}, "web_search"),
    ("chat", {"search_parameters": {"mode": "on"}}, "web_search"),
    ("chat", {"plugins": [{"id": "web"}]}, "plugins"),
    ("chat", {"models": ["other"]}, "models"),
    ("chat", {"store": True}, "store"),
    ("chat", {"service_tier": "priority"}, "service_tier"),
    ("chat", {"modalities": ["image", "text"]}, "image_generation"),
    ("chat", {"modalities": "image"}, "image_generation"),
    ("chat", {"tools": [{"type": "web_search"}]}, "web_search"),
    ("chat", {"tools": [{"type": "browser_use", "x": 1}]}, "browser_use"),
    ("chat", said({"type": "image_url", "image_url": {"url": FAR}}), "urls"),
    ("chat", said({"type": "image_url", "image_url": FAR}), "urls"),
    ("chat", said({"type": "image_url", "image_url": {"url": " " * 500 + FAR}}), "urls"),
    ("chat", said({"type": "file", "file": {"file_id": "file-1"}}), "files"),
    ("chat", said({"type": "file", "file": {"file_data": FAR}}), "urls"),
    ("chat", said({"image_url": FAR}), "urls"),
    ("chat", said({"type": "text", "text": "x", "image_url": {"url": FAR}}), "urls"),
    ("chat", {"tools": [{"web_search": {"enable": True}}]}, "web_search"),
    ("embeddings", {"input": [{"image": FAR}]}, "urls"),
    ("responses", {"tools": [{"type": "web_search_preview_2025_03_11"}]}, "web_search"),
    ("responses", {"tools": [{"type": "mcp", "server_url": FAR}]}, "mcp"),
    ("responses", {"tools": [{"type": "code_interpreter"}]}, "code_interpreter"),
    ("responses", {"tools": [{"type": "computer_use_preview"}]}, "computer_use"),
    ("responses", {"tools": [{"type": "file_search"}]}, "file_search"),
    ("responses", {"tools": [{"type": "image_generation"}]}, "image_generation"),
    (
        "responses",
        {"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]},
        "code_interpreter",
    ),
    (
        "responses",
        {"tools": [{"type": "namespace", "name": "s", "tools": [{"type": "mcp"}]}]},
        "mcp",
    ),
    ("responses", {"background": True}, "background"),
    ("responses", {"store": True}, "store"),
    ("responses", {"previous_response_id": "resp_1"}, "store"),
    ("responses", {"conversation": "conv_1"}, "store"),
    ("responses", {"prompt": {"id": "pmpt_1"}}, "store"),
    ("responses", {"input": [{"type": "item_reference", "id": "i"}]}, "store"),
    (
        "responses",
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": FAR}]}]},
        "urls",
    ),
    (
        "responses",
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": FAR}]}]},
        "urls",
    ),
    (
        "responses",
        {
            "input": [
                {
                    "type": "function_call_output",
                    "call_id": "1",
                    "output": [{"type": "input_image", "file_id": "file-1"}],
                }
            ]
        },
        "files",
    ),
    ("messages", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search"),
    ("messages", {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]}, "web_fetch"),
    ("messages", {"tools": [{"type": "code_execution_20250825"}]}, "code_interpreter"),
    ("messages", {"tools": [{"type": "computer_20250124"}]}, "computer_use"),
    ("messages", {"mcp_servers": [{"type": "url", "url": FAR}]}, "mcp"),
    ("messages", {"container": "c"}, "code_interpreter"),
    ("messages", {"service_tier": "priority"}, "service_tier"),
    ("messages", {"speed": "fast"}, "service_tier"),
    ("messages", said(source(type="url", url=FAR)), "urls"),
    ("messages", said(source(type="file", file_id="f")), "files"),
    (
        "messages",
        said({"type": "tool_result", "tool_use_id": "1", "content": [source(type="url", url=FAR)]}),
        "urls",
    ),
    (
        "messages",
        said(
            {
                "type": "document",
                "source": {"type": "content", "content": [source(type="url", url=FAR)]},
            }
        ),
        "urls",
    ),
    ("messages", said({"type": "server_tool_use", "name": "web_search"}), "web_search"),
    ("generate", {"tools": [{"googleSearch": {}}]}, "web_search"),
    ("generate", {"tools": [{"google_search": {}}]}, "web_search"),
    ("generate", {"tools": [{"functionDeclarations": [], "urlContext": {}}]}, "web_fetch"),
    ("generate", {"tools": [{"codeExecution": {}}]}, "code_interpreter"),
    ("generate", {"tools": [{"computerUse": {}}]}, "computer_use"),
    ("generate", {"tools": [{"fileSearch": {}}]}, "file_search"),
    ("generate", {"tools": [{"googleMaps": {}}]}, "google_maps"),
    ("generate", {"cachedContent": "cachedContents/x"}, "store"),
    ("generate", {"generationConfig": {"responseModalities": ["IMAGE"]}}, "image_generation"),
    ("generate", part(**FAR_FILE), "urls"),
    ("generate", part(file_data={"file_uri": FAR}), "urls"),
    ("generate", part(functionResponse={"name": "f", "parts": [FAR_FILE]}), "urls"),
    ("count", {"generateContentRequest": part(**FAR_FILE)}, "urls"),
]


def asked(kind: str, members: dict[str, Any], *, large: bool = False) -> RequestSummary:
    wire, path = PATHS[kind]
    filler = {"gemini": "title", "anthropic": "system", "openai": "user"}[wire]
    document = ({"model": "m"} if wire != "gemini" else {}) | members
    if large:
        document |= {filler: document.get(filler) or "word " * LARGE}
    return describe(wire, path, json.dumps(document).encode())


def objection(
    kind: str, request: RequestSummary, policy: RequestPolicy | None = None
) -> PolicyViolation | None:
    backend = BACKENDS[PATHS[kind][0]]
    policy = policy or build_policy("models", Budget(), list(BACKENDS.values()), ModelTerms())
    return policy.find_violation(resolve_provider(backend), request)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(("kind", "members"), PLAIN)
def test_a_plain_request_is_allowed(kind: str, members: dict[str, Any], large: bool) -> None:
    request = asked(kind, members, large=large)
    assert (request.features, request.unreadable) == ({}, "")
    assert objection(kind, request) is None


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(("kind", "members", "feature"), BEYOND)
def test_a_hosted_feature_is_refused_until_it_is_allowed(
    kind: str, members: dict[str, Any], feature: str, large: bool
) -> None:
    request = asked(kind, members, large=large)
    assert list(request.features) == [feature], request
    refused = objection(kind, request)
    assert refused is not None and refused.code == "hosted_not_allowed"
    assert f"allow_hosted: [{feature}]" in refused.message
    backends = list(BACKENDS.values())
    allowing = build_policy("models", Budget(), backends, ModelTerms(allow_hosted=(feature,)))
    assert objection(kind, request, allowing) is None
    assert objection(kind, request, build_policy("on", Budget(), backends, ModelTerms())) is None


@pytest.mark.parametrize(
    "members",
    [
        {"tools": {"type": "web_search"}},
        {"tools": [["web_search"]]},
        {"tools": [{"Type": "web_search", "name": "f"}]},
        {"messages": [{"role": "user", "Content": [{"type": "image_url", "image_url": FAR}]}]},
        {"messages": [{"role": "user", "content": [{"TYPE": "image_url", "image_url": FAR}]}]},
        {"messages": [[FAR]]},
        {"messages": [{"role": "user", "content": [FAR]}]},
    ],
)
def test_a_request_in_an_unknown_format_is_refused(members: dict[str, Any]) -> None:
    refused = objection("chat", asked("chat", members))
    assert refused is not None and (refused.status, refused.code) == (400, "invalid_request")


def test_a_deeply_nested_request_is_refused() -> None:
    # Each level is valid; only the depth is not.
    deep = (
        b'{"model":"m","tools":'
        + b'[{"type":"namespace","tools":' * 900
        + b"[]"
        + b"}]" * 900
        + b"}"
    )
    request = describe(*PATHS["responses"], deep)
    refused = objection("responses", request)
    assert refused is not None and refused.code == "invalid_request"


def test_a_google_request_with_both_spellings_of_a_name_is_refused() -> None:
    both = {"tools": [], "generationConfig": {}, "generation_config": {"maxOutputTokens": 1}}
    refused = objection("generate", asked("generate", both))
    assert refused is not None and refused.code == "invalid_request"


@pytest.mark.parametrize(
    ("kind", "model", "is_named"),
    [
        ("anthropic", "claude-sonnet-5-5", True),
        ("anthropic", "claude-sonnet-5-5-20260901", True),
        ("anthropic", "claude-haiku-4-5-20251001", True),
        ("anthropic", "claude-opus-5-5", False),
        ("openai", "gpt-5", True),
        ("openai", "gpt-5-2025-08-07", True),
        ("openai", "gpt-5-pro", False),
        ("openai", "claude-sonnet-5-5", False),
        ("gemini", "gemini-2.5-pro", True),
        ("gemini", "gemini-2.5-flash-lite", True),
        ("gemini", "gemini-2.5-flash-image", False),
    ],
)
def test_configured_models_and_small_helper_models_are_allowed(
    kind: str, model: str, is_named: bool
) -> None:
    named = {"anthropic": "claude-sonnet-5-5", "openai": "gpt-5", "gemini": "models/gemini-2.5-pro"}
    backends = [ModelBackend(name=each, type=each, model=name) for each, name in named.items()]
    policy = build_policy("models", Budget(), backends, ModelTerms())
    provider = resolve_provider(backends[list(named).index(kind)])
    refused = policy.find_violation(provider, RequestSummary(model=model, models=(model,)))
    assert (refused is None) is is_named
    if refused is not None:
        assert (refused.status, refused.code) == (403, "model_not_allowed")
        assert f"models: ['{model}']" in refused.message
        # The same model passes once a pattern of the configuration matches it.
        terms = ModelTerms(models=(model[:-1] + "*",))
        wider = build_policy("models", Budget(), backends, terms)
        assert wider.find_violation(provider, RequestSummary(model=model, models=(model,))) is None


def test_a_model_in_the_body_is_checked_like_the_one_in_the_path() -> None:
    request = asked("generate", {"requests": [{"model": "models/other"}]})
    refused = objection("generate", request)
    assert refused is not None and refused.subject == "models/other"


def test_backends_with_one_server_and_key_share_their_models() -> None:
    url = "http://127.0.0.1:9/v1"
    first, second, third = (
        ModelBackend(name=name, type="chatcompletion", model=name, base_url=url, api_key_env=key)
        for name, key in (("one", "K"), ("two", "K"), ("three", "L"))
    )
    policy = build_policy("models", Budget(), [first, second, third], ModelTerms())
    asks = {name: RequestSummary(model=name, models=(name,)) for name in ("two", "three")}
    assert policy.find_violation(resolve_provider(first), asks["two"]) is None
    assert policy.find_violation(resolve_provider(first), asks["three"]) is not None


@pytest.mark.parametrize("named", [{}, {"model": ""}, {"model": None}, {"model": 0}])
def test_a_request_without_a_model_is_refused_unless_self_hosted(
    named: dict[str, object],
) -> None:
    body = json.dumps({"messages": []} | named).encode()
    request = describe("openai", "/v1/chat/completions", body)
    refused = objection("chat", request)
    assert refused is not None and refused.code == "model_not_allowed"
    # A self-hosted server may serve a single model without a name.
    own = ModelBackend(name="own", type="chatcompletion", model="m", base_url="http://h/v1")
    policy = build_policy("models", Budget(), [own], ModelTerms())
    assert policy.find_violation(resolve_provider(own), request) is None


def test_a_server_without_a_configured_model_allows_any() -> None:
    backend = ModelBackend(name="mine", type="chatcompletion", base_url="http://127.0.0.1:9/v1")
    policy = build_policy("models", Budget(), [backend], ModelTerms())
    request = RequestSummary(model="whatever", models=("whatever",))
    assert policy.find_violation(resolve_provider(backend), request) is None


@pytest.mark.parametrize("network", ["models", "on"])
def test_a_background_request_is_refused_under_a_budget(network: str) -> None:
    terms = ModelTerms(allow_hosted=("background",))
    policy = build_policy(network, Budget(tokens=9), list(BACKENDS.values()), terms)
    refused = objection("responses", asked("responses", {"background": True}), policy)
    assert refused is not None and "budget" in refused.message


@pytest.mark.parametrize(
    "tools",
    [
        [{"type": "web_search", "external_web_access": True}],
        [{"type": "function", "name": "f"}, {"type": "web_search", "filters": {"a": ["ä"]}}],
        [{"type": "web_search"}, {"type": "function", "name": "f"}],
        [
            {"type": "function", "name": "f"},
            {"type": "web_search"},
            {"type": "custom", "name": "g"},
        ],
    ],
)
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_the_hosted_search_of_codex_is_removed(
    tools: list[Any], separators: tuple[str, str]
) -> None:
    # The same words inside a text must stay.
    text = 'he wrote {"type":"web_search"}'
    document = {"input": text, "tools": tools}
    body = json.dumps(document, separators=separators, ensure_ascii=False).encode()
    left = json.loads(leave_out([("Originator", "codex_exec")], body))
    kept = [tool for tool in tools if tool["type"] != "web_search"]
    assert left == {"input": text, "tools": kept}
    assert leave_out([("originator", "another")], body) == body


def test_other_hosted_tools_of_codex_are_not_removed() -> None:
    body = b'{"tools":[{"type":"mcp","server_url":"https://x"}]}'
    assert leave_out([("originator", "codex_exec")], body) == body


def test_a_flood_of_hosted_searches_is_not_removed_one_by_one() -> None:
    """The search runs on the event loop, and each removal copies the body."""
    tools = [{"type": "web_search"}] * 100
    body = json.dumps({"input": "x", "tools": tools}).encode()
    left = json.loads(leave_out([("originator", "codex_exec")], body))
    assert 90 < len(left["tools"]) < 100


def test_a_search_behind_tools_of_that_name_is_removed() -> None:
    own = [{"type": "function", "name": "web_search"}] * 20
    body = json.dumps({"tools": [*own, {"type": "web_search"}]}).encode()
    assert json.loads(leave_out([("originator", "codex_exec")], body)) == {"tools": own}


NAMES = st.sampled_from(
    [
        *("type", "tools", "messages", "content", "input", "output", "contents", "parts", "model"),
        *("source", "image_url", "generationConfig", "functionResponse", "requests", "max_tokens"),
        *("n", "thinking", "environment", "name", "system", "modalities", "fileData", "Type"),
    ]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False)
    | st.integers()
    | st.sampled_from(["text", "image", "tool_result", "namespace", "function", FAR, "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(kind=st.sampled_from(sorted(PATHS)), document=st.dictionaries(NAMES, VALUES, max_size=5))
def test_any_document_can_be_summarised(kind: str, document: dict[str, Any]) -> None:
    request = describe(*PATHS[kind], json.dumps(document).encode())
    assert request.most_output_tokens >= 1
    objection(kind, request)
