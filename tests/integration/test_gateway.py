"""Model requests of children through the gateway: unchanged bytes, hidden keys, counted tokens."""

from __future__ import annotations

import json
import os
import select
import signal
import urllib.request
from pathlib import Path

import pytest

from support.models import (
    REQUESTS,
    answers,
    asking,
    everything,
    keyed,
    ledger,
    model_task,
    models,
    upstream,
)
from support.roots import Root, until
from support.upstream import CACHED, INPUT, KEYS, OUTPUT, Upstream

__all__ = ["models", "upstream"]

pytestmark = pytest.mark.timeout(60)


def direct(upstream: Upstream, wire: str, path: str, body: dict[str, object]) -> bytes:
    prefix = "/v1" if wire == "openai" else ""
    url = upstream.url + prefix + path
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=20) as response:
        return bytes(response.read())


@pytest.mark.requirement("R237", "R248")
@pytest.mark.parametrize("mode", ["isolated", "inherited"])
def test_answers_are_the_same_bytes_as_direct_and_counted_to_the_token(
    models: Root, upstream: Upstream, mode: str
) -> None:
    task = model_task(models, upstream, mode=mode)
    (result,) = models.run(task, asking(everything()))
    assert result["status"] == "completed", result
    assert answers(result) == [direct(upstream, *each) for each in REQUESTS]
    usage = result["token_usage"]
    number = len(REQUESTS)
    assert (usage["input_tokens"], usage["output_tokens"]) == (INPUT * number, OUTPUT * number)
    assert usage["cached_tokens"] == CACHED * number
    assert "estimated" not in usage
    assert usage["estimated_cost"] > 0
    assert {row["status"] for row in ledger(models, task)} == {"completed"}
    summary = models.task_folder(task) / "metrics_summary.json"
    read, written = (f"total_{each}_tokens" for each in ("input", "output"))
    # It is told soon, and until then what had passed when something else was told.
    until(lambda: json.loads(summary.read_text())["subagents"][read] == INPUT * number)
    metrics = json.loads(summary.read_text())
    assert metrics["subagents"][written] == OUTPUT * number
    assert metrics["totals"]["estimated_cost"] == pytest.approx(usage["estimated_cost"])


def test_the_provider_gets_its_key_and_the_child_never_sees_it(
    models: Root, upstream: Upstream
) -> None:
    task = model_task(models, upstream)
    script = everything() + (
        "import glob\n"
        "for path in ['/proc/self/environ', '/proc/1/environ', '/proc/self/cmdline']:\n"
        "    try: print(base64.b64encode(open(path, 'rb').read()).decode())\n"
        "    except OSError: pass\n"
    )
    (result,) = models.run(task, asking(script, subagent_id="curious"))
    seen = b"".join(answers(result))
    assert b"retinue-" in seen
    folder = models.folder(task, "curious")
    files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    for key in KEYS.values():
        assert key.encode() not in seen
        assert not any(key.encode() in data for data in files)
    sent = {asked.path: asked.headers for asked in upstream.asked}
    assert sent["/v1/chat/completions"]["authorization"] == "Bearer sk-real-openai"
    assert sent["/v1/messages"]["x-api-key"] == "sk-real-anthropic"
    assert not any("retinue-" in str(asked) for asked in upstream.asked)


def test_a_compressed_request_is_read(models: Root, upstream: Upstream) -> None:
    script = """
import gzip
body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi" * 500}]}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    data=gzip.compress(json.dumps(body).encode()),
    headers={"Content-Type": "application/json", "Content-Encoding": "gzip",
             "Authorization": "Bearer " + KEY},
)
try: print(urllib.request.urlopen(request, timeout=20).status)
except urllib.error.HTTPError as error: print(error.status, error.read())
"""
    (result,) = models.run(model_task(models, upstream), asking(script))
    assert result["answer"] == "200", result


def test_a_child_without_network_has_no_gateway_variables(models: Root, upstream: Upstream) -> None:
    task = model_task(models, upstream, more="    subagent_network: off")
    script = "env | grep -c -e GATEWAY -e API_KEY -e BASE_URL"
    (result,) = models.run(task, {"argv": ["sh", "-c", script + "; true"], "context_paths": []})
    assert result["answer"] == "0"
    assert result["token_usage"] == {}


def test_without_a_model_backend_there_are_no_gateway_variables(models: Root) -> None:
    task = models.create_task(more="    subagent_network: models\n")
    (result,) = models.run(
        task, {"argv": ["sh", "-c", "env | grep -c GATEWAY; true"], "context_paths": []}
    )
    assert result["answer"] == "0"


def test_another_childs_token_is_refused(models: Root, upstream: Upstream) -> None:
    task = model_task(models, upstream)
    other = (
        "print(os.environ['RETINUE_GATEWAY_TOKEN'], flush=True); sys.stdin.read(); import time; "
    )
    models.spawn(task, asking(other + "time.sleep(60)", subagent_id="other"))
    log = models.folder(task, "other") / "runtime" / "stdout.log"
    token = until(lambda: log.read_text().strip() if log.exists() else "")
    script = f"HEADERS['openai'] = ('Authorization', 'Bearer {token}')\nprint(chat().status)"
    (result,) = models.run(task, asking(script))
    assert result["answer"] == "401"
    models.call("subagent.cancel", task=task, subagent="other", kill=True)


