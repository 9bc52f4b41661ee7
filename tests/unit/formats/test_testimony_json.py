"""status.json and the final declaration are untrusted input."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.ids import MemberId, is_id
from retinue.core.result import Declared, FinalDeclaration, Testimony, TokenUsage, recover
from retinue.core.voting import Phase
from retinue.formats.testimony_json import (
    MAX_MEMBERS,
    parse_final,
    parse_notices,
    parse_testimony,
    turns_from_text,
)

ONE, TWO = MemberId("biography_agent_1"), MemberId("biography_agent_2")


def documented() -> dict[str, Any]:
    """The example of the documentation."""
    return {
        "meta": {"elapsed_seconds": 192.5, "start_time": 1767419307.4},
        "costs": {
            "total_input_tokens": 50000,
            "total_output_tokens": 3000,
            "total_estimated_cost": 0.05,
        },
        "coordination": {"phase": "presentation", "completion_percentage": 100},
        "agents": {
            ONE: {"status": "answered", "token_usage": {}},
            TWO: {"status": "answered", "token_usage": {}},
        },
        "results": {"winner": ONE, "votes": {"agent1.1": 2}},
        "historical_workspaces": [
            {"agentId": ONE, "answerLabel": "agent1.1", "timestamp": "20260102_103045"}
        ],
    }


def parsed(document: object) -> Testimony:
    return parse_testimony(json.dumps(document).encode())


@pytest.mark.requirement(
    "R17", "R18", "R20", "R65", "R221", "R240", "R241", "R242", "R243", "R244", "R245", "R246"
)
def test_the_documented_status_is_parsed_completely() -> None:
    assert parsed(documented()) == Testimony(
        phase=Phase.PRESENTATION,
        winner=ONE,
        members=(ONE, TWO),
        votes={ONE: 2},
        usage=TokenUsage(input_tokens=50000, output_tokens=3000, estimated_cost=0.05),
        completion_percentage=100,
    )


@pytest.mark.requirement("R19", "R21")
def test_missing_values_are_unknown_and_not_a_problem() -> None:
    assert parsed({}) == Testimony()
    assert parsed({"costs": None, "agents": {}, "results": {"winner": None}}) == Testimony()


@pytest.mark.requirement("R20")
@pytest.mark.parametrize("value", [0, 0.0, 45, 99.5, 100])
def test_a_percentage_is_copied_unchanged(value: float) -> None:
    percentage = parsed({"coordination": {"completion_percentage": value}}).completion_percentage
    assert (percentage, type(percentage)) == (value, type(value))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (json.dumps(documented()).encode()[:-7], "not JSON"),
        (b'{"agents": {}} {"agents": {}}', "not JSON"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b'{"a": "\xc3\x28"}', "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[1, 2]", "not an object"),
        (b"NaN", "not an object"),
        (b"1e400", "not an object"),
        (b"9" * 5000, "not an object"),
        (b"null", "not an object"),
        (b"\x00" * 100, "not JSON"),
    ],
    ids=lambda value: repr(value[:12]),
)
def test_an_unreadable_status_only_has_a_problem(data: bytes, words: str) -> None:
    testimony = parse_testimony(data)
    assert words in testimony.problem
    assert testimony == Testimony(problem=testimony.problem)


def test_a_deeply_nested_status_does_not_raise() -> None:
    # How deep is too deep is the interpreter's to say; that nothing comes of it is ours.
    bomb = parse_testimony(b'{"results":' * 5000 + b"1" + b"}" * 5000)
    assert bomb == Testimony(problem=bomb.problem)


IMPOSSIBLE = [
    "-1", "NaN", "Infinity", "-Infinity", "1e400", "9" * 5000, "1e16", "true", '"5"', "[]", "{}",
]  # fmt: skip


@pytest.mark.requirement("R17")
@pytest.mark.parametrize("value", IMPOSSIBLE, ids=lambda value: value[:10])
@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("costs", "total_input_tokens"),
        ("costs", "total_output_tokens"),
        ("costs", "total_estimated_cost"),
        ("coordination", "completion_percentage"),
        ("votes", "agent1.1"),
    ],
)
def test_an_impossible_number_is_dropped_alone(section: str, key: str, value: str) -> None:
    document = documented()
    (document["results"] if section == "votes" else document)[section][key] = "@"
    testimony = parse_testimony(json.dumps(document).replace('"@"', value).encode())
    assert key in testimony.problem
    usage = testimony.usage
    found = {
        "total_input_tokens": usage.input_tokens,
        "total_output_tokens": usage.output_tokens,
        "total_estimated_cost": usage.estimated_cost,
        "completion_percentage": testimony.completion_percentage,
        "agent1.1": testimony.votes.get(ONE),
    }
    assert found.pop(key) is None
    assert None not in found.values()
    assert (testimony.members, testimony.winner) == ((ONE, TWO), ONE)


@pytest.mark.parametrize(
    ("costs", "expected"), [(5.0, 5), (5.5, None), (0, 0), (10**15, 10**15), (10**15 + 1, None)]
)
def test_tokens_are_whole_and_bounded(costs: float, expected: int | None) -> None:
    assert parsed({"costs": {"total_input_tokens": costs}}).usage.input_tokens == expected


@pytest.mark.parametrize("percentage", [-0.1, 100.1, 101])
def test_a_percentage_outside_its_range_is_dropped(percentage: float) -> None:
    testimony = parsed({"coordination": {"completion_percentage": percentage}})
    assert testimony.completion_percentage is None
    assert "completion_percentage" in testimony.problem


@pytest.mark.parametrize("wrong", [1, "x", [], [1], True, {"x": []}, 1.5])
@pytest.mark.parametrize(
    "path",
    [
        ("costs",), ("coordination",), ("agents",), ("results",), ("historical_workspaces",),
        ("results", "winner"), ("results", "votes"), ("coordination", "phase"),
        ("agents", ONE), ("historical_workspaces", 0), ("historical_workspaces", 0, "agentId"),
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_type_is_dropped_alone(path: tuple[Any, ...], wrong: object) -> None:
    document: Any = documented()
    spot = document
    for key in path[:-1]:
        spot = spot[key]
    spot[path[-1]] = wrong
    testimony = parsed(document)
    if path[0] != "costs":
        assert testimony.usage.input_tokens == 50000
    if path != ("agents",):
        assert testimony.members == (ONE, TWO)


@pytest.mark.requirement("R3")
@pytest.mark.parametrize(
    "winner", ["../../x", "/etc/passwd", "stranger", "", "\ud800", ["a"], {ONE: 1}, 1]
)
def test_an_unregistered_winner_is_dropped(winner: object) -> None:
    document = documented()
    document["results"]["winner"] = winner
    testimony = parsed(document)
    assert testimony.winner is None
    assert "winner" in testimony.problem


def test_two_different_winners_are_both_dropped() -> None:
    text = json.dumps(documented()).replace(
        f'"winner": "{ONE}"', f'"winner": "{ONE}", "winner": "{TWO}"'
    )
    testimony = parse_testimony(text.encode())
    assert testimony.winner is None
    assert "winner" in testimony.problem
    assert testimony.votes == {ONE: 2}


def test_invalid_member_ids_are_not_registered() -> None:
    names = ["ok", "../x", "a/b", ".", "", "a.b", "\ud800", "x" * 65, "-x", "also_ok"]
    testimony = parsed({"agents": {name: {} for name in names}})
    assert testimony.members == ("ok", "also_ok")
    assert "8 member name(s)" in testimony.problem


def test_members_are_capped_in_registration_order() -> None:
    testimony = parsed({"agents": {f"m{i}": {} for i in range(1000)}})
    assert testimony.members == tuple(f"m{i}" for i in range(MAX_MEMBERS))
    assert "first 64" in testimony.problem


@pytest.mark.requirement("R6", "R7", "R246")
@pytest.mark.parametrize(
    ("label", "history", "expected"),
    [
        ("agent1.1", {"agent1.1": "b"}, "b"),  # what the history says wins over the number
        ("agent2.3", {}, "b"),
        ("agent2", {}, "b"),
        ("b", {}, "b"),
        ("agent3.1", {}, None),
        ("agent0.1", {}, None),
        ("agent1.1", {"agent1.1": "stranger"}, None),
        ("../../x", {}, None),
        ("agent1.1.1", {}, None),
        ("\ud800", {}, None),
    ],
)
def test_a_label_resolves_to_its_author(
    label: str, history: dict[str, str], expected: str | None
) -> None:
    testimony = parsed(
        {
            "agents": {"a": {}, "b": {}},
            "results": {"votes": {label: 1}},
            "historical_workspaces": [
                {"answerLabel": name, "agentId": author} for name, author in history.items()
            ],
        }
    )
    assert testimony.votes == ({expected: 1} if expected else {})
    assert bool(testimony.problem) == (expected is None)


def test_votes_for_several_answers_of_a_member_are_added() -> None:
    testimony = parsed(
        {"agents": {"a": {}, "b": {}}, "results": {"votes": {"agent1.1": 1, "agent1.2": 1}}}
    )
    assert testimony.votes == {"a": 2}


@pytest.mark.parametrize("count", [-1, 3, 10**9, 1.0])
def test_more_votes_than_members_are_dropped(count: float) -> None:
    testimony = parsed({"agents": {"a": {}, "b": {}}, "results": {"votes": {"agent1.1": count}}})
    assert testimony.votes == {}
    assert "agent1.1" in testimony.problem


def test_a_problem_stays_short() -> None:
    votes = {f"{i}" + "x" * 1000: 1 for i in range(1000)}
    problem = parsed({"results": {"votes": votes}}).problem
    assert len(problem) < 600
    assert "995 more" in problem


KEYS = [
    "agents",
    "results",
    "votes",
    "winner",
    "costs",
    "coordination",
    "phase",
    "a",
    "agent1.1",
    "total_input_tokens",
    "completion_percentage",
    "historical_workspaces",
    "agentId",
    "answerLabel",
    "status",
    "questions",
    "summary",
]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["presentation", "agent1.1", "a", "../x", "\ud800", 10**400]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6)
    ),
    max_leaves=30,
)


def test_the_latest_note_on_an_omission_counts() -> None:
    said = [
        {"kind": "left_out", "what": "a", "note": "a lacks x"},
        {"kind": "left_out", "what": "b", "note": "b lacks y"},
        {"kind": "left_out", "what": "a", "note": ""},
        {"kind": "left_out", "what": "b", "note": "b lacks \ud800"},
        {"kind": "tool_denied", "member": "m", "tool": "t", "reason": "no"},
        {"kind": "left_out", "what": 3, "note": ["x"]},
    ]
    refusals, lacks, _ = parse_notices("\n".join(map(json.dumps, said)).encode())
    assert [each.tool for each in refusals] == ["t"] and lacks == ("b lacks \ufffd",)
    many = "\n".join(
        json.dumps({"kind": "left_out", "what": str(n), "note": "x" * 9000}) for n in range(99)
    )
    _, lacks, _ = parse_notices(many.encode())
    assert len(lacks) == 5 and all(len(each) == 400 for each in lacks)


@pytest.mark.parametrize("kind", [[], {}, 3, None])
def test_a_notice_of_a_kind_that_is_no_text_is_ignored(kind: object) -> None:
    assert parse_notices(json.dumps({"kind": kind, "member": "m"}).encode()) == ((), (), ())


@pytest.mark.parametrize("role", [[], {}, 3, None])
def test_a_turn_of_a_role_that_is_no_text_is_ignored(role: object) -> None:
    line = json.dumps({"member": "a", "role": role, "content": "x"})
    assert turns_from_text(line, "a") == []


def assert_sound(testimony: Testimony) -> None:
    testimony.problem.encode()
    assert all(is_id(member) for member in testimony.members)
    assert testimony.winner is None or testimony.winner in testimony.members
    assert set(testimony.votes) <= set(testimony.members)
    assert all(count >= 0 for count in testimony.votes.values())
    percentage = testimony.completion_percentage
    assert percentage is None or 0 <= percentage <= 100
    recover(testimony, {}, None)


def assert_sound_final(final: FinalDeclaration) -> None:
    for text in [final.summary, final.problem, *final.questions]:
        text.encode()


@given(st.binary())
def test_no_bytes_make_a_reader_raise(data: bytes) -> None:
    assert_sound(parse_testimony(data))
    assert_sound_final(parse_final(data))


@given(JSON)
def test_no_json_makes_a_reader_raise(document: object) -> None:
    data = json.dumps(document).encode()
    assert_sound(parse_testimony(data))
    assert_sound_final(parse_final(data))


@given(st.integers(0, 2000), st.binary(min_size=1, max_size=3))
def test_no_damage_to_a_good_file_makes_the_reader_raise(at: int, noise: bytes) -> None:
    good = json.dumps(documented()).encode()
    at = min(at, len(good))
    assert_sound(parse_testimony(good[:at] + noise + good[at + len(noise) :]))
    assert_sound(parse_testimony(good[:at]))


def test_a_final_declaration_is_parsed_completely() -> None:
    document = {
        "status": "blocked",
        "summary": "need a word",
        "questions": ["Which?", " ", 5, "When?"],
        "artifacts": {"report": "out/report.md", "n": 1},
        "unknown": {},
    }
    assert parse_final(json.dumps(document).encode()) == FinalDeclaration(
        status=Declared.BLOCKED,
        summary="need a word",
        questions=("Which?", "When?"),
    )


@pytest.mark.parametrize("status", [None, "done", 1, ["success"], {"success": 1}])
def test_an_unknown_declared_status_counts_as_none(status: object) -> None:
    final = parse_final(json.dumps({"status": status, "summary": "x"}).encode())
    assert (final.status, final.summary) == (None, "x")
    assert "status" in final.problem


def test_declared_texts_are_cut_at_their_limits_between_characters() -> None:
    document = {"status": "failed", "summary": "ä" * 4000, "questions": ["é" * 3000] * 50}
    final = parse_final(json.dumps(document, ensure_ascii=False).encode())
    assert len(final.summary.encode()) == 4096
    assert len(final.questions) == 20
    assert all(len(question.encode()) == 2048 for question in final.questions)


def test_lone_surrogates_are_replaced() -> None:
    final = parse_final(b'{"status": "failed", "summary": "a\\ud800b", "questions": ["\\udfff"]}')
    assert (final.summary, final.questions) == ("a\ufffdb", ("\ufffd",))
