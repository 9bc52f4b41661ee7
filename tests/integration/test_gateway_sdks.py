"""The vendors' own Python clients, inside isolated children, told nothing but their variables.

Each script is run twice: by a subagent through the gateway, and directly against the provider.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from support.models import ledger, model_task, models
from support.roots import Root, command
from support.upstream import CACHED, INPUT, KEYS, OUTPUT, Upstream, provider

__all__ = ["models"]

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]

PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
SITE = str(Path(pytest.__file__).parent.parent)
HEAD = f"import sys; sys.path.insert(0, {SITE!r})\n"

OPENAI = """
from openai import OpenAI
client = OpenAI(max_retries=0)
asked = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}]}
print(client.chat.completions.create(**asked).model_dump_json())
usage = {"include_usage": True}
for chunk in client.chat.completions.create(**asked, stream=True, stream_options=usage):
    print(chunk.model_dump_json())
print(client.responses.create(model="gpt-4o-mini", input="hi").model_dump_json())
for event in client.responses.create(model="gpt-4o-mini", input="hi", stream=True):
    print(event.model_dump_json())
"""
ANTHROPIC = """
from anthropic import Anthropic
client = Anthropic(max_retries=0)
words = [{"role": "user", "content": "hi"}]
asked = {"model": "claude-sonnet-4-5", "max_tokens": 50, "messages": words}
print(client.messages.create(**asked).model_dump_json())
for event in client.messages.create(**asked, stream=True):
    print(event.model_dump_json())
with client.messages.stream(**asked) as stream:
    print(stream.get_final_message().model_dump_json())
"""
GEMINI = """
from google import genai
client = genai.Client()
asked = {"model": "gemini-2.5-flash", "contents": "hi"}
drop = {"sdk_http_response"}
print(client.models.generate_content(**asked).model_dump_json(exclude=drop))
for chunk in client.models.generate_content_stream(**asked):
    print(chunk.model_dump_json(exclude=drop))
"""
CASES = [
    pytest.param("openai", OPENAI, 4, id="openai"),
    pytest.param("anthropic", ANTHROPIC, 3, id="anthropic"),
    pytest.param("google-genai", GEMINI, 2, id="gemini"),
]


def direct(script: str, upstream: Upstream) -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "OPENAI_BASE_URL": f"{upstream.url}/v1",
        "OPENAI_API_KEY": KEYS["UP_OPENAI_KEY"],
        "ANTHROPIC_BASE_URL": upstream.url,
        "ANTHROPIC_API_KEY": KEYS["UP_ANTHROPIC_KEY"],
        "GOOGLE_GEMINI_BASE_URL": upstream.url,
        "GEMINI_API_KEY": KEYS["UP_GEMINI_KEY"],
    }
    argv = [PYTHON, "-I", "-c", HEAD + script]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(("package", "script", "requests"), CASES)
def test_a_vendors_client_gets_the_same_objects_as_direct_and_is_counted_to_the_token(
    models: Root, package: str, script: str, requests: int
) -> None:
    try:
        distribution(package)
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    lent = [sys.base_prefix, SITE]
    more = f"    subagent_context_roots: {lent}\n    subagent_max_timeout: 60"
    with provider() as upstream:
        task = model_task(models, upstream, more=more)
        brief = command(PYTHON, "-I", "-c", HEAD + script, context_paths=lent, timeout_seconds=60)
        (result,) = models.run(task, brief)
        assert result["status"] == "completed", (result, _errors(models, task, result))
        assert result["answer"].strip() == direct(script, upstream)
        through = upstream.asked[:requests]
    usage = result["token_usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (INPUT * requests, OUTPUT * requests)
    assert usage["cached_tokens"] == CACHED * requests
    assert "estimated" not in usage
    assert len(ledger(models, task)) == requests
    assert all("real" in str(asked.headers) for asked in through)
    assert not any("retinue-" in str(asked) for asked in through)


def _errors(root: Root, task: str, result: dict[str, str]) -> str:
    log = root.folder(task, result["subagent_id"]) / "runtime" / "stderr.log"
    return log.read_text()[-2000:]
