"""Hostile input: the server goes on, and each invalid line gets one error."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.mcp import BOUND_S, ENVIRONMENT, FETCH, HELLO, SPAWN, WAIT, Raw, command, project, task

NESTED = b'{"a":' * 90 + b"1" + b"}" * 90


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with project(tmp_path_factory.mktemp("mcp")) as root:
        yield root


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Raw]:
    with Raw(root) as raw:
        yield raw.open()
        for line in raw.lines:
            assert json.loads(line)["jsonrpc"] == "2.0"


@pytest.mark.parametrize(
    ("line", "number"),
    [
        (b"garbage", None),
        (b"{", None),
        (b'{"jsonrpc":"2.0","id":801,"method":"ping"', None),
        (b'{"id":802,"method":"ping"}', 802),
        (b'{"jsonrpc":"1.0","id":"803","method":"ping"}', "803"),
        (b'{"jsonrpc":"2.0","id":804,"method":"ping","params":[1]}', 804),
        (b'{"jsonrpc":"2.0","id":805,"method":7}', 805),
        (b'{"jsonrpc":"2.0","id":806}', 806),
        (b'{"jsonrpc":"2.0","id":807.5,"method":"ping"}', None),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', None),
        (b'{"jsonrpc":"2.0","id":808,"method":"ping","params":{"x":NaN}}', 808),
        (b'{"jsonrpc":"2.0","id":809,"method":"ping","params":{"x":1e999}}', 809),
        (b'{"jsonrpc":"2.0","method":"ping","params":{"x":-Infinity},"id":810}', 810),
        (b'{"jsonrpc":"2.0","id":811,"method":"ping","params":{"x":"\\ud800"}}', 811),
        (b'{"jsonrpc":"2.0","id":812,"method":"ping","params":{"\\udc00":1}}', 812),
        (b'{"jsonrpc":"2.0","id":813,"method":"ping","params":{"x":"\xff"}}', None),
        (b'[{"jsonrpc":"2.0","id":814,"method":"ping"},{"id":815,"method":"ping"}]', None),
        (b"[]", None),
        (b"7", None),
        (b'{"jsonrpc":"2.0","id":816,"method":"x","params":' + NESTED + b"}", 816),
        (b'{"jsonrpc":"2.0","id":817,"method":"ping","params":' + b"[" * 200_000, None),
        (b'{"jsonrpc":"2.0","id":818,"params":{"n":' + b"9" * 5000 + b'},"method":"ping"}', None),
        (b'{"jsonrpc":"2.0","id":819,"method":"no/such"}', 819),
        (b'{"jsonrpc":"2.0","method":"ping","params":{x},"id":0820}', None),
        (b'{"jsonrpc":"2.0","method":"ping","params":{x},"id":"\x01"}', None),
        (b'{"jsonrpc":"2.0","method":"ping","params":{x},"id":"\xff"}', None),
        (b'{"jsonrpc":"2.0","id":821,"method":"tools/call","params":{"name":[]}}', 821),
        (b'{"jsonrpc":"2.0","id":822,"method":"tools/call","params":{"name":{"x":1}}}', 822),
    ],
)
def test_an_invalid_line_gets_one_error_with_its_id_if_it_is_json(
    server: Raw, line: bytes, number: int | str | None
) -> None:
    server.write(line)
    answer = server.next()
    assert answer["id"] == number
    assert set(answer) == {"jsonrpc", "id", "error"}
    assert server.alive()


def test_a_line_of_fifty_megabytes_is_refused_without_being_kept(root: Path) -> None:
    with Raw(root) as server:
        server.open()
        before = resident_kb(server.process.pid)
        filler = b"x" * (50 * 1024 * 1024)
        for line in (
            b'{"jsonrpc":"2.0","id":7001,"method":"ping","params":{"x":"' + filler + b'"}}',
            b'{"jsonrpc":"2.0","method":"ping","params":{"x":"' + filler + b'"},"id":7002}',
            filler,
        ):
            server.write(line)
        assert [server.next()["id"] for _ in range(3)] == [None] * 3
        assert server.alive()
        assert resident_kb(server.process.pid) - before < 40 * 1024


def test_empty_lines_and_unknown_notifications_are_let_pass(server: Raw) -> None:
    server.write(b"")
    server.write(b"  \r")
    server.notify("notifications/no-such", {})
    server.notify("notifications/cancelled", {"requestId": 999_999, "reason": "?"})
    assert server.alive()


def test_everything_asked_before_the_input_ends_is_answered(root: Path) -> None:
    lines = [
        HELLO,
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        *({"jsonrpc": "2.0", "id": n, "method": "tools/list"} for n in range(2, 5)),
        {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "list_subagents"}},
    ]
    done = subprocess.run(
        command(root),
        input=b"".join(json.dumps(line).encode() + b"\n" for line in lines),
        capture_output=True,
        timeout=BOUND_S,
        cwd=root.parent,
        env=ENVIRONMENT,
        check=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(answer["id"] for answer in answers) == [1, 2, 3, 4, 5]
    assert all("result" in answer for answer in answers)


def test_looking_for_subagents_where_there_is_no_root_makes_none(tmp_path: Path) -> None:
    with Raw(tmp_path / ".retinue") as server:
        server.open()
        told = server.answer(server.call("list_subagents", {}))["result"]["structuredContent"]
        assert told["subagents"] == []
        told = server.answer(server.call(WAIT, {}))["result"]["structuredContent"]
        assert (told["status"], told["job_id"]) == ("idle", None)
        refused = server.answer(server.call(FETCH, {"job_id": "nobody"}))
        assert refused["result"]["isError"]
    assert list(tmp_path.iterdir()) == []


def test_an_input_that_cannot_be_waited_for_is_read_to_its_end(root: Path, tmp_path: Path) -> None:
    said = tmp_path / "said"
    said.write_text(json.dumps(HELLO) + "\n")
    for name, answers in ((Path("/dev/null"), []), (said, [1])):
        with name.open("rb") as source:
            done = subprocess.run(
                command(root), stdin=source, capture_output=True, env=ENVIRONMENT, timeout=BOUND_S
            )
        assert (done.returncode, done.stderr) == (0, b"")
        assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == answers


def test_each_request_beyond_the_limit_is_refused(root: Path) -> None:
    with Raw(root) as server:
        server.open()
        arguments = {"tasks": [task("sleep 60", "a")]}
        numbers = [server.call(SPAWN, arguments) for _ in range(520)]
        refused = [server.answer(number) for number in numbers[512:]]
        assert all(each["error"]["code"] == -32000 for each in refused)


def test_calls_that_were_taken_back_leave_room_for_others(tmp_path: Path) -> None:
    with project(tmp_path) as root, Raw(root) as server:
        server.open()
        script = "until [ -e go ]; do sleep 0.01; done"
        begun = server.call(SPAWN, {"tasks": [task(script, "a")], "background": True})
        assert "result" in server.answer(begun)
        for _ in range(3):
            calls = [server.call(WAIT, {}) for _ in range(200)]
            for number in calls:
                server.notify("notifications/cancelled", {"requestId": str(number)})
            assert server.alive()
        large = {"x": "x" * (6 << 20)}
        for _ in range(8):
            number = server.call(WAIT, {}, **large)
            server.notify("notifications/cancelled", {"requestId": number})
        assert server.alive()
        assert "result" in server.answer(server.call(WAIT, {"timeout_seconds": 0}, **large))


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-"])
def test_without_a_pipe_to_speak_through_the_server_says_so(root: Path, closed: str) -> None:
    words = ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *command(root)]
    ended = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=BOUND_S)
    assert ended.returncode == 2 and ended.stdout == ""
    assert ended.stderr.startswith("error[no_pipe]: ") and ended.stderr.count("\n") == 1


def test_half_a_character_from_a_child_is_told_as_text(server: Raw) -> None:
    script = "printf 'a\\355\\240\\200\\377b\\000c'"
    answer = server.answer(server.call(SPAWN, {"tasks": [task(script, "odd")]}))
    text = answer["result"]["structuredContent"]["results"][0]["answer"]
    assert text.startswith("a") and text.encode("utf-8")


def test_prints_of_a_child_never_reach_the_pipe(server: Raw) -> None:
    script = 'echo \'{"jsonrpc":"2.0","id":1,"result":{}}\'; echo noise >&2'
    server.answer(server.call(SPAWN, {"tasks": [task(script, "loud")]}))
    answer = server.answer(server.call(FETCH, {"job_id": "loud"}))
    assert "jsonrpc" in answer["result"]["structuredContent"]["result"]["answer"]


def test_an_unknown_tool_and_wrong_arguments_are_told_apart(server: Raw) -> None:
    unknown = server.answer(server.call("no_such_tool", {}))
    assert "no_such_tool" in unknown["error"]["message"]
    wrong = server.answer(server.call(FETCH, {"job_id": 7}))
    assert wrong["result"]["isError"] and "job_id" in wrong["result"]["content"][0]["text"]
    missing = server.answer(server.call(FETCH, {"job_id": "no-such-job"}))
    assert missing["result"]["isError"]


def resident_kb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")
