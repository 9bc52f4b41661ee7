"""The local model: used by isolated children, shared by stewards, ended when idle."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retinue.gateway.local_model.model_client import LocalModel
from retinue.gateway.local_model.weights import SMOLLM2
from retinue.team.models.constrained_calls import build_response_format, parse_call
from support.localmodel import ASK, local_task, own_models, servers
from support.models import ledger
from support.roots import Root, Row, at_once, command, held, until

pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]

TOOLS = [
    (
        "write_file",
        "Write a file.",
        {
            "properties": {
                "path": {"type": "string", "minLength": 1, "maxLength": 60},
                "content": {"type": "string", "maxLength": 120},
            },
            "required": ["path", "content"],
        },
    ),
    (
        "new_answer",
        "Give an answer.",
        {
            "properties": {"content": {"type": "string", "maxLength": 120}},
            "required": ["content"],
        },
    ),
    (
        "vote",
        "Vote for an answer.",
        {
            "properties": {
                "agent_id": {"enum": ["agent1", "agent2"]},
                "reason": {"maxLength": 120},
            },
            "required": ["agent_id", "reason"],
        },
    ),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    top = tmp_path_factory.mktemp("models")
    with own_models(top / "m", idle_seconds=60) as folder:
        yield folder


@pytest.fixture(scope="module")
def local(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Root]:
    with held(tmp_path_factory.mktemp("project") / ".retinue") as root:
        yield root


def asking(script: str, **terms: Any) -> Row:
    return command("python3", "-I", "-c", ASK + script, **terms)


def ask(root: Root, script: str) -> Any:
    """What a child's script printed as JSON."""
    (result,) = root.run(local_task(root), asking(script))
    assert result["status"] == "completed", result
    return json.loads(result["answer"])


def test_an_isolated_child_is_answered_and_its_usage_costs_nothing(
    local: Root,
) -> None:
    task = local_task(local)
    script = "print(json.dumps(said('Say hello.', max_tokens=20)))"
    (result,) = local.run(task, asking(script))
    assert result["status"] == "completed", result
    answer = json.loads(result["answer"])
    assert answer["choices"][0]["message"]["content"]
    usage = answer["usage"]
    assert result["token_usage"] == {
        "input_tokens": usage["prompt_tokens"],
        "output_tokens": usage["completion_tokens"],
        "estimated_cost": 0.0,
    }
    (row,) = ledger(local, task)
    assert (row["provider"], row["model"], row["cost"]) == ("local", SMOLLM2.name, 0.0)
    assert row["status"] == "completed" and not row["estimated"]


def test_a_stream_is_counted_to_the_token_without_being_asked_for_its_usage(local: Root) -> None:
    task = local_task(local)
    script = "print(chat('Tell a story.', stream=True, max_tokens=8).read().decode())"
    (result,) = local.run(task, asking(script))
    pieces = [line for line in result["answer"].splitlines() if line.startswith("data: {")]
    assert "usage" not in result["answer"] and len(pieces) > 2
    timings = json.loads(pieces[-1].removeprefix("data: "))["timings"]
    (row,) = ledger(local, task)
    assert (row["output_tokens"], row["estimated"]) == (timings["predicted_n"], 0)
    assert row["input_tokens"] == timings["prompt_n"] + timings["cache_n"]


@pytest.mark.parametrize("number", range(6))
def test_answers_constrained_by_a_schema_are_valid_calls(local: Root, number: int) -> None:
    words = ["Write a haiku to a file.", "Who is right?", "What is 2 + 2?"][number % 3]
    form = json.dumps(build_response_format(TOOLS))
    script = f"print(json.dumps(said({words!r}, response_format=json.loads({form!r}))))"
    answer = ask(local, script)["choices"][0]
    assert answer["finish_reason"] == "stop"
    names = [name for name, _, _ in TOOLS]
    name, arguments = parse_call(answer["message"]["content"], names)
    wanted = next(schema for tool, _, schema in TOOLS if tool == name)
    assert list(arguments) == wanted["required"]


def test_an_unknown_local_model_is_refused(local: Root) -> None:
    answer = ask(local, "print(json.dumps(said('Hi', model='gpt-4o-mini')))")
    assert answer["error"]["code"] == "model_not_found"
    assert SMOLLM2.name in answer["error"]["message"]


def test_the_local_model_is_listed_as_installed(local: Root) -> None:
    rows = {row["provider"]: row for row in local.call("model.list")}
    assert rows["local"]["ok"] and rows["local"]["models"] == [SMOLLM2.name]
    checks = {check["name"]: check for check in local.call("doctor")["checks"]}
    assert "local" in checks["models"]["detail"]