def test_only_model_endpoints_are_forwarded(models: Root, upstream: Upstream) -> None:
    task = model_task(models, upstream)
    script = (
        "print(ask('openai', '/files', {}).status, ask('openai', '/organization/x', {}).status)"
    )
    (result,) = models.run(task, asking(script))
    assert result["answer"] == "404 404"
    assert not upstream.asked


@pytest.mark.parametrize(
    ("wire", "path", "body", "read"),
    [(*REQUESTS[1], None), (*REQUESTS[5], INPUT)],
    ids=["usage comes last", "usage comes first"],
)
def test_tokens_before_a_childs_kill_are_counted(
    models: Root, upstream: Upstream, wire: str, path: str, body: object, read: int | None
) -> None:
    upstream.hold_after = 4 if read else 2  # two words have passed
    task = model_task(models, upstream)
    script = f"for line in ask({wire!r}, {path!r}, json.loads({json.dumps(body)!r})): pass"
    (name,) = models.spawn(task, asking(script))
    assert upstream.held.wait(20)
    show = models.call("subagent.show", task=task, subagent=name)
    os.kill(show["attempts"][-1]["pid"], signal.SIGKILL)
    models.call("subagent.wait_all", task=task, timeout_seconds=20)
    result = models.call("subagent.result", task=task, subagent=name)
    usage = result["token_usage"]
    assert result["status"] == "error"
    assert usage["estimated"] is True
    assert usage["output_tokens"] == 3  # of the eleven letters that passed
    assert usage["input_tokens"] == (read or 5)  # guessed by the letters of the request
    (row,) = ledger(models, task)
    assert (row["status"], row["estimated"]) == ("cut", 1)


def test_usage_is_estimated_if_the_provider_reports_none(models: Root, upstream: Upstream) -> None:
    task = model_task(models, upstream)
    (result,) = models.run(task, asking("print(len(chat('x' * 400, stream=True).read()))"))
    usage = result["token_usage"]
    assert usage["estimated"] is True
    assert usage["output_tokens"] == 5
    assert 100 <= usage["input_tokens"] < 120


def test_an_answer_that_the_provider_cut_is_cut_for_the_child_too(
    models: Root, upstream: Upstream
) -> None:
    upstream.cut_after = 2
    task = model_task(models, upstream)
    script = (
        "import http.client\n"
        "try: chat(stream=True).read(); print('whole')\n"
        "except (http.client.IncompleteRead, ConnectionError) as e: print('cut')\n"
    )
    (result,) = models.run(task, asking(script))
    assert result["answer"] == "cut"
    assert result["token_usage"]["estimated"] is True
    assert result["token_usage"]["output_tokens"] == 3
    assert [row["status"] for row in ledger(models, task)] == ["cut"]


@pytest.mark.parametrize(
    "prefix",
    ['["/usr/bin/env"]', '["/bin/sh", "-c", "cat | \\"$@\\" | cat", "-"]'],
    ids=["a launcher that becomes the child", "a launcher that pipes"],
)
def test_models_are_reached_behind_a_launcher(
    models: Root, upstream: Upstream, prefix: str
) -> None:
    more = f"    subagent_host_launch_prefix: {prefix}"
    (result,) = models.run(model_task(models, upstream, more=more), asking("print(chat().status)"))
    assert result["answer"] == "200", result


def test_requests_may_be_large(models: Root, upstream: Upstream) -> None:
    task = model_task(models, upstream)
    (result,) = models.run(task, asking("print(chat('x ' * 2_000_000).status)"))
    assert result["answer"] == "200"
    assert len(upstream.asked[0].body) > 4_000_000


def test_the_model_list_says_which_providers_can_be_reached_and_why_not(
    models: Root, upstream: Upstream
) -> None:
    (models.path / "config.yaml").write_text(
        upstream.config().replace("UP_GEMINI_KEY", "NO_SUCH_KEY")
    )
    rows = {row["provider"]: row for row in models.call("model.list")}
    assert rows["openai_agent"]["ok"] and rows["openai_agent"]["models"] == ["gpt-4o-mini"]
    assert rows["anthropic_agent"]["ok"]
    assert rows["gemini_agent"]["detail"] == "NO_SUCH_KEY is not set"
    assert not rows["groq"]["configured"]
    check = {each["name"]: each for each in models.call("doctor")["checks"]}["models"]
    assert not check["ok"] and "gemini_agent: NO_SUCH_KEY is not set" in check["detail"]
    (models.path / "config.yaml").unlink()


