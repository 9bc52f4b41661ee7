"""Usage of requests that run while the steward is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.models import asking, keyed, ledger, model_task, upstream
from support.roots import Root, until
from support.upstream import INPUT, Upstream

__all__ = ["upstream"]

pytestmark = pytest.mark.timeout(60)

ENDS_WHEN_CUT = (
    "import http.client\n"
    "try:\n    for line in {request}: pass\n"
    "except (OSError, http.client.HTTPException): pass\n"
    "print('over')\nimport time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
)
CHAT = "chat(stream=True)"
CLAUDE = (
    "ask('anthropic', '/v1/messages', {'model': 'claude-sonnet-4-5', 'max_tokens': 50, "
    "'stream': True, 'messages': [{'role': 'user', 'content': 'hi'}]})"
)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    with keyed(tmp_path / ".retinue") as root:
        yield root


@pytest.mark.parametrize(
    ("request_", "pieces", "read"),
    [(CHAT, 2, 5), (CLAUDE, 4, INPUT)],
    ids=["usage comes last", "usage comes first"],
)
def test_a_running_stream_is_booked_when_the_steward_is_killed(
    root: Root, upstream: Upstream, request_: str, pieces: int, read: int
) -> None:
    upstream.hold_after = pieces
    task = model_task(root, upstream)
    (name,) = root.spawn(task, asking(ENDS_WHEN_CUT.format(request=request_)))
    assert upstream.held.wait(20)
    until(lambda: any(row["output_tokens"] == 3 for row in ledger(root, task)))  # of 11 letters
    assert [row["status"] for row in ledger(root, task)] == ["open"]
    running = root.call("subagent.show", task=task, subagent=name)
    assert running["status"] == "running", running
    root.kill()
    upstream.hold_after = None
    root.call("task.list")
    (row,) = ledger(root, task)
    assert (row["status"], row["estimated"]) == ("cut", 1)
    assert row["input_tokens"] == read
    assert row["output_tokens"] == 3
    (root.folder(task, name) / "workspace" / "go").touch()
    root.call("subagent.wait_all", task=task, timeout_seconds=20)
    result = root.call("subagent.result", task=task, subagent=name)
    assert result["answer"] == "over"
    usage = result["token_usage"]
    assert (usage["input_tokens"], usage["estimated"]) == (read, True)
    assert usage["output_tokens"] == row["output_tokens"]
    root.sound()


def test_an_unanswered_request_is_booked_when_the_steward_is_killed(
    root: Root, upstream: Upstream
) -> None:
    upstream.hold_after = 0
    task = model_task(root, upstream)
    (name,) = root.spawn(task, asking(ENDS_WHEN_CUT.format(request=CHAT)))
    until(lambda: ledger(root, task))
    root.kill()
    root.call("task.list")
    (row,) = ledger(root, task)
    assert (row["status"], row["input_tokens"], row["output_tokens"]) == ("cut", 5, 0)
    root.call("subagent.cancel", task=task, subagent=name, kill=True)


def test_a_finished_request_has_one_entry_with_its_usage(root: Root, upstream: Upstream) -> None:
    """Slow enough to get an entry before its end."""
    upstream.hold_after = 2
    task = model_task(root, upstream)
    (name,) = root.spawn(task, asking(f"for line in {CHAT}: pass"))
    until(lambda: ledger(root, task))
    root.call("subagent.cancel", task=task, subagent=name, kill=True)
    (row,) = ledger(root, task)
    assert (row["status"], row["output_tokens"]) == ("cut", 3)  # of the eleven letters that passed


def test_the_entry_of_a_refused_request_is_deleted(root: Root, upstream: Upstream) -> None:
    """It ran long enough to get an entry, but the provider refused it, so it costs nothing."""
    upstream.refusal = {"error": {"message": "insufficient_quota"}}
    upstream.refuse = lambda number: upstream.held.wait(10)
    task = model_task(root, upstream)
    (name,) = root.spawn(task, asking("print(chat().status)"))
    until(lambda: ledger(root, task))
    upstream.held.set()
    root.call("subagent.wait_all", task=task, timeout_seconds=20)
    result = root.call("subagent.result", task=task, subagent=name)
    assert (result["answer"], result["token_usage"]) == ("429", {})
    assert ledger(root, task) == []
