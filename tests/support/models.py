"""Tasks whose subagents may ask models of a provider that the test runs."""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.roots import Root, Row, command, held
from support.upstream import KEYS, Upstream, provider

CONFIG = """
{agents}
orchestrator:
  coordination:
    subagent_default_timeout: 20
    subagent_min_timeout: 0.1
    subagent_max_concurrent: 20
    subagent_cancel_grace_seconds: [0.4, 0.3]
    subagent_runtime_mode: {mode}
{more}
"""

ASK = """
import base64, json, os, sys, urllib.error, urllib.request
KEY = os.environ["RETINUE_GATEWAY_TOKEN"]
PLACES = {"openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL",
          "gemini": "GOOGLE_GEMINI_BASE_URL"}
HEADERS = {"openai": ("Authorization", "Bearer " + KEY), "anthropic": ("x-api-key", KEY),
           "gemini": ("x-goog-api-key", KEY)}

def ask(wire, path, body):
    request = urllib.request.Request(
        os.environ[PLACES[wire]] + path,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", HEADERS[wire][0]: HEADERS[wire][1]},
    )
    try:
        return urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        return error

def chat(words="hi", **more):
    body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": words}]}
    return ask("openai", "/chat/completions", body | more)
"""

# What each vendor is asked, for an answer in one piece and for a stream.
_WORDS = [{"role": "user", "content": "hi"}]
_STREAM = {"stream": True}
_GEMINI = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
_CLAUDE = {"model": "claude-sonnet-4-5", "max_tokens": 50, "messages": _WORDS}
_CHAT = {"model": "gpt-4o-mini", "messages": _WORDS}
_RESPONSES = {"model": "gpt-4o-mini", "input": "hi"}
REQUESTS: list[tuple[str, str, dict[str, Any]]] = [
    ("openai", "/chat/completions", _CHAT),
    ("openai", "/chat/completions", _CHAT | _STREAM | {"stream_options": {"include_usage": True}}),
    ("openai", "/responses", _RESPONSES),
    ("openai", "/responses", _RESPONSES | _STREAM),
    ("anthropic", "/v1/messages", _CLAUDE),
    ("anthropic", "/v1/messages", _CLAUDE | _STREAM),
    ("gemini", "/v1beta/models/gemini-2.5-flash:generateContent", _GEMINI),
    ("gemini", "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse", _GEMINI),
    ("gemini", "/v1beta/models/gemini-2.5-flash:streamGenerateContent", _GEMINI),
]


@contextmanager
def keyed(path: Path) -> Iterator[Root]:
    """A root whose steward knows the provider's keys."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        with held(path) as root:
            yield root


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Root]:
    with keyed(tmp_path_factory.mktemp("project") / ".retinue") as root:
        yield root


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with provider() as running:
        yield running


def model_task(root: Root, upstream: Upstream, *, mode: str = "isolated", more: str = "") -> str:
    """`more` are further lines of the configuration, indented as its coordination is."""
    text = CONFIG.format(agents=upstream.config(), mode=mode, more=more)
    return str(root.call("task.create", title="t", config_text=text)["task_id"])


def asking(script: str, **terms: Any) -> Row:
    """A brief whose script can ask models, with the standard library alone."""
    return command("python3", "-I", "-c", ASK + script, **terms)


def answers(result: Row) -> list[bytes]:
    """What a script printed with `print(base64.b64encode(…).decode())`, line by line."""
    return [base64.b64decode(line) for line in str(result["answer"]).splitlines()]


def ledger(root: Root, task: str) -> list[Row]:
    database = sqlite3.connect(f"file:{root.path / 'retinue.db'}?mode=ro", uri=True)
    with closing(database):
        database.row_factory = sqlite3.Row
        rows = database.execute("SELECT * FROM ledger WHERE task_id = ?", (task,))
        return [dict(row) for row in rows]


def everything() -> str:
    """A script that asks each of REQUESTS once and prints what came back."""
    return (
        f"for wire, path, body in json.loads({json.dumps(json.dumps(REQUESTS))}):\n"
        "    print(base64.b64encode(ask(wire, path, body).read()).decode(), flush=True)\n"
    )
