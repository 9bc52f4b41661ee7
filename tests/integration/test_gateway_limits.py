"""Budgets, and the back-off from overloaded providers."""

from __future__ import annotations

import json
import time

import pytest

from support.models import asking, ledger, model_task, models, upstream
from support.roots import Root, until
from support.upstream import INPUT, OUTPUT, Upstream

__all__ = ["models", "upstream"]

pytestmark = pytest.mark.timeout(90)
TOKENS = INPUT + OUTPUT

GREEDY = """
import time
logs = os.environ["RETINUE_ANSWER"]
open(logs, "w").write("so far")
for n in range(20):
    answer = chat()
    if answer.status != 200:
        print(answer.status, json.load(answer)["error"]["message"], file=sys.stderr, flush=True)
        break
"""

GENEROUS = """
import socket
link = socket.socket(socket.AF_UNIX)
link.connect(os.environ["RETINUE_STEWARD"])
lines = link.makefile("rwb")
def said(verb, **params):
    lines.write(json.dumps({"v": 1, "id": 0, "verb": verb, "params": params}).encode() + b"\\n")
    lines.flush()
    return json.loads(lines.readline())["result"]
below = {"argv": json.loads(os.environ["BELOW"]), "subagent_id": "below", "context_paths": []}
said("subagent.spawn", tasks=[below], wait=True)
for _ in range(3):
    said("parent.continue", subagent="below", message="more")
while chat().status == 200:
    pass
"""


@pytest.mark.parametrize(
    ("budget", "requests", "said"),
    [
        (f"tokens: {2 * TOKENS + 1}", 3, f"{3 * TOKENS} of {2 * TOKENS + 1} tokens"),
        ("turns: 2", 2, "2 of 2 turns"),
        ("usd: 0.00001", 2, "of 1e-05 USD"),
    ],
)
def test_over_its_budget_a_subagent_fails_with_its_work_recovered(
    models: Root, upstream: Upstream, budget: str, requests: int, said: str
) -> None:
    more = f"    subagent_budget: {{{budget}}}\n    subagent_grace_turn_seconds: 0.2"
    task = model_task(models, upstream, more=more)
    (result,) = models.run(task, asking(GREEDY, max_retries=2))
    assert len(upstream.asked) == requests
    assert (result["status"], result["success"], result["answer"]) == ("partial", False, "so far")
    assert result["error"].startswith("budget exceeded: ") and said in result["error"]
    assert result["token_usage"]["input_tokens"] == requests * INPUT
    events = {event["type"]: event for event in models.events(task)}
    assert said in events["agent.budget_exceeded"]["payload"]["limit"]
    assert events["agent.subagent_closed"]["payload"]["close_reason"] == "budget_exceeded"
    told = models.folder(task, result["subagent_id"]) / "runtime" / "stderr.log"
    assert told.read_text().startswith("402 budget exceeded")


def test_a_child_that_ignores_its_budget_is_stopped_after_the_grace_time(
    models: Root, upstream: Upstream
) -> None:
    more = "    subagent_budget: {turns: 1}\n    subagent_grace_turn_seconds: 0.3"
    task = model_task(models, upstream, more=more)
    began = time.monotonic()
    (result,) = models.run(task, asking("while True: chat().read()"))
    assert time.monotonic() - began < 15
    assert result["status"] == "error"
    assert "budget" in result["error"]
    assert len(upstream.asked) == 1


def test_a_budget_in_money_refuses_models_without_a_price(models: Root, upstream: Upstream) -> None:
    task = model_task(models, upstream, more="    subagent_budget: {usd: 5}")
    script = "a = chat(model='nobody-knows'); print(a.status, json.load(a)['error']['code'])"
    (result,) = models.run(task, asking(script))
    assert result["answer"] == "402 price_unknown"


def test_parallel_requests_do_not_overrun_a_budget_together(
    models: Root, upstream: Upstream
) -> None:
    task = model_task(models, upstream, more=f"    subagent_budget: {{tokens: {3 * TOKENS}}}")
    script = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(8) as pool:\n"
        "    print(sorted(a.status for a in pool.map(lambda n: chat(max_tokens=9), range(8))))\n"
    )
    (result,) = models.run(task, asking(script))
    assert result["answer"] == str([200, 200, 200, 402, 402, 402, 402, 402])
    assert result["token_usage"]["input_tokens"] == 3 * INPUT


@pytest.mark.requirement("R103")
def test_delegated_and_continued_work_spends_the_childs_budget(
    models: Root, upstream: Upstream
) -> None:
    more = "    subagent_budget: {turns: 8}\n    subagent_grace_turn_seconds: 0.2"
    task = model_task(models, upstream, more=more)
    below = json.dumps(asking("while chat().status == 200: pass\nprint('spent')")["argv"])
    given = f"os.environ['BELOW'] = {below!r}\n"
    models.run(task, asking(given + GENEROUS, max_delegation_depth=1, max_retries=0))
    assert len(upstream.asked) == 8


def test_twenty_children_of_a_provider_that_refuses_every_second_request_all_complete(
    models: Root, upstream: Upstream
) -> None:
    began = time.monotonic()
    upstream.refuse = lambda number: number % 2 == 0 and time.monotonic() - began < 2
    task = model_task(models, upstream)
    results = models.run(task, *(asking("print(chat().status)") for _ in range(20)))
    assert [result["answer"] for result in results] == ["200"] * 20
    assert {result["status"] for result in results} == {"completed"}
    assert {row["attempt"] for row in models.rows(task).values()} == {1}
    assert len(ledger(models, task)) == 20
    cooldowns = [e for e in models.events(task) if e["type"] == "provider.cooldown"]
    assert cooldowns and all(e["agentInstance"] is None for e in cooldowns)
    assert cooldowns[0]["payload"]["provider"] == "openai_agent"


def test_a_cooldown_is_shown_in_the_list(models: Root, upstream: Upstream) -> None:
    upstream.refuse = lambda number: number < 3
    task = model_task(models, upstream)
    (name,) = models.spawn(task, asking("print(chat().status)"))
    row = until(lambda: [r for r in models.rows(task).values() if r.get("waiting_for")])[0]
    assert "openai_agent cools down" in row["waiting_for"]
    models.call("subagent.wait_all", task=task, timeout_seconds=30)
    result = models.call("subagent.result", task=task, subagent=name)
    assert result["answer"] == "200"
    assert "waiting_for" not in models.rows(task)[name]


def test_the_error_of_an_empty_account_is_not_retried(models: Root, upstream: Upstream) -> None:
    upstream.refuse = lambda number: True
    upstream.refusal = {"error": {"code": "insufficient_quota"}}
    task = model_task(models, upstream)
    (result,) = models.run(task, asking("a = chat(); print(a.status, json.load(a))"))
    assert result["answer"] == "429 {'error': {'code': 'insufficient_quota'}}"