def test_an_unreachable_provider_gives_the_child_a_readable_error(models: Root) -> None:
    task = model_task(models, Upstream(port=9))
    script = "answer = chat(); print(answer.status, json.load(answer)['error']['message'])"
    (result,) = models.run(task, asking(script))
    assert result["answer"].startswith("502 openai_agent cannot be reached")
    assert result["token_usage"] == {}


def test_a_missing_key_is_named(models: Root, upstream: Upstream) -> None:
    text = upstream.config().replace("UP_OPENAI_KEY", "NO_SUCH_KEY")
    upstream.config = lambda: text  # type: ignore[method-assign]
    script = "answer = chat(); print(answer.status, json.load(answer)['error']['message'])"
    (result,) = models.run(model_task(models, upstream), asking(script))
    assert result["answer"].startswith("401 NO_SUCH_KEY is not set")


def test_recorded_traffic_can_be_replayed_without_the_provider(
    models: Root, upstream: Upstream
) -> None:
    recorded = model_task(models, upstream, more="    subagent_traffic: {mode: record}")
    (first,) = models.run(recorded, asking(everything()))
    asked = len(upstream.asked)
    folder = models.task_folder(recorded) / "traffic"
    assert len(list(folder.iterdir())) == len(REQUESTS)
    traffic = f"    subagent_traffic: {{mode: replay, folder: {folder}}}"
    replayed = model_task(models, upstream, more=traffic)
    (second,) = models.run(replayed, asking(everything()))
    assert len(upstream.asked) == asked
    assert second["answer"] == first["answer"]
    assert second["token_usage"]["input_tokens"] == first["token_usage"]["input_tokens"]
    assert second["token_usage"]["estimated_cost"] == 0
    other = "answer = chat('something else'); print(answer.status, answer.read().decode())"
    (third,) = models.run(replayed, asking(other))
    assert third["answer"].startswith("404 ") and f" in {folder}" in third["answer"]


def test_a_replay_from_a_folder_that_is_not_there_is_refused_before_anything_exists(
    models: Root,
) -> None:
    text = "orchestrator: {coordination: {subagent_traffic: {mode: replay, folder: nope}}}"
    before = models.state()
    refused = models.refusal("task.create", title="t", config_text=text)
    assert (refused.code, str(models.path.parent / "nope") in refused.message) == (
        "bad_config",
        True,
    )
    assert models.state() == before


def test_a_child_finds_its_models_again_after_its_steward_was_killed(
    tmp_path: Path, upstream: Upstream
) -> None:
    with keyed(tmp_path / ".retinue") as root:
        for mode in ("isolated", "inherited"):
            task = model_task(root, upstream, mode=mode)
            script = (
                "import pathlib, time\n"
                "print(chat().status, flush=True)\n"
                "while not pathlib.Path('go').exists(): time.sleep(0.01)\n"
                "while True:\n"
                "    try: print(chat().status); break\n"
                "    except urllib.error.URLError: time.sleep(0.05)\n"
            )
            (name,) = root.spawn(task, asking(script))
            log = root.folder(task, name) / "runtime" / "stdout.log"
            until(lambda log=log: log.exists() and log.read_text())  # type: ignore[misc]
            until(lambda task=task: ledger(root, task))  # type: ignore[misc]
            root.kill()
            root.call("task.list")
            (root.folder(task, name) / "workspace" / "go").touch()
            root.call("subagent.wait_all", task=task, timeout_seconds=20)
            result = root.call("subagent.result", task=task, subagent=name)
            assert str(result["answer"]).split() == ["200", "200"], (mode, result)
            assert result["token_usage"]["input_tokens"] == 2 * INPUT


@pytest.mark.parametrize("mode", ["isolated", "inherited"])
def test_a_connection_without_a_request_does_not_delay_the_stop(
    tmp_path: Path, upstream: Upstream, mode: str
) -> None:
    with keyed(tmp_path / ".retinue") as root:
        task = model_task(root, upstream, mode=mode)
        script = (
            "import http.client, time\n"
            "place = os.environ['RETINUE_GATEWAY'].removeprefix('http://')\n"
            "idle = http.client.HTTPConnection(place)\n"
            "idle.request('GET', '/openai/v1/models', headers={'Authorization': 'Bearer ' + KEY})\n"
            "print(idle.getresponse().read(), flush=True)\n"
            "time.sleep(60)\n"
        )
        (name,) = root.spawn(task, asking(script))
        log = root.folder(task, name) / "runtime" / "stdout.log"
        until(lambda: log.exists() and log.read_text())
        steward = os.pidfd_open(root.pid)
        root.call("steward.stop")
        root.release()
        ended, _, _ = select.select([steward], [], [], 5.0)
        os.close(steward)
        assert ended


def test_passwords_from_netrc_are_not_sent_to_providers(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with keyed(tmp_path / ".retinue") as root:
        (result,) = root.run(model_task(root, upstream), asking(everything()))
        assert result["status"] == "completed", result
    sent = {asked.path: asked.headers for asked in upstream.asked}
    assert sent["/v1/chat/completions"]["authorization"] == "Bearer sk-real-openai"
    assert "authorization" not in sent["/v1/messages"]
