"""Who is no guest of the page: without a session, from another page, or with ill intent."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from html.parser import HTMLParser
from pathlib import Path

import pytest

from support.page import Served, served, start
from support.roots import Root, sh, until

HOSTILE = "<img src=x onerror=alert(1)></script><a href='javascript:alert(1)'>x</a>\x1b[31m\u202e"


@pytest.fixture(scope="module")
def ui(root: Root) -> Iterator[Served]:
    root.create_task()
    with served(root.path) as page:
        page.enter()
        yield page


@pytest.fixture
def running(root: Root, task: str) -> str:
    root.spawn(task, sh("sleep 60", subagent_id="one"))
    return f"/api/tasks/{task}/subagents/one"


def test_nothing_is_told_without_a_session(ui: Served, running: str) -> None:
    for path in ("/api/tasks", running, "/api/session", "/api/changes"):
        answer = ui.get(path, Cookie=None)
        assert (answer.status, answer.code) == (401, "no_session")
        assert ui.get(path, Cookie=f"retinue_{ui.port}=guess").status == 401
        assert ui.get(f"{path}?token={ui.cookie.partition('=')[2]}", Cookie=None).status == 401
    page = ui.get("/", Cookie=None)
    assert page.status == 401 and b"retinue ui" in page.body


def test_the_link_opens_one_session_and_no_second(ui: Served) -> None:
    path = ui.link.removeprefix(ui.base)
    assert ui.get(path, Cookie=None).status == 401
    assert ui.get("/enter/guess", Cookie=None).status == 401
    assert "set-cookie" not in ui.get(path, Cookie=None).headers


def test_a_look_ahead_does_not_use_the_link_up(root: Root) -> None:
    with served(root.path) as fresh:
        assert fresh.send("HEAD", fresh.link.removeprefix(fresh.base)).status == 405
        fresh.enter()
        kept = fresh.get("/", Cookie=fresh.cookie).headers
        assert "set-cookie" not in kept


def test_the_cookie_is_for_this_server_and_no_script(root: Root) -> None:
    with served(root.path) as fresh:
        given = fresh.get(fresh.link.removeprefix(fresh.base)).headers["set-cookie"]
        name, _, rest = given.partition("=")
        assert name == f"retinue_{fresh.port}"
        assert {"httponly", "samesite=strict", "path=/"} <= set(rest.lower().split("; "))


def test_the_cookie_alone_opens_nothing(ui: Served, task: str, running: str) -> None:
    """Browsers send it to every port of this host, so other servers on the machine know it."""
    word = ui.word
    paths = ("/api/session", "/api/tasks", running, "/api/changes", f"/api/tasks/{task}/events")
    for path in paths:
        for given in (None, "guess", "", word[:-1]):
            answer = ui.get(path, X_CSRF_Token=given)
            assert (answer.status, answer.code) == (403, "no_word"), path
            assert word.encode() not in answer.body
    assert ui.get("/api/session").json["csrf"] == word
    shell = ui.get("/", X_CSRF_Token=None)
    assert shell.status == 200 and word.encode() not in shell.body
    in_query = {"X_CSRF_Token": None}
    assert ui.get(f"/api/tasks?csrf={word}", **in_query).status == 403
    closed = ui.post(f"/api/tasks/{task}/cancel?csrf={word}", {}, **in_query)
    assert (closed.status, closed.code) == (403, "no_word")


def test_a_stream_takes_the_token_in_its_query(ui: Served, root: Root) -> None:
    task = root.create_task()
    root.call("task.close", task=task)
    stream = f"/api/tasks/{task}/events?csrf={ui.word}"
    assert b"event: end" in ui.get(stream, X_CSRF_Token=None).body
    assert ui.get(stream, X_CSRF_Token=None, Cookie=None).status == 401


BROWSER = """#!/usr/bin/python3 -I
import json, os, sys
seen = {"argv": sys.argv[1:], "text": open(sys.argv[1].removeprefix("file://")).read(),
        "mode": os.stat(sys.argv[1].removeprefix("file://")).st_mode & 0o777}
with open(os.environ["SEEN"] + ".new", "w") as file:
    json.dump(seen, file)
