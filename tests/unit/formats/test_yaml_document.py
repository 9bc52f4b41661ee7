"""Strict and bounded YAML reader; written YAML is read back equal."""

from __future__ import annotations

import json
import math
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.core.errors import BadInput
from retinue.formats.yaml_document import Place, YamlLimits, dump_yaml, load_yaml, quote_text

KIB = 1024
LIMIT = 256 * KIB

ALIAS_BOMB = "a: &a [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(9)
)


def refusal(text: str | bytes) -> str:
    with pytest.raises(BadInput) as refused:
        load_yaml(text, where="some/file.yaml")
    message = refused.value.message
    assert refused.value.code == "bad_yaml"
    assert message.startswith("some/file.yaml: line ")
    assert message.isprintable()
    return message.removeprefix("some/file.yaml: ")


def test_plain_data_is_read_as_written() -> None:
    text = """\
# a comment
text: some words
quoted: "true"
whole: 12
octal: 0o17
hexadecimal: 0xff
zeros: 010
fraction: 0.5
scientific: 1e3
yes: true
nothing: null
empty:
list: [a, 1, {b: c}]
block: |
  two
  lines
"""
    assert load_yaml(text, where="x") == {
        "text": "some words",
        "quoted": "true",
        "whole": 12,
        "octal": 15,
        "hexadecimal": 255,
        "zeros": 10,
        "fraction": 0.5,
        "scientific": 1000.0,
        "yes": True,
        "nothing": None,
        "empty": None,
        "list": ["a", 1, {"b": "c"}],
        "block": "two\nlines\n",
    }


@pytest.mark.parametrize("word", ["off", "on", "yes", "no", "Off", "y", "2001-12-14", "1:30", "="])
def test_yaml_1_1_booleans_stay_text(word: str) -> None:
    assert load_yaml(f"key: {word}", where="x") == {"key": word}


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n", "~"])
def test_an_empty_file_is_none(text: str) -> None:
    assert load_yaml(text, where="x") is None


def test_bytes_with_a_byte_order_mark_are_read() -> None:
    assert load_yaml(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n", where="x") == {"a": 1, "b": 2}


@pytest.mark.parametrize("word", [".inf", "-.Inf", "+.INF", ".nan", ".NaN", "1e400", "-1e999"])
def test_a_number_that_is_not_finite_is_refused_with_its_line(word: str) -> None:
    message = refusal(f"a: 1\nmine: {word}\n")
    assert message.startswith(f"line 2: {word} is ")
    assert load_yaml(f"mine: '{word}'", where="x") == {"mine": word}


def test_a_number_that_is_not_finite_is_not_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        dump_yaml({"a": [math.inf]})


def test_a_python_tag_is_not_executed(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    for tag in ("!!python/object/apply:os.system", "!!python/object/new:os.system"):
        message = refusal(f"a: 1\nb: {tag} [touch {mark}]")
        assert message.startswith("line 2: tag ")
    assert not mark.exists()


@pytest.mark.parametrize("text", ["a: !!str 1", "a: !mine x", "!!map {a: 1}", "a: !!binary aGk="])
def test_no_tag_is_accepted(text: str) -> None:
    assert "is not accepted" in refusal(text)


@pytest.mark.parametrize("text", [ALIAS_BOMB, "a: &x 1\nb: *x", "a: &x [*x]", "<<: *gone"])
def test_anchors_and_aliases_are_not_accepted(text: str) -> None:
    assert "is not accepted" in refusal(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3: key 'a' appears twice"),
        ("top:\n  x: 1\n  'x': 2\n", "line 3: key 'x' appears twice"),
        ("{a: 1, a: 2}", "line 1: key 'a' appears twice"),
        ("1: a\n'1': b\n", "line 2: key '1' appears twice"),
    ],
)
def test_a_key_given_twice_is_refused_with_its_line(text: str, message: str) -> None:
    assert refusal(text) == message


@pytest.mark.parametrize("text", ["a:\n\tb: 1\n", "a: 1\nb:\n  c: 1\n\td: 2\n"])
def test_a_tab_in_the_indentation_is_named_as_such(text: str) -> None:
    line = 1 + text[: text.index("\t")].count("\n")
    message = refusal(text)
    assert message.startswith(f"line {line}: ")
    assert "indent with spaces, not tabs" in message


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 'unfinished\n", 2),
        ("a: 1\nb: [1, 2\n", 3),
        ("a: 1\nb: c: d\n", 2),
        ("a: 1\n---\nb: 2\n", 2),
        ("a: 1\n? [x]\n: 2\n", 2),
        ("%YAML 1.1\n---\na: 1\n", 2),
        ("%TAG ! tag:x,2000:\n---\na: 1\n", 2),
        ('a: 1\nb: "\\U00110000"\n', 2),
        ('a: 1\nb: "\\Uffffffff"\n', 2),
        ('a: 1\nb: "\\ud800"\n', 2),
        ("a: 1\nb: \x1b[2J\n", 2),
        ("a: 1\nb: \x00\n", 2),
        (b"a: 1\n\nb: \xff\n", 3),
        ("a: b".encode("utf-16"), 1),
        ("a: 1\nb: \ud800\n", 2),
    ],
)
def test_yaml_beyond_plain_data_is_refused_with_its_line(text: str | bytes, line: int) -> None:
    assert refusal(text).startswith(f"line {line}: ")


