"""Children on nodes reach models through the steward's gateway, and hold no key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster import Lab
from support.models import asking, ledger, model_task
from support.roots import until
from support.upstream import INPUT, KEYS, OUTPUT, Upstream, provider

TOKENS = INPUT + OUTPUT
MODES = ["isolated", "inherited"]
DELEGATE = """
import socket
link = socket.socket(socket.AF_UNIX)
link.connect(os.environ["RETINUE_STEWARD"])
lines = link.makefile("rwb")
request = {"v": 1, "id": 0, "verb": "subagent.spawn", "params": json.loads(sys.argv[1])}
lines.write(json.dumps(request).encode() + b"\\n")
lines.flush()
print(lines.readline().decode())
"""


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with provider() as running:
        yield running


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A hub with two nodes, whose steward has the provider's keys; nodes never see them."""
    made = Lab(tmp_path_factory.mktemp("models"))
    try:
        made.open()
        made.kill_steward()
        made.run("task", "list", **KEYS)
        made.join("w1")
        made.join("w2")
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("mode", MODES)
def test_requests_pass_through_the_hub_and_are_counted_here(
    lab: Lab, upstream: Upstream, mode: str
) -> None:
    script = (
        "plain = json.load(chat())['choices'][0]['message']['content']\n"
        "stream = chat(stream=True, stream_options={'include_usage': True}).read()\n"
        f"keys = [name for name, value in os.environ.items() if value in {list(KEYS.values())!r}]\n"
        "print(json.dumps([bool(plain), b'[DONE]' in stream, keys]))\n"
    )
    task = model_task(lab.calls, upstream, mode=mode)
    (result,) = lab.calls.run(task, asking(script, on=["x86_64"]))
    assert result["status"] == "completed", result
    assert json.loads(result["answer"]) == [True, True, []]
    assert result["token_usage"]["input_tokens"] == 2 * INPUT
    assert len(ledger(lab.calls, task)) == 2


def test_children_on_two_nodes_share_one_budget_and_do_not_overspend_it(
    lab: Lab, upstream: Upstream
) -> None:
    budget = 9 * TOKENS
    more = f"    subagent_budget: {{tokens: {budget}}}"
    task = model_task(lab.calls, upstream, mode="inherited", more=more)
    spend = (
        "import time\n"
        f"open({str(lab.marks)!r} + '/' + os.environ['RETINUE_SUBAGENT_ID'], 'w')\n"
        f"while len(os.listdir({str(lab.marks)!r})) < 2: time.sleep(0.02)\n"
        "while chat(max_tokens=9).status == 200: pass\n"
        "print('spent')"
    )
    below = [asking(spend, on=[f"host={node}"], subagent_id=node) for node in ("w1", "w2")]
    parent = asking(DELEGATE, max_delegation_depth=1)
    parent["argv"].append(json.dumps({"tasks": below, "wait": True}))
    (result,) = lab.calls.run(task, parent)
    assert "spent" in result["answer"], result
    rows = ledger(lab.calls, task)
    assert {row["sub_agent_id"] for row in rows} == {"w1", "w2"}
    spent = sum(row["input_tokens"] + row["output_tokens"] for row in rows)
    assert budget // 2 < spent <= budget + TOKENS
    assert len(upstream.asked) == len(rows)


def test_the_token_of_a_revoked_attempt_opens_nothing_and_books_nothing(
    lab: Lab, upstream: Upstream
) -> None:
    kept = lab.marks / "token"
    script = (
        f"kept = {str(kept)!r}\n"
        "if os.environ['RETINUE_ATTEMPT'] == '1':\n"
        "    chat().read()\n"
        "    open(kept, 'w').write(KEY)\n"
        "    import time; time.sleep(60)\n"
        "old = chat_with = open(kept).read()\n"
        "HEADERS['openai'] = ('Authorization', 'Bearer ' + old)\n"
        "print(old != KEY, chat().status)\n"
    )
    task = model_task(lab.calls, upstream, mode="inherited")
    (name,) = lab.calls.spawn(task, asking(script, on=["x86_64"]))
    until(kept.exists)
    first = lab.call("subagent.show", task=task, subagent=name)["attempts"][0]["node"]
    lab.kill(first)
    result = lab.call("subagent.attend", task=task, subagent=name)
    lab.restart(first)
    assert (result["status"], result["answer"]) == ("completed", "True 401"), result
    assert len(ledger(lab.calls, task)) == len(upstream.asked) == 1
    assert Path(kept).read_text()
