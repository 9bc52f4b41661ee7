"""Requests that would exceed a child's contract: hosted features, other models, budgets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from support.models import asking, keyed, ledger, model_task
from support.roots import Root, Row
from support.upstream import Upstream, provider, serving

pytestmark = pytest.mark.timeout(90)

BUDGET = 50_000
WRITTEN = 60_000  # tokens, where a request sets no limit
MANY = 30

AT_ONCE = """
from concurrent.futures import ThreadPoolExecutor
def once(n):
    answer = chat(**TERMS)
    answer.read()
    return answer.status
with ThreadPoolExecutor(MANY) as pool:
    print(sorted(pool.map(once, range(MANY))).count(200))
"""

ASK_ALL = """
import urllib.parse
for wire, path, body in json.loads(REQUESTS):
    answer = ask(wire, path, body)
    said = json.load(answer)
    error = said.get("error", {})
    print(json.dumps([answer.status, error.get("message", "")]), flush=True)
"""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    with keyed(tmp_path / "project" / ".retinue") as root:
        yield root


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with provider() as running:
        yield running


def denials(root: Root, task: str) -> list[Row]:
    events = [each for each in root.events(task) if each["type"] == "agent.request_denied"]
    return [each["payload"] for each in events]


@pytest.mark.parametrize(
    "terms",
    [
        {"max_output_tokens": 1, "max_tokens": 50_000},
        {"max_completion_tokens": 30, "n": 128},
        {},
        {"max_tokens": None, "max_output_tokens": 1},
    ],
    ids=["two names", "many answers", "no limit", "another vendor's name"],
)
def test_requests_at_once_overrun_a_budget_by_one_at_most(
    root: Root, terms: dict[str, object]
) -> None:
    """The provider writes the longest answer that any of the limits allows."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        asked = json.loads(await request.read())
        limits = [asked.get("max_tokens"), asked.get("max_completion_tokens")]
        written = max(filter(None, limits), default=WRITTEN) * asked.get("n", 1)
        usage = {"prompt_tokens": 10, "completion_tokens": written}
        choice = {"index": 0, "message": {"role": "assistant", "content": "x"}}
        return web.json_response({"model": "gpt-4o-mini", "choices": [choice], "usage": usage})

    with serving(answer) as port:
        more = f"    subagent_budget: {{tokens: {BUDGET}}}\n    subagent_grace_turn_seconds: 5"
        task = model_task(root, Upstream(port=port), more=more)
        script = f"MANY = {MANY}\nTERMS = json.loads({json.dumps(terms)!r})\n" + AT_ONCE
        (result,) = root.run(task, asking(script, timeout_seconds=60, max_retries=0))
    booked = [row["input_tokens"] + row["output_tokens"] for row in ledger(root, task)]
    assert booked, result
    assert sum(booked[:-1]) < BUDGET, "the last one may overrun it, alone"
    assert "budget exceeded" in result["error"]


WORDS = [{"role": "user", "content": "hi"}]
FAR = "https://example.com/?secret"
CHAT = {"model": "gpt-4o-mini", "messages": WORDS}
RESPONSES = {"model": "gpt-4o-mini", "input": "hi"}
CLAUDE = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": WORDS}
GENERATE = "/v1beta/models/gemini-2.5-flash:generateContent"
GEMINI = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
IMAGE = {"type": "image_url", "image_url": {"url": FAR}}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
REQUESTS: list[tuple[str, str, dict[str, Any], str]] = [
    ("openai", "/responses", RESPONSES | {"tools": [{"type": "web_search"}]}, "web_search"),
    ("openai", "/responses", RESPONSES | {"tools": [{"type": "mcp", "server_url": FAR}]}, "mcp"),
    ("openai", "/responses", RESPONSES | {"background": True}, "background"),
    ("openai", "/responses", RESPONSES | {"previous_response_id": "resp_1"}, "store"),
    ("openai", "/responses", RESPONSES | {"service_tier": "priority"}, "service_tier"),
    ("openai", "/chat/completions", CHAT | {"messages": [{"content": [IMAGE]}]}, "urls"),
    ("openai", "/chat/completions", CHAT | {"store": True}, "store"),
    ("openai", "/chat/completions", CHAT | {"model": "gpt-5-pro"}, "gpt-5-pro"),
    ("openai", "/embeddings", {"model": "text-embedding-3-large", "input": "x"}, "text-embed"),
    ("anthropic", "/v1/messages", CLAUDE | {"tools": [SEARCH]}, "web_search"),
    ("anthropic", "/v1/messages", CLAUDE | {"mcp_servers": [{"url": FAR}]}, "mcp"),
    ("anthropic", "/v1/messages/count_tokens", CLAUDE | {"container": "c"}, "code_interpreter"),
    ("anthropic", "/v1/messages", CLAUDE | {"model": "claude-opus-4-5"}, "claude-opus-4-5"),
    ("gemini", GENERATE, GEMINI | {"tools": [{"googleSearch": {}}]}, "web_search"),
    ("gemini", GENERATE, GEMINI | {"tools": [{"urlContext": {}}]}, "web_fetch"),
    ("gemini", GENERATE.replace("flash", "pro"), GEMINI, "gemini-2.5-pro"),
]


