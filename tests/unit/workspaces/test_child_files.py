"""Reader of files that a child wrote, some of them hostile."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from retinue.core.ids import SubagentId
from retinue.core.result import Declared, Ending, EndKind, Evidence, Testimony, decide_result
from retinue.formats.result_json import result_to_json
from retinue.workspaces.child_files import (
    ANSWER_LIMIT_BYTES,
    JSON_LIMIT_BYTES,
    MAX_NAMES,
    ChildFile,
    ChildText,
    MissingFile,
    UnreadableFile,
    list_child_folder,
    read_answer,
    read_child_file,
    read_final,
    read_testimony,
)

SECRET = "the parent's secret"


@pytest.fixture(autouse=True)
def no_descriptor_leaks() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    # Fewer are left where garbage of an earlier test was collected.
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    path = tmp_path / "outside" / "secret.txt"
    path.write_text(SECRET)
    return path


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    path = tmp_path / "full_logs"
    path.mkdir()
    return path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, errors="surrogatepass")


def testify(logs: Path, *members: str, **sections: Any) -> None:
    write(logs / "status.json", json.dumps({"agents": {m: {} for m in members}, **sections}))


# --- one file ----------------------------------------------------------------------------------


def test_a_plain_file_is_read_below_a_path_and_below_a_descriptor(tmp_path: Path) -> None:
    write(tmp_path / "a" / "b" / "c.txt", "hello")
    assert read_child_file(tmp_path, "a/b/c.txt", 5) == ChildFile(data=b"hello", cut=False)
    folder = os.open(tmp_path / "a", os.O_RDONLY)
    try:
        assert read_child_file(folder, "b/c.txt", 5).data == b"hello"
        assert list_child_folder(folder, "b") == ["c.txt"]
    finally:
        os.close(folder)


def test_a_file_over_the_limit_is_cut_or_refused_as_asked(tmp_path: Path) -> None:
    write(tmp_path / "x", "123456")
    assert read_child_file(tmp_path, "x", 5, cut=True) == ChildFile(data=b"12345", cut=True)
    with pytest.raises(UnreadableFile, match="larger than 5 bytes"):
        read_child_file(tmp_path, "x", 5)


def test_a_sparse_terabyte_file_is_read_only_to_the_limit(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as file:
        file.truncate(1 << 40)
    assert len(read_child_file(tmp_path, "x", 1000, cut=True).data) == 1000


@pytest.mark.parametrize("relative", ["x", "a/x", "a/b/x"])
def test_a_missing_file_raises_missing_file(tmp_path: Path, relative: str) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(MissingFile):
        read_child_file(tmp_path, relative, 10)
    with pytest.raises(MissingFile):
        read_child_file(tmp_path / "gone", relative, 10)


@pytest.mark.parametrize(
    "relative",
    ["", ".", "..", "/", "/etc/passwd", "../outside/secret.txt", "a/../../outside/secret.txt",
     "a//x", "a/", "./a/x", "a/./x", "a\x00/x", "\ud800", "x" * 300, "a/x/y"],
    ids=lambda value: ascii(value[:30]),
)  # fmt: skip
def test_no_path_leaves_its_root(tmp_path: Path, secret: Path, relative: str) -> None:
    root = tmp_path / "root"
    write(root / "a" / "x", "plain")
    with pytest.raises(UnreadableFile):
        read_child_file(root, relative, 1000)


def link_inside(spot: Path, secret: Path) -> None:
    (spot.parent / "own").write_text(SECRET)
    spot.symlink_to("own")


def unix_socket(spot: Path, secret: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(spot.parent)  # a socket's address is short, a temporary path may not be
        try:
            listener.bind(spot.name)
        finally:
            os.chdir(here)


def device(spot: Path, secret: Path) -> None:
    try:
        os.mknod(spot, 0o666 | 0o020000, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        pytest.skip("only root makes devices")


def forbidden(spot: Path, secret: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    spot.write_text(SECRET)
    spot.chmod(0)


Trap = Callable[[Path, Path], None]
TRAPS: dict[str, Trap] = {
    "link to a file": lambda spot, secret: spot.symlink_to(secret),
    "link inside": link_inside,
    "link to nothing": lambda spot, _: spot.symlink_to("/nonexistent"),
    "link to itself": lambda spot, _: spot.symlink_to(spot),
    "hard link": lambda spot, secret: spot.hardlink_to(secret),
    "pipe": lambda spot, _: os.mkfifo(spot),
    "socket": unix_socket,
    "folder": lambda spot, _: spot.mkdir(),
    "device": device,
    "forbidden": forbidden,
}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
def test_only_plain_files_are_read_and_nothing_hangs(logs: Path, secret: Path, trap: Trap) -> None:
    trap(logs / "x", secret)
    for cut in (False, True):
        with pytest.raises(UnreadableFile) as refusal:
            read_child_file(logs, "x", 1000, cut=cut)
        assert not isinstance(refusal.value, MissingFile)
    answer = read_answer(logs, "x")
    assert (answer.text, bool(answer.problem)) == (None, True)
    final = read_final(logs, "x")
    assert final is not None
    assert (final.status, bool(final.problem)) == (None, True)


@pytest.mark.requirement("R3")
def test_no_linked_folder_is_walked_through(logs: Path, secret: Path) -> None:
    (logs / "member").symlink_to(secret.parent)
    with pytest.raises(UnreadableFile, match="link"):
        read_child_file(logs, "member/secret.txt", 1000)
    with pytest.raises(UnreadableFile, match="link"):
        list_child_folder(logs, "member")
    with pytest.raises(UnreadableFile, match="link"):
        read_child_file(logs / "member", "secret.txt", 1000)


def test_a_file_that_is_replaced_again_and_again_is_always_read(logs: Path) -> None:
    write(logs / "x", "same")
    enough = threading.Event()

    def replace_until_enough() -> None:
        while not enough.is_set():
            write(logs / "y", "same")
            (logs / "y").replace(logs / "x")

    child = threading.Thread(target=replace_until_enough)
    child.start()
    try:
        assert {read_child_file(logs, "x", 10).data for _ in range(500)} == {b"same"}
    finally:
        enough.set()
        child.join(10)


def test_the_listing_of_a_large_folder_is_cut_at_the_limit(tmp_path: Path) -> None:
    many = tmp_path / "many"
    many.mkdir()
    for number in range(MAX_NAMES + 5):
        (many / str(number)).touch()
    assert len(list_child_folder(tmp_path, "many")) == MAX_NAMES


# --- answers and declarations --------------------------------------------------------------------


def test_an_answer_with_invalid_utf8_is_decoded_with_replacements(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"a\xff\x1b[2J\r\x00\xe2\x80\xa8\xed\xa0\x80b\n")
    answer = read_answer(tmp_path, "x")
    assert answer.text is not None
    assert answer.text.encode().startswith(b"a\xef\xbf\xbd\x1b[2J\r\x00\xe2\x80\xa8")


@pytest.mark.parametrize("blank", ["", " \n\t"])
def test_a_blank_or_missing_answer_is_none_and_no_problem(tmp_path: Path, blank: str) -> None:
    write(tmp_path / "x", blank)
    assert read_answer(tmp_path, "x") == ChildText(text=None)
    assert read_answer(tmp_path, "gone") == ChildText(text=None)
    assert read_final(tmp_path, "gone") is None


def test_a_cut_answer_is_marked_and_ends_between_characters(tmp_path: Path) -> None:
    write(tmp_path / "x", "a" + "ä" * ANSWER_LIMIT_BYTES)
    text = read_answer(tmp_path, "x").text
    assert text is not None
    assert text.endswith("ää\n[cut after 1048576 bytes]")
    assert "\ufffd" not in text


def test_a_final_declaration_is_read_from_its_file(tmp_path: Path) -> None:
    write(tmp_path / "final.json", '{"status": "blocked", "questions": ["Which?"]}')
    final = read_final(tmp_path, "final.json")
    assert final is not None
    assert (final.status, final.questions) == (Declared.BLOCKED, ("Which?",))


# --- testimony -----------------------------------------------------------------------------------


@pytest.mark.requirement("R3", "R60")
def test_the_newest_answer_of_each_registered_member_is_read(logs: Path) -> None:
    testify(logs, "b", "a", "silent")
    write(logs / "a" / "20260102_103045" / "answer.txt", "old")
    write(logs / "a" / "20260102_103046" / "answer.txt", "new")
    write(logs / "b" / "20260102_103045_9" / "answer.txt", "ninth")
    write(logs / "b" / "20260102_103045_10" / "answer.txt", "tenth")
    write(logs / "b" / "latest" / "answer.txt", "not a snapshot")
    write(logs / "b" / "99999999_999999x" / "answer.txt", "not a snapshot")
    write(logs / "stranger" / "20260102_103045" / "answer.txt", "planted")
    testimony, answers = read_testimony(logs)
    assert testimony == Testimony(members=testimony.members if testimony else ())
    assert answers == {"a": "new", "b": "tenth"}


def test_an_unreadable_or_empty_newest_answer_is_replaced_by_an_older_one(
    logs: Path, secret: Path
) -> None:
    testify(logs, "a")
    write(logs / "a" / "20260102_103045" / "answer.txt", "good")
    write(logs / "a" / "20260102_103046" / "answer.txt", "")
    (logs / "a" / "20260102_103047").mkdir()
    (logs / "a" / "20260102_103048").symlink_to(secret.parent)
    (logs / "a" / "20260102_103049").mkdir()
    (logs / "a" / "20260102_103049" / "answer.txt").symlink_to(secret)
    testimony, answers = read_testimony(logs)
    assert answers == {"a": "good"}
    assert testimony is not None
    assert "symbolic link" in testimony.problem


@pytest.mark.requirement("R11")
def test_without_a_status_there_is_no_testimony(logs: Path) -> None:
    write(logs / "a" / "20260102_103045" / "answer.txt", "nobody registered it")
    assert read_testimony(logs) == (None, {})
    assert read_testimony(logs / "gone") == (None, {})


@pytest.mark.timeout(10)
@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
def test_a_hostile_status_file_gives_a_testimony_with_a_problem(
    logs: Path, secret: Path, trap: Trap
) -> None:
    trap(logs / "status.json", secret)
    testimony, answers = read_testimony(logs)
    assert testimony is not None
    assert testimony == Testimony(problem=testimony.problem)
    assert "status.json" in testimony.problem
    assert SECRET not in testimony.problem
    assert answers == {}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
def test_a_hostile_answer_file_gives_no_answer(logs: Path, secret: Path, trap: Trap) -> None:
    testify(logs, "a", "b")
    spot = logs / "a" / "20260102_103045" / "answer.txt"
    spot.parent.mkdir(parents=True)
    trap(spot, secret)
    write(logs / "b" / "20260102_103045" / "answer.txt", "honest")
    testimony, answers = read_testimony(logs)
    assert answers == {"b": "honest"}
    assert testimony is not None
    assert testimony.problem


def test_a_status_over_the_limit_is_refused(logs: Path) -> None:
    write(logs / "status.json", " " * (JSON_LIMIT_BYTES + 1))
    testimony, _ = read_testimony(logs)
    assert testimony is not None
    assert "larger" in testimony.problem


def test_logs_replaced_by_a_link_are_not_followed(logs: Path, tmp_path: Path) -> None:
    testify(logs, "a")
    write(logs / "a" / "20260102_103045" / "answer.txt", SECRET)
    (tmp_path / "linked").symlink_to(logs)
    testimony, answers = read_testimony(tmp_path / "linked")
    assert answers == {}
    assert testimony is not None
    assert "link" in testimony.problem


@pytest.mark.requirement("R3")
@pytest.mark.parametrize("winner", ["../../outside", "..", "/etc", "a/../../x"])
def test_the_name_of_a_winner_is_never_used_as_a_path(
    logs: Path, secret: Path, winner: str
) -> None:
    write(secret.parent / "20260102_103045" / "answer.txt", SECRET)
    coordination = {"phase": "presentation"}
    testify(logs, winner, "a", results={"winner": winner}, coordination=coordination)
    write(logs / "a" / "20260102_103045" / "answer.txt", "honest")
    testimony, answers = read_testimony(logs)
    assert testimony is not None
    assert testimony.winner is None
    assert answers == {"a": "honest"}


# --- from files to the result: the scenarios of the specification --------------------------------


@dataclass(frozen=True)
class Scenario:
    name: str
    status: dict[str, Any] | None
    answers: dict[str, str]
    expected: dict[str, Any]
    absent: tuple[str, ...] = ()
    requirements: tuple[str, ...] = field(default=())


def status(phase: str, **more: Any) -> dict[str, Any]:
    return {"coordination": {"phase": phase}, "agents": {"one": {}, "two": {}}, **more}


COSTS = {
    "total_input_tokens": 50000,
    "total_output_tokens": 3000,
    "total_estimated_cost": 0.05,
}
BOTH = {"one": "first", "two": "second"}

SCENARIOS = [
    Scenario(
        "cancelled after full completion",
        status("presentation", results={"winner": "two", "votes": {"agent1.1": 2}}, costs=COSTS),
        BOTH,
        {
            "status": "completed_but_timeout",
            "success": True,
            "answer": "second",
            "token_usage": {
                "input_tokens": 50000,
                "output_tokens": 3000,
                "estimated_cost": 0.05,
            },
        },
        requirements=("R1", "R3", "R4", "R5", "R17", "R18", "R55", "R217", "R222", "R223"),
    ),
    Scenario(
        "cancelled during voting: most votes",
        status("enforcement", results={"votes": {"agent2.1": 2, "agent1.1": 0}}),
        BOTH,
        {"status": "partial", "success": False, "answer": "second"},
        requirements=("R6", "R8", "R57", "R64", "R224"),
    ),
    Scenario(
        "cancelled during voting: tie, by registration order",
        status("enforcement", results={"votes": {"agent2.1": 1, "agent1.1": 1}}),
        BOTH,
        {"status": "partial", "answer": "first"},
        requirements=("R7", "R8"),
    ),
    Scenario(
        "cancelled during voting with a winner already named",
        status("enforcement", results={"winner": "two"}),
        BOTH,
        {"status": "partial", "answer": "first"},
        requirements=("R8",),
    ),
    Scenario(
        "answers but no votes: first registered",
        status("initial_answer"),
        {"two": "second", "one": "first"},
        {"status": "partial", "success": False, "answer": "first"},
        requirements=("R9", "R10", "R56", "R58"),
    ),
    Scenario(
        "answers but no votes, the first has none",
        status("initial_answer"),
        {"two": "second"},
        {"status": "partial", "answer": "second"},
        requirements=("R9", "R10"),
    ),
    Scenario(
        "no status.json",
        None,
        BOTH,
        {"status": "timeout", "success": False, "answer": None, "token_usage": {}},
        absent=("completion_percentage",),
        requirements=("R11", "R12", "R13", "R14", "R19", "R21", "R225"),
    ),
    Scenario(
        "no agent submitted an answer",
        status("enforcement"),
        {},
        {"status": "timeout", "success": False, "answer": None, "token_usage": {}},
        absent=("completion_percentage",),
        requirements=("R11", "R12", "R13", "R14", "R19", "R21"),
    ),
    Scenario(
        "completion percentage available",
        {**status("enforcement"), "coordination": {"completion_percentage": 0}},
        BOTH,
        {"completion_percentage": 0},
        requirements=("R20", "R230"),
    ),
    Scenario(
        "hostile votes, costs and winners: registration order decides",
        status(
            "presentation",
            results={
                "winner": ["one", "two"],
                "votes": {"ghost": 9, "agent1.1": -5, "agent2.1": float("nan"), "two": 10**30},
            },
            costs={
                "total_input_tokens": -1,
                "total_output_tokens": float("inf"),
                "total_estimated_cost": "5",
            },
        ),
        BOTH,
        {"status": "partial", "answer": "first", "token_usage": {}},
        requirements=("R7", "R17"),
    ),
]


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(s, id=s.name, marks=pytest.mark.requirement(*s.requirements)) for s in SCENARIOS],
)
def test_a_scenario_of_the_specification_holds(logs: Path, scenario: Scenario) -> None:
    if scenario.status is not None:
        write(logs / "status.json", json.dumps(scenario.status))
    for member, answer in scenario.answers.items():
        write(logs / member / "20260102_103045" / "answer.txt", answer)
    testimony, answers = read_testimony(logs)
    evidence = Evidence(
        ending=Ending(kind=EndKind.DEADLINE, duration_ms=2500),
        testimony=testimony,
        answers=answers,
    )
    document = result_to_json(
        decide_result(
            evidence,
            subagent_id=SubagentId("bio"),
            workspace=str(logs.parent),
            log_path=str(logs),
        )
    )
    assert document.items() >= scenario.expected.items()
    assert not set(scenario.absent) & set(document)
    assert document["workspace_path"] == document["workspace"] == str(logs.parent)
    json.dumps(document, allow_nan=False)