def test_line_numbers_start_at_first_line() -> None:
    with pytest.raises(BadInput, match="line 42: key 'a' appears twice"):
        load_yaml("a: 1\na: 2\n", where="x", first_line=41)


def test_the_line_of_every_key_and_item_is_returned() -> None:
    lines: dict[Place, int] = {}
    load_yaml("a:\n  b: 1\nc:\n  - x\n  - d:\n      e\n", where="x", first_line=10, lines=lines)
    assert lines == {
        (): 10,
        ("a",): 10,
        ("a", "b"): 11,
        ("c",): 12,
        ("c", 0): 13,
        ("c", 1): 14,
        ("c", 1, "d"): 14,
    }


def test_a_text_of_50_mb_is_refused_in_milliseconds() -> None:
    text = "key: value\n" * 5_000_000
    for each in (text, text.encode()):
        started = time.perf_counter()
        assert "larger than 256 KiB" in refusal(each)
        assert time.perf_counter() - started < 0.05


def test_the_size_is_counted_in_bytes_not_characters() -> None:
    assert "larger than 256 KiB" in refusal("a: " + "\N{GRINNING FACE}" * (100 * KIB))


HOSTILE = {
    "alias bomb": ALIAS_BOMB,
    "brackets": "[" * LIMIT,
    "braces": "{" * LIMIT,
    "brackets on lines": "[\n" * (LIMIT // 2),
    "dashes": "- " * (LIMIT // 2),
    "questions": "? " * (LIMIT // 2),
    "nested maps": "{a: " * (LIMIT // 4),
    "deep indents": "".join(" " * n + "a:\n" for n in range(700)),
    "many keys": "".join(f"k{n}: v\n" for n in range(20_000)),
    "many items": "[" + "1," * (LIMIT // 2 - 2) + "]",
    "long tag": "!<tag:" + "a" * (LIMIT - 10) + "> x",
    "bangs": "!" * LIMIT,
    "unfinished": 'a: "' + "x " * (LIMIT // 2 - 4),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_yaml_is_refused_within_time(name: str) -> None:
    started = time.process_time()
    refusal(HOSTILE[name])
    assert time.process_time() - started < 4.0  # 1.2 s when alone; 2 s is the promise


@pytest.mark.parametrize("name", ["alias bomb", "brackets", "dashes", "nested maps", "many items"])
def test_hostile_yaml_is_refused_within_memory(name: str) -> None:
    tracemalloc.start()
    try:
        refusal(HOSTILE[name])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100 * KIB * KIB


def test_limits_can_be_raised() -> None:
    text = "[" + "1, " * 30_000 + "]"
    data = load_yaml(text, where="x", limits=YamlLimits(values=40_000))
    assert isinstance(data, list)
    assert len(data) == 30_000


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab:-?[]{},#&*!|>'\"%@` \n\t\\~<=0.1\x85\u2028", max_size=60))
def test_any_text_is_plain_data_or_a_refusal(text: str) -> None:
    try:
        data = load_yaml(text, where="x")
    except BadInput as refused:
        assert refused.code == "bad_yaml"
        assert refused.message.startswith("x: line ")
        assert "\n" not in refused.message
    else:
        json.dumps(data)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_plain_data_or_a_refusal(raw: bytes) -> None:
    try:
        json.dumps(load_yaml(raw, where="x"))
    except BadInput as refused:
        assert refused.code == "bad_yaml"


TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    [
        "",
        " ",
        "- item",
        "key: value",
        "# no comment",
        "a\nb",
        "a\n\n  b\n",
        " lead\nb",
        "a \nb",
        "\n",
        "a\n\n",
        "\na",
        "a\n#b\n---\nc",
        "null",
        "off",
        "1e3",
        "\ufeff",
        "a\n\ufeffb",
        "\x00\x07\x1b\x7f\x85\xa0\u2028\u2029\ufffe",
        "a\n\u2028b",
        "%a\nb",
        "\N{GRINNING FACE}",
    ]
)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | FLOATS | TEXTS
KEYS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["null", "true", "off", "y", "1", "<<", "=", "a b", "a: b", "-", "id"]
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(KEYS, TREES, max_size=5))
def test_written_yaml_is_read_back_equal(document: dict[str, object]) -> None:
    text = dump_yaml(document)
    read = load_yaml(text, where="x")
    assert read == (document or None)
    assert json.dumps(read) == json.dumps(document or None)  # same types, same order


@given(TEXTS)
def test_a_quoted_text_is_one_printable_line(text: str) -> None:
    line = quote_text(text)
    assert len(line.splitlines()) == 1
    assert load_yaml(line, where="x") == text


def test_a_lone_surrogate_is_replaced() -> None:
    assert quote_text("a\ud800b") == '"a\\ufffdb"'


def test_texts_of_several_lines_are_written_as_blocks() -> None:
    document = {"message": 'You plan.\n\n  Then you act: "now".\n', "last": "a\nb"}
    assert dump_yaml(document) == (
        'message: |\n  You plan.\n\n    Then you act: "now".\nlast: |-\n  a\n  b\n'
    )


def test_lists_of_mappings_are_written_as_blocks_and_other_lists_on_one_line() -> None:
    document = {"agents": [{"id": "a", "backend": {"type": "local"}}], "types": ["x", "y"]}
    assert dump_yaml(document) == (
        'agents:\n  - id: "a"\n    backend:\n      type: "local"\ntypes: ["x", "y"]\n'
    )
