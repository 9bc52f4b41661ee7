"""Children on nodes reach models through the steward's gateway, and hold no key."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from support.cluster import TASK, Lab
from support.models import ASK, CONFIG
from support.upstream import INPUT, KEYS, Upstream, provider


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with provider() as running:
        yield running


@pytest.mark.parametrize("mode", ["isolated", "inherited"])
def test_requests_pass_through_the_hub_and_are_counted_here(
    empty_lab: Lab, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    empty_lab.open(CONFIG.format(agents=upstream.config(), mode=mode, more=""))
    for name in KEYS:
        monkeypatch.delenv(name)
    # The steward has the keys; the node never sees them.
    empty_lab.kill_steward()
    empty_lab.run("task", "list", **KEYS)
    empty_lab.join("w1")
    script = (
        "plain = json.load(chat())['choices'][0]['message']['content']\n"
        "stream = chat(stream=True, stream_options={'include_usage': True}).read()\n"
        f"keys = [name for name, value in os.environ.items() if value in {list(KEYS.values())!r}]\n"
        "print(json.dumps([bool(plain), b'[DONE]' in stream, keys]))\n"
    )
    empty_lab.run(
        *("subagent", "spawn", TASK, "--id", "asks", "--on", "x86_64", "--"),
        *("python3", "-I", "-c", ASK + script),
    )
    (row,) = empty_lab.wait_closed("asks")
    assert row["status"] == "completed", row
    assert json.loads(empty_lab.result("asks")["answer"]) == [True, True, []]
    assert empty_lab.result("asks")["token_usage"]["input_tokens"] == 2 * INPUT
    with closing(sqlite3.connect(f"file:{empty_lab.root / 'retinue.db'}?mode=ro", uri=True)) as db:
        assert db.execute("SELECT count(*) FROM ledger").fetchone() == (2,)