os.rename(os.environ["SEEN"] + ".new", os.environ["SEEN"])
"""


def test_the_link_is_in_no_list_of_processes(root: Root, tmp_path: Path) -> None:
    script, seen = tmp_path / "browser", tmp_path / "seen"
    script.write_text(BROWSER)
    script.chmod(0o755)
    words = [sys.executable, "-m", "retinue", "--root", str(root.path), "ui", "--port", "0"]
    own, theirs = os.openpty()
    environment = os.environ | {"BROWSER": f"{script} %s", "SEEN": str(seen)}
    process = subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    try:
        until(seen.exists)
        opened = json.loads(seen.read_text())
        said = os.read(own, 65536).decode()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)
        os.close(own)
    (address,) = opened["argv"]
    link = next(word for word in said.split() if "/enter/" in word)
    key = link.rpartition("/")[2]
    assert address.startswith("file:///") and key not in address
    assert opened["mode"] == 0o600
    assert f"url={link}" in opened["text"]
    assert not Path(address.removeprefix("file://")).exists(), "it is gone with the page"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": None}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"X_CSRF_Token": None}, 403),
        ({"X_CSRF_Token": "guess"}, 403),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content_Type": None}, 415),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1:1"}, 403),
        ({"Host": "127.0.0.1"}, 403),
        ({"Cookie": None}, 401),
    ],
)
def test_no_other_page_can_act(
    ui: Served, root: Root, task: str, running: str, headers: dict[str, str | None], status: int
) -> None:
    before = len(root.events(task))
    answer = ui.post(f"{running}/cancel", {}, **headers)
    assert answer.status == status
    assert answer.json["error"]["code"] and answer.json["error"]["hint"]
    assert len(root.events(task)) == before
    assert root.rows(task)["one"]["status"] == "running"


def test_looking_changes_nothing_and_other_methods_are_not_known(
    ui: Served, root: Root, task: str, running: str
) -> None:
    for path in (f"{running}/cancel", f"{running}/close", f"/api/tasks/{task}/cancel"):
        answer = ui.get(path)
        assert (answer.status, answer.code, answer.headers["allow"]) == (405, "method", "POST")
        assert answer.json["error"]["hint"]
        for method in ("OPTIONS", "PUT", "DELETE", "PATCH", "TRACE"):
            answer = ui.send(method, path)
            assert answer.status == 405
            assert not [name for name in answer.headers if name.startswith("access-control")]
    assert root.rows(task)["one"]["status"] == "running"


def test_the_page_itself_can_act_and_it_is_on_record(
    ui: Served, root: Root, task: str, running: str
) -> None:
    answer = ui.post(f"{running}/cancel", {"reason": "enough"})
    assert (answer.status, answer.json["cancelled"]) == (200, True)
    asked = next(e for e in root.events(task) if e["type"] == "agent.cancel_requested")
    assert (asked["by"], asked["payload"]["reason"]) == ("user", "enough")
    again = ui.post(f"{running}/cancel", {})
    assert again.status == 409 and again.json["success"] is False


def test_a_body_that_is_none_is_refused_whole(ui: Served, running: str) -> None:
    own = {"Origin": ui.base, "Content_Type": "application/json", "X_CSRF_Token": ui.word}
    for body in (b"[]", b"{", b"\xff", b'"x"', b"[" * 100_000):
        assert ui.send("POST", f"{running}/cancel", body, **own).status == 400
    assert ui.post(f"{running}/cancel", {"kill": True}).status == 400
    assert ui.post(f"{running}/continue", {"message": 1}).status == 400
    assert ui.send("POST", f"{running}/cancel", b"x" * 5_000_000, **own).status == 413


@pytest.mark.parametrize(
    "path",
    [
        "/api/tasks/..%2f..%2fetc%2fpasswd",
        "/api/agents/..%2f..%2fetc%2fpasswd",
        "/static/../../",
        "/static/..%2f..%2fserver.py",
        "/static/%00",
        "/static//etc/passwd",
        "/api/tasks/%00",
        "/tasks/%2e%2e",
        "/api/tasks/x/subagents/..%2f..%2f",
        "/nothing",
    ],
)
def test_no_address_leads_out(ui: Served, root: Root, path: str) -> None:
    answer = ui.get(path)
    assert answer.status in (400, 404), answer.body
    assert b"Traceback" not in answer.body and b"root:" not in answer.body
    assert str(root.path).encode() not in answer.body


def test_a_file_is_shown_only_from_the_workspace(ui: Served, root: Root, task: str) -> None:
    root.run(task, sh("ln -s /etc/passwd link; echo fine > own; echo done", subagent_id="two"))
    base = f"/api/tasks/{task}/subagents/two"
    assert ui.get(f"{base}/file?path=own").json["text"] == "fine\n"
    for path in ("link", "..%2f..%2ftwo%2fresult.json", "%2fetc%2fpasswd", "%00", "."):
        answer = ui.get(f"{base}/file?path={path}")
        assert answer.status == 404 and b"root:" not in answer.body
    listed = {file["path"]: file["kind"] for file in ui.get(f"{base}/files").json["files"]}
    assert listed == {"link": "link", "own": "file"}


def test_what_a_child_wrote_that_is_no_text_or_number_is_shown_all_the_same(
    ui: Served, root: Root, task: str
) -> None:
    root.run(task, sh("touch own \"$(printf 'a\\377b')\"; echo done", subagent_id="two"))
    base = f"/api/tasks/{task}/subagents/two"
    listed = [file["path"] for file in ui.get(f"{base}/files").json["files"]]
    assert listed == ["a\ufffdb", "own"]
    said = ui.get(f"{base}/conversation").json["entries"]
    with (root.folder(task, "two") / "conversation.jsonl").open("a") as file:
        file.write('{"role": "user", "content": "half \\ud800"}\n')
        file.write('{"role": "user", "content": NaN}\n{"role": "user", "content": 1e400}\n')
    answer = ui.get(f"{base}/conversation")
    assert answer.status == 200, answer.body
    assert [each["content"] for each in answer.json["entries"][len(said) :]] == ["half \ud800"]


def test_a_search_for_no_events_finds_none(ui: Served, root: Root, task: str) -> None:
    root.run(task, sh("echo done"))
    answer = ui.get(f"/api/tasks/{task}/search?limit=0")
    assert (answer.status, answer.json["events"]) == (200, [])


def test_what_is_no_number_is_refused_by_its_own_words(ui: Served, task: str) -> None:
    for path in ("/api/tasks?limit=many", f"/api/tasks/{task}/events/many"):
        answer = ui.get(path)
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert answer.json["error"]["message"].endswith(", not 'many'")


def test_what_is_too_large_is_refused_in_order(ui: Served) -> None:
    assert ui.get("/" + "a" * 100_000).status in (400, 414)
    many = "".join(f"X-{number}: 1\r\n" for number in range(1000))
    request = f"GET / HTTP/1.1\r\nHost: {ui.host}\r\n{many}\r\n"
    assert _raw(ui, request.encode()).split()[1] in (b"400", b"431")
    assert ui.get("/api/tasks").status == 200


def test_every_answer_says_what_a_browser_may_do_with_it(ui: Served, task: str) -> None:
    for path in ("/", f"/tasks/{task}", "/static/app.js", "/api/tasks", "/nothing"):
        answer = ui.get(path)
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy and "default-src 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert not [name for name in answer.headers if name.startswith("access-control")]
    assert ui.get("/api/tasks").headers["content-type"] == "application/json"
    assert ui.get("/static/app.js").headers["content-type"].startswith("text/javascript")


class _Scripts(HTMLParser):
    """Scripts with a text of their own, and attributes that are scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [name for name, _ in attrs if name.startswith("on")]
        if tag == "script" and not dict(attrs).get("src"):
            self.found.append(tag)