def test_more_requests_than_slots_wait(local: Root, models: Path) -> None:
    script = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(9) as many:\n"
        "    found = list(many.map(lambda n: said(f'Say {n}.', max_tokens=6), range(9)))\n"
        "print(json.dumps([len(each['choices']) for each in found]))"
    )
    assert ask(local, script) == [1] * 9
    assert len(servers(models)) == 1


def test_the_server_requires_its_secret_and_has_no_provider_key(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-you")

    async def statuses() -> list[int]:
        async with LocalModel(models).acquire_endpoint() as place:
            known = {"Authorization": f"Bearer {place.key}"}
            return [await asyncio.to_thread(status, place.url, each) for each in (known, {})]

    assert asyncio.run(statuses()) == [200, 401]
    (pid,) = servers(models)
    assert b"sk-not-for-you" not in Path(f"/proc/{pid}/environ").read_bytes()


def status(url: str, headers: dict[str, str]) -> int:
    try:
        body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2})
        request = urllib.request.Request(f"{url}/chat/completions", body.encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_two_stewards_share_one_process_which_outlives_them(
    local: Root, models: Path, tmp_path: Path
) -> None:
    with held(tmp_path / ".retinue") as other:
        script = "print(json.dumps(said('Hi', max_tokens=4)))"
        answers = at_once(lambda: ask(local, script), lambda: ask(other, script))
        assert all("choices" in answer for answer in answers), answers
        (pid,) = servers(models)
        other.kill()
        assert "choices" in ask(other, script)
        assert servers(models) == [pid]


def test_a_killed_server_cuts_its_answers_and_the_next_request_starts_another(
    local: Root, models: Path
) -> None:
    task = local_task(local)
    script = (
        "stream = chat('Tell a long story.', stream=True, max_tokens=4000)\n"
        "print(stream.readline().decode(), flush=True)\n"
        "try:\n    while stream.read(1000): pass\n"
        "except Exception as error: print('cut', type(error).__name__)\n"
        "print(said('Hi', max_tokens=4)['choices'][0]['finish_reason'])"
    )
    (name,) = local.spawn(task, asking(script))
    log = local.folder(task, name) / "runtime" / "stdout.log"
    until(lambda: log.exists() and b"data:" in log.read_bytes())
    (pid,) = servers(models)
    os.kill(pid, signal.SIGKILL)
    local.call("subagent.wait_all", task=task, timeout_seconds=60)
    result = local.call("subagent.result", task=task, subagent=name)
    assert result["status"] == "completed", result
    assert "cut" in result["answer"] and result["answer"].rstrip().endswith(("stop", "length"))
    (successor,) = servers(models)
    assert successor != pid
    assert [row["status"] for row in ledger(local, task)] == ["cut", "completed"]


def test_the_server_ends_when_it_is_idle(tmp_path: Path) -> None:
    with (
        own_models(tmp_path / "m", idle_seconds=1.0) as folder,
        held(tmp_path / ".retinue") as root,
    ):
        assert "choices" in ask(root, "print(json.dumps(said('Hi', max_tokens=4)))")
        until(lambda: not servers(folder))
        assert not (folder / "server.sock").exists()
        assert "choices" in ask(root, "print(json.dumps(said('Hi', max_tokens=4)))")


def test_without_weights_the_error_names_the_install_command(tmp_path: Path) -> None:
    with (
        own_models(tmp_path / "m", idle_seconds=1.0, installed=False) as folder,
        held(tmp_path / ".retinue") as root,
    ):
        answer = ask(root, "print(json.dumps(said('Hi')))")
        assert answer["error"]["code"] == "model_not_installed"
        assert "'retinue model install'" in answer["error"]["message"]
        rows = {row["provider"]: row for row in root.call("model.list")}
        assert not rows["local"]["ok"] and "model install" in rows["local"]["detail"]
        checks = {check["name"]: check for check in root.call("doctor")["checks"]}
        assert "model install" in checks["models"]["detail"]
        assert not servers(folder)


def test_damaged_weights_are_never_loaded(tmp_path: Path) -> None:
    with (
        own_models(tmp_path / "m", idle_seconds=1.0, installed=False) as folder,
        held(tmp_path / ".retinue") as root,
    ):
        with (folder / SMOLLM2.file).open("wb") as file:
            file.truncate(SMOLLM2.size)
        answer = ask(root, "print(json.dumps(said('Hi')))")
        assert answer["error"]["code"] == "model_not_installed"
        assert "damaged" in answer["error"]["message"]
        until(lambda: not servers(folder))
