"""The local model: how many of its structured answers are valid calls, and how fast they come."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import retinue
from core import stewarded
from measure import Figure
from retinue.core.errors import BadInput
from retinue.team.models.constrained_calls import build_response_format, parse_call

CONFIG = """
agents:
  - id: small
    backend: {type: local}
orchestrator:
  coordination: {subagent_min_timeout: 0.1, subagent_max_timeout: 3600}
"""
TEXT = {"type": "string", "maxLength": 400}
TOOLS: list[tuple[str, str, dict[str, Any]]] = [
    (
        "write_file",
        "Write a file.",
        {
            "properties": {"path": {"type": "string", "minLength": 1, "maxLength": 80}}
            | {"content": TEXT},
            "required": ["path", "content"],
        },
    ),
    ("new_answer", "Answer.", {"properties": {"content": TEXT}, "required": ["content"]}),
    (
        "vote",
        "Vote for the best answer.",
        {
            "properties": {"agent_id": {"enum": ["agent1", "agent2"]}, "reason": TEXT},
            "required": ["agent_id", "reason"],
        },
    ),
]
# A child that asks for one call after the other and prints the answers as they are.
CLIENT = r"""
import json, os, sys, time, urllib.request
rounds, form = int(sys.argv[1]), json.loads(sys.argv[2])
ASKED = ["Write a haiku about rain to a file.", "Answer: what is 2 + 2?",
         "agent1 says 4, agent2 says 5. Vote for one.", "Write a Python program.", "Hello!"]

def ask(number):
    body = {"model": "smollm2-135m-instruct", "response_format": form, "seed": number,
            "messages": [{"role": "user", "content": ASKED[number % len(ASKED)]}]}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
        {"Content-Type": "application/json",
         "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
    answer = json.load(urllib.request.urlopen(request, timeout=600))
    return answer["choices"][0]["message"]["content"], answer["usage"]["completion_tokens"]

print(json.dumps([ask(number) for number in range(rounds)]))
"""


async def local(rounds: int) -> list[Figure]:
    """Structured calls of the real model, through the gateway, by an isolated child."""
    async with stewarded() as opened:
        task = await opened.create_task(title="local", config=CONFIG)
        argv = [
            "python3",
            "-I",
            "-c",
            CLIENT,
            str(rounds),
            json.dumps(build_response_format(TOOLS)),
        ]
        began = time.perf_counter()
        batch = await task.run([retinue.Brief(argv=argv, retries=0, timeout_seconds=3000)])
        spent = time.perf_counter() - began
        (result,) = batch.results
        assert result.success and result.answer, f"{result.error} {Path(result.log_path)}"
    answers = json.loads(result.answer)
    tokens = sum(number for _, number in answers)
    invalid = sum(not _valid(text) for text, _ in answers)
    return [
        Figure("local", invalid, f"invalid of {rounds} structured calls", 0),
        Figure("local", spent / rounds, "s for each call"),
        Figure("local", tokens / spent, "tokens/s, one after the other"),
    ]


def _valid(text: str) -> bool:
    """Whether it is a call, with all that its tool asks for and nothing that is too long."""
    try:
        name, given = parse_call(text, [tool for tool, _, _ in TOOLS])
    except BadInput:
        return False
    schema = next(schema for tool, _, schema in TOOLS if tool == name)
    parts = schema["properties"]
    return list(given) == schema["required"] and all(
        value in parts[key]["enum"]
        if "enum" in parts[key]
        else isinstance(value, str) and len(value) <= parts[key]["maxLength"]
        for key, value in given.items()
    )