def test_pages_hold_no_script_and_nothing_that_a_child_wrote(
    ui: Served, root: Root, task: str
) -> None:
    (result,) = root.run(task, sh(f"printf '%s' {json.dumps(HOSTILE)}", subagent_id="bad"))
    assert result["status"] == "completed"
    for path in ("/", f"/tasks/{task}", f"/tasks/{task}/subagents/bad"):
        page = ui.get(path)
        assert b"onerror" not in page.body
        scripts = _Scripts()
        scripts.feed(page.body.decode())
        assert not scripts.found


def test_others_can_reach_the_page_only_with_a_token(root: Root, tmp_path: Path) -> None:
    refused = start(root.path, "--host", "0.0.0.0", "--port", "0")
    out, err = refused.communicate(timeout=20)
    assert refused.returncode == 2 and "token_needed" in err
    assert json.loads(out)["error"]["code"] == "token_needed"
    (tmp_path / "weak").write_text("short")
    weak = start(root.path, "--host", "0.0.0.0", "--token-file", str(tmp_path / "weak"))
    assert "weak_token" in weak.communicate(timeout=20)[1]
    secret = "a secret of many characters"
    (tmp_path / "token").write_text(secret + "\n")
    words = ("--host", "0.0.0.0", "--token-file", str(tmp_path / "token"))
    with served(root.path, *words) as page:
        own = {"Origin": page.base, "Content_Type": "application/json"}
        for wrong in ("guess", "\ud800", "\u00e9", secret + "\0"):
            body = json.dumps({"token": wrong}).encode()
            assert page.send("POST", "/api/enter", body, **own).status == 401
        body = json.dumps({"token": secret}).encode()
        assert page.send("POST", "/api/enter", body, **(own | {"Origin": None})).status == 403
        given = page.send("POST", "/api/enter", body, **own)
        page.cookie = given.headers["set-cookie"].partition(";")[0]
        assert page.get("/api/tasks").status == 403
        page.word = given.json["csrf"]
        assert page.get("/api/tasks").status == 200
        assert page.get("/api/tasks", Host=f"rebound.example:{page.port}").status == 403