def asking_all(**terms: Any) -> Row:
    sent = json.dumps([(wire, path, body) for wire, path, body, _ in REQUESTS])
    return asking(f"REQUESTS = {sent!r}\n" + ASK_ALL, **terms)


@pytest.mark.parametrize("mode", ["isolated", "inherited"])
def test_hosted_features_are_refused(root: Root, upstream: Upstream, mode: str) -> None:
    task = model_task(root, upstream, mode=mode)
    (result,) = root.run(task, asking_all())
    told = [json.loads(line) for line in str(result["answer"]).splitlines()]
    for (status, message), (*_, subject) in zip(told, REQUESTS, strict=True):
        assert status == 403, message
        assert subject in message and "subagent_models" in message
    assert not upstream.asked
    assert not ledger(root, task)
    subjects = [each["subject"] for each in denials(root, task)]
    assert len(subjects) == len(set(subjects)), "each is recorded once"
    assert {"web_search", "mcp", "urls", "gpt-5-pro"} <= set(subjects)


def test_the_number_of_recorded_refusals_is_limited(root: Root, upstream: Upstream) -> None:
    script = "print({chat(model=f'model-{n}').status for n in range(40)})"
    task = model_task(root, upstream)
    (result,) = root.run(task, asking(script))
    assert result["answer"] == "{403}"
    assert len(denials(root, task)) == 16


def test_the_configuration_can_allow_hosted_features(root: Root, upstream: Upstream) -> None:
    features = "web_search, mcp, background, store, service_tier, urls, code_interpreter, web_fetch"
    more = f"    subagent_models: {{allow_hosted: [{features}], models: ['*']}}"
    (result,) = root.run(model_task(root, upstream, more=more), asking_all())
    told = [json.loads(line) for line in str(result["answer"]).splitlines()]
    assert {status for status, _ in told} == {200}
    assert len(upstream.asked) == len(REQUESTS)


def test_hosted_features_are_allowed_with_the_whole_network(root: Root, upstream: Upstream) -> None:
    task = model_task(root, upstream, more="    subagent_network: on")
    (result,) = root.run(task, asking_all())
    assert len(upstream.asked) == len(REQUESTS), result
    assert not denials(root, task)


def test_the_hosted_search_of_codex_is_removed_and_recorded(root: Root, upstream: Upstream) -> None:
    tools = [{"type": "function", "name": "f"}, {"type": "web_search", "external_web_access": True}]
    script = f"""
body = {json.dumps(RESPONSES | {"tools": tools, "store": False})!r}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/responses", data=body.encode(),
    headers={{"Content-Type": "application/json", "Authorization": "Bearer " + KEY,
             "originator": "codex_exec"}})
print(urllib.request.urlopen(request, timeout=20).status)
""".replace("True}", "true}")
    task = model_task(root, upstream)
    (result,) = root.run(task, asking(script))
    assert result["answer"] == "200", result
    (asked,) = upstream.asked
    assert json.loads(asked.body)["tools"] == tools[:1]
    assert [each["subject"] for each in denials(root, task)] == ["web_search"]


def test_headers_and_paths_that_would_change_a_request_are_dropped(
    root: Root, upstream: Upstream
) -> None:
    script = """
import http.client
place = os.environ["RETINUE_GATEWAY"].removeprefix("http://")
headers = {"Authorization": "Bearer " + KEY, "X-HTTP-Method-Override": "DELETE", "Cookie": "c=1",
           "OpenAI-Organization": "org", "OpenAI-Project": "p", "X-Forwarded-Host": "h",
           "User-Agent": "agent"}
for path in ["", "/gpt-4o-mini", "/..;/files", "/%252e%252e/files", "/..%5cfiles", "//files"]:
    link = http.client.HTTPConnection(place)
    link.request("GET", "/openai/v1/models" + path, headers=headers)
    print(link.getresponse().status)
"""
    (result,) = root.run(model_task(root, upstream), asking(script))
    assert str(result["answer"]).split() == ["200", "200", "404", "404", "404", "404"]
    assert [asked.path for asked in upstream.asked] == ["/v1/models", "/v1/models/gpt-4o-mini"]
    for asked in upstream.asked:
        assert asked.headers["user-agent"] == "agent"
        stray = {"x-http-method-override", "cookie", "openai-organization", "openai-project"}
        assert not (stray | {"x-forwarded-host"}) & asked.headers.keys()
