"""Floods of requests and connections from one child do not affect the steward."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.models import asking, model_task
from support.roots import Root
from support.steward_watch import watched
from support.upstream import KEYS, Upstream, provider

pytestmark = pytest.mark.timeout(120)

SEND = """
import urllib.parse, socket, time
PLACE = urllib.parse.urlsplit(os.environ["RETINUE_GATEWAY"])
def send(body, **headers):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions", data=body,
        headers={"Content-Type": "application/json", "Authorization": "Bearer " + KEY, **headers})
    try:
        answer = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        answer = error
    return answer.status, json.load(answer).get("error", {}).get("code")
MODEL = b'{"model":"gpt-4o-mini","messages":['
"""
LISTS = "print(send(MODEL + b'[],' * 8_000_000 + b'[]]}'))"
STRINGS = "print(send(MODEL + b'\"\",' * 5_000_000 + b'[]]}'))"
HUGE = "print(send(MODEL + b'[],' * 23_000_000 + b'[]]}'))"
BOMB = """
import gzip
print(send(gzip.compress(MODEL + b' ' * 200_000_000 + b'[]]}', 1), **{"Content-Encoding": "gzip"}))
"""
SEARCHES = """
tools = b",".join([b'{"type":"web_search"}'] * 50_000)
said = b'{"role":"user","content":"' + b"x" * 20_000_000 + b'"}'
body = MODEL + said + b'],"tools":[' + tools + b"]}"
print(send(body, originator="codex_exec"))
"""
IDLE = """
links = []
try:
    while len(links) < 2000:
        links.append(socket.create_connection((PLACE.hostname, PLACE.port), timeout=1))
except OSError as full:
    print(full)
"""


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with provider() as running:
        yield running


@pytest.mark.parametrize(
    ("script", "answer"),
    [
        (LISTS, "(413, 'request_too_large')"),
        (STRINGS, "(413, 'request_too_large')"),
        (HUGE, "(413, 'request_too_large')"),
        (BOMB, "(413, 'request_too_large')"),
        (SEARCHES, "(403, 'hosted_not_allowed')"),
    ],
    ids=["lists", "strings", "huge", "bomb", "searches"],
)
def test_one_request_neither_stops_the_steward_nor_fills_its_memory(
    fresh: Root, upstream: Upstream, script: str, answer: str
) -> None:
    task = model_task(fresh, upstream)
    with watched(fresh) as seen:
        (result,) = fresh.run(task, asking(SEND + script, timeout_seconds=60))
    assert result["answer"] == answer, result
    assert seen.longest_s < 3
    assert seen.peak_mb < 400
    fresh.sound()


def test_a_childs_connections_are_limited(fresh: Root, upstream: Upstream) -> None:
    task = model_task(fresh, upstream)
    with watched(fresh) as seen:
        spawned = asking(SEND + IDLE, subagent_id="greedy", timeout_seconds=60)
        greedy, modest = fresh.run(task, spawned, asking("print(chat().status)"))
    assert (greedy["answer"], modest["answer"]) == ("timed out", "200")
    assert seen.descriptors < 200
    # Its start, the task and two ends: refused connections do not fill the log.
    assert len((fresh.path / "steward.log").read_text().splitlines()) <= 4


def test_a_child_asks_about_no_member_that_its_team_does_not_have(
    fresh: Root, upstream: Upstream
) -> None:
    # What is counted for a member is kept as long as the attempt: names of the child's choice
    # would fill the memory of the steward.
    script = """
def look(name):
    request = urllib.request.Request(
        os.environ["RETINUE_GATEWAY"] + "/@" + name + "/",
        headers={"Authorization": "Bearer " + KEY})
    try:
        return urllib.request.urlopen(request, timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code
print({look("x" * 4000 + str(number)) for number in range(50)})
"""
    task = model_task(fresh, upstream)
    (result,) = fresh.run(task, asking(SEND + script, timeout_seconds=60))
    assert result["answer"] == "{404}", result