@pytest.mark.slow
def test_slow_connections_are_dropped_and_delay_no_other(ui: Served, root: Root, task: str) -> None:
    with ExitStack() as stack:
        halves = [stack.enter_context(_connection(ui)) for _ in range(300)]
        for half in halves:
            half.sendall(b"GET / HTTP/1.1\r\nHost: ")
        body = stack.enter_context(_connection(ui))
        head = f"POST /api/tasks/{task}/cancel HTTP/1.1\r\nHost: {ui.host}\r\n"
        head += f"Cookie: {ui.cookie}\r\nOrigin: {ui.base}\r\nContent-Type: application/json\r\n"
        head += f"X-CSRF-Token: {ui.word}\r\nContent-Length: 1000\r\n\r\n"
        body.sendall(head.encode())
        readers = [stack.enter_context(_connection(ui)) for _ in range(100)]
        follow = f"GET /api/tasks/{task}/events HTTP/1.1\r\nHost: {ui.host}\r\n"
        for reader in readers:
            own = f"Cookie: {ui.cookie}\r\nX-CSRF-Token: {ui.word}\r\n\r\n"
            reader.sendall((follow + own).encode())
        for reader in readers:
            assert reader.recv(12) == b"HTTP/1.1 200"
        began = time.monotonic()
        assert ui.get("/api/tasks").status == 200
        assert time.monotonic() - began < 1.0
        assert _descriptors(ui) < 330
        assert _trickles(body) < 30
        assert all(_gone(half, 30) for half in halves)
        assert time.monotonic() - began < 30
    until(lambda: _descriptors(ui) < 60)


def _connection(ui: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", ui.port), timeout=20)


def _gone(connection: socket.socket, seconds: float) -> bool:
    """Whether the other end lets go within that time."""
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def _trickles(connection: socket.socket) -> float:
    """How many seconds a body may be sent, a byte each half of one."""
    began = time.monotonic()
    while not _gone(connection, 0.5) and time.monotonic() - began < 40:
        with suppress(ConnectionError):
            connection.sendall(b" ")
    return time.monotonic() - began


def _raw(ui: Served, request: bytes) -> bytes:
    with _connection(ui) as connection:
        connection.sendall(request)
        return connection.recv(4096)


def _descriptors(ui: Served) -> int:
    return len(list(Path(f"/proc/{ui.process.pid}/fd").iterdir()))
