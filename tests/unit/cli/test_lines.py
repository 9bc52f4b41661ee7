"""Command lines: what the steward is asked, and what is refused before it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest

from retinue.cli import tables
from retinue.cli.command_table import carry_out, commands
from retinue.cli.entry import run
from retinue.cli.fast_path import QUICK, run_fast_path
from retinue.cli.steward_session import CliSession
from retinue.core.errors import BadInput

ROW = {
    "agentInstance": "bio",
    "subagent_id": "bio",
    "status": "completed",
    "state": "closed",
    "attempt": 1,
    "task": "Write\nbio \x1b[31m",
    "workspace": "/w",
    "elapsed_seconds": 1.5,
    "token_usage": {},
}
RESULT = {"subagent_id": "bio", "status": "completed", "answer": "done", "workspace": "/w"}
TASK = {
    "task_id": "t",
    "title": "T",
    "state": "open",
    "outcome": "running",
    "run_id": "r",
    "created_at": "now",
    "path": "/p",
}
SPENT = {"input_tokens": 3, "output_tokens": 2, "estimated_cost": 0.5}
ANSWERS: dict[str, Any] = {
    "task.create": {"task_id": "t", "path": "/p"},
    "task.list": [TASK | {"subagents": 1}],
    "task.show": TASK
    | {"subagents": [ROW], "subagents_total": 1, "subagents_shown": 1}
    | {"gates": [], "metrics": {"totals": SPENT}},
    "subagent.list": {"subagents": [ROW], "total": 1, "shown": 1},
    "subagent.show": ROW | {"contract": {}, "attempts": [], "result": RESULT},
    "subagent.result": RESULT,
    "subagent.spawn": {
        "success": True,
        "subagents": [{"subagent_id": "bio", "status": "running", "workspace": "/w"}],
        "note": "n",
    },
    "subagent.wait_any": {"agentInstance": "bio", "status": "completed"},
    "subagent.wait_all": [],
    "subagent.cancel": {"agentInstance": "bio", "cancelled": True, "result": RESULT},
    "subagent.continue": {"subagent_id": "bio", "status": "running", "workspace": "/w"},
    "gate.approve": {"subagent_id": "bio", "status": "running", "workspace": "/w"},
    "gate.reject": ROW,
    "verify": {"ok": True, "problems": []},
    "gc": {"removed": [], "kept": [], "bytes": 0, "dry_run": False},
}


class Recorder(CliSession):
    """Notes what the steward would have been asked, and gives ready answers."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, dict[str, Any]]] = []

    @contextmanager
    def open_client(self, verb: str = "") -> Iterator[Any]:
        yield self

    def call(self, verb: str, **params: Any) -> Any:
        self.calls.append((verb, params))
        return ANSWERS[verb]


def asked(*words: str) -> tuple[str, dict[str, Any]]:
    """The one thing that a line asks of the steward."""
    session = Recorder()
    assert carry_out(list(words), session) == 0
    (call,) = session.calls
    return call


def spawned(*words: str) -> dict[str, Any]:
    verb, params = asked("subagent", "spawn", "t", *words)
    assert verb == "subagent.spawn"
    (brief,) = params["tasks"]
    assert isinstance(brief["context_paths"], list)
    return dict(brief)


def test_everything_after_the_first_dashes_is_the_command() -> None:
    argv = ["cmd", "--json", "--", "-x", "", "--root=/r"]
    assert spawned("--", *argv)["argv"] == argv


def test_a_brief_may_accompany_a_command() -> None:
    brief = spawned("Do it", "--id", "bio", "--", "./agent")
    assert (brief["task"], brief["argv"], brief["subagent_id"]) == ("Do it", ["./agent"], "bio")


def test_every_term_of_a_brief_can_be_given() -> None:
    brief = spawned(
        *("--id", "bio", "--title", "T", "--type", "explorer", "--context-path", "a"),
        *("--context-path", "b", "--context-file", "c", "--timeout-seconds", "1.5"),
        *("--tool", "read_file", "--success-criterion", "it exists", "--no-refine"),
        *("--retries", "0", "--retry-on-timeout", "--integration", "copy", "--keep-open"),
        *("--owns", "docs", "--owns", "*.md"),
        *("--", "x"),
    )
    assert brief == {
        "task": "",
        "argv": ["x"],
        "subagent_id": "bio",
        "title": "T",
        "subagent_type": "explorer",
        "context_paths": ["a", "b"],
        "context_files": ["c"],
        "timeout_seconds": 1.5,
        "allowed_tools": ["read_file"],
        "success_criteria": ["it exists"],
        "max_retries": 0,
        "retry_on_timeout": True,
        "integration": "copy",
        "owns": ["docs", "*.md"],
        "close_on_completion": False,
        "refine": False,
    }


def test_a_spawn_names_its_caller_and_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, params = asked("subagent", "spawn", "t", "--queue", "--key", "k", "--", "x")
    del params["tasks"]
    assert params == {
        "task": "t", "queue": True, "key": "k", "cwd": str(tmp_path), "by": "user"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "verb", "params"),
    [
        (["task", "create", "--title", "x"], "task.create", {"title": "x"}),
        (
            ["task", "create", "--title", "x", "--max-concurrent", "2", "--timeout-seconds", "9"],
            "task.create",
            {"title": "x", "max_concurrent": 2, "timeout_seconds": 9.0},
        ),
        (
            ["subagent", "list", "t", "--limit", "1"],
            "subagent.list",
            {"task": "t", "limit": 1, "page": True},
        ),
        (
            ["subagent", "list", "t", "--all", "--page"],
            "subagent.list",
            {"task": "t", "all": True, "page": True},
        ),
        (["task", "show", "t", "--all"], "task.show", {"task": "t", "all": True}),
        (
            ["subagent", "wait-any", "t", "--timeout-seconds", "0", "--consumer", "me", "--peek"],
            "subagent.wait_any",
            {"task": "t", "timeout_seconds": 0.0, "consumer": "me", "peek": True},
        ),
        (["subagent", "wait-all", "t"], "subagent.wait_all", {"task": "t"}),
        (
            ["subagent", "cancel", "t", "bio", "--reason", "why"],
            "subagent.cancel",
            {"task": "t", "subagent": "bio", "by": "user", "reason": "why"},
        ),
        (
            ["subagent", "continue", "t", "bio", "go on"],
            "subagent.continue",
            {"task": "t", "subagent": "bio", "message": "go on", "by": "user"},
        ),
        (
            ["gate", "approve", "t", "bio-1", "--answer", ""],
            "gate.approve",
            {"task": "t", "gate": "bio-1", "by": "user", "answer": ""},
        ),
        (
            ["gate", "reject", "t", "bio-1", "--reason", "no"],
            "gate.reject",
            {"task": "t", "gate": "bio-1", "by": "user", "reason": "no"},
        ),
        (["verify"], "verify", {}),
        (["verify", "t"], "verify", {"task": "t"}),
        (["gc", "--force"], "gc", {"force": True}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_line_asks_exactly_this(words: list[str], verb: str, params: dict[str, Any]) -> None:
    assert asked(*words) == (verb, params)


def test_a_configuration_is_sent_as_its_text(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("agents: []\n")
    _, params = asked("task", "create", "--title", "x", "--config", str(path))
    assert (params["config_text"], params["config_name"]) == ("agents: []\n", str(path))


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"#" * (5 * 1024 * 1024)])
def test_a_configuration_that_is_no_text_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "c.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInput) as refused:
        carry_out(["task", "create", "--title", "x", "--config", str(path)], Recorder())
    assert refused.value.code == "bad_file"


BAD_TIMES = ["nan", "NaN", "inf", "-inf", "-1", "0", "1e308", "abc", "", " 5", "1_0", "0x1", "٣"]


@pytest.mark.parametrize("time", BAD_TIMES, ids=ascii)
def test_a_time_that_is_none_is_refused_in_one_line(
    time: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["subagent", "spawn", "t", "--timeout-seconds", time, "--", "x"]
    assert run([*words[:3], "--json", *words[3:]]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error[invalid_timeout]: ") and shown.err.count("\n") == 1
    assert json.loads(shown.out)["error"]["code"] == "invalid_timeout"


@pytest.mark.parametrize("time", ["-1", "x", "1e308"])
def test_a_wait_that_is_refused_says_that_none_at_all_is_accepted(
    time: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["subagent", "wait-any", "t", "--timeout-seconds", time]) == 2
    assert "or 0 to ask without waiting" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["task"],
        ["task", "nonsense"],
        ["task", "create"],
        ["task", "create", "--title"],
        ["task", "list", "extra"],
        ["task", "list", "--limit", "-1"],
        ["task", "list", "--limit", "0"],
        ["task", "create", "--title", "x", "--max-concurrent", "0"],
        ["task", "create", "--title", "x", "--timeout-seconds", "-5"],
        ["task", "create", "--title", "x", "--config", "nothere.yaml"],
        ["run", "--plan", "nope.yaml"],
        ["task", "nonsense"],
        ["task", "list", "--limit", "9" * 30],
        ["task", "list", "--root", ""],
        ["task", "list", "--root"],
        ["subagent", "list"],
        ["subagent", "list", "../up"],
        ["subagent", "list", "--nonsense", "t"],
        ["subagent", "list", "--nonsense\x1b[2J\n", "t"],
        ["subagent", "spawn", "t"],
        ["subagent", "spawn", "t", "--"],
        ["subagent", "spawn", "t", " "],
        ["subagent", "spawn", "t", "--integration", "glue", "--", "x"],
        ["subagent", "spawn", "t", "--retries", "many", "--", "x"],
        ["gate", "approve", "t", "a/b"],
        ["mcp", "--port", "80"],
        ["mcp", "--host", "0.0.0.0"],
        ["mcp", "--allow-host", "example.org"],
        ["--nonsense"],
        ["--", "task"][:1],
    ],
    ids=ascii,
)
def test_a_wrong_line_gets_one_line_and_two(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error[") and shown.err.count("\n") == 1
    assert shown.err[:-1].isprintable()
    assert shown.err.endswith(")\n"), "a hint follows"
    numbers = [word for word in words if word in ("--limit", "--max-concurrent", "--retries")]
    assert all(f"{option}: a whole number" in shown.err for option in numbers)


@pytest.mark.parametrize("words", [["--json", "nonsense"], ["task", "create", "--json"]])
def test_a_wrong_line_that_asks_for_json_gets_it(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["success"] is False
    assert set(document["error"]) == {"code", "message", "hint"}


@pytest.mark.parametrize(
    "words",
    [
        ["--json", "--root", "/r", "subagent", "list", "t"],
        ["subagent", "--json", "--root", "/r", "list", "t"],
        ["subagent", "list", "t", "--root=/r", "--json"],
        ["subagent", "list", "--root", "/r", "t", "--json"],
    ],
)
def test_root_and_json_stand_before_and_after_the_verb(words: list[str]) -> None:
    for way in (carry_out, run_fast_path):
        session = Recorder()
        assert way(words, session) == 0
        assert (session.root, session.json) == ("/r", True)


@pytest.mark.parametrize("words", list(QUICK), ids=" ".join)
@pytest.mark.parametrize("common", [[], ["--json"]])
def test_the_short_way_and_the_parser_agree(
    words: tuple[str, str], common: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    line = [*words, *["t", "bio"][: len(QUICK[words][1])], *common]
    short, long = Recorder(), Recorder()
    assert run_fast_path(line, short) == 0
    first = capsys.readouterr().out
    assert carry_out(line, long) == 0
    assert (capsys.readouterr().out, long.calls) == (first, short.calls)


@pytest.mark.parametrize(
    "words", [["subagent", "list", "../t"], ["subagent", "list"], ["task", "list", "-h"], ["x"]]
)
def test_unusual_arguments_do_not_take_the_fast_path(words: list[str]) -> None:
    session = Recorder()
    assert run_fast_path(words, session) is None
    assert not session.calls


def every_command(
    group: click.Group = commands, path: tuple[str, ...] = ()
) -> list[tuple[str, ...]]:
    context = click.Context(group)
    found = [path]
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        here = (*path, name)
        found += every_command(command, here) if isinstance(command, click.Group) else [here]
    return found


@pytest.mark.parametrize("path", every_command(), ids=" ".join)
def test_every_command_has_help_with_an_example(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*path, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"Usage: {' '.join(['retinue', *path])} " in shown
    assert "--root DIR" in shown and "--json" in shown
    assert f"Example:\n  {' '.join(['retinue', *path])} ".rstrip() in shown or not path


def test_no_words_at_all_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    assert "subagent" in capsys.readouterr().out


@pytest.mark.parametrize(("word", "meant"), [("tsk", "'task'"), ("doctr", "'doctor'")])
def test_a_misspelled_command_gets_a_suggestion(word: str, meant: str) -> None:
    with pytest.raises(BadInput) as refused:
        carry_out([word], Recorder())
    assert refused.value.message == f"No such command '{word}'. Did you mean {meant}?"
    with pytest.raises(BadInput) as refused:
        carry_out(["xyzzy"], Recorder())
    assert refused.value.message == "No such command 'xyzzy'"


def test_an_invalid_configuration_is_shown_as_a_problem_instead_of_limits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    session = Recorder()
    for problem, shown in (({}, "at once  2"), ({"problem": "line 7: no number"}, "line 7: no")):
        config = {"maxConcurrentAgents": 2 if not problem else "two"}
        session.answer(ANSWERS["task.show"] | {"config": config} | problem, tables.format_task)
        out = capsys.readouterr().out
        assert shown in out and "two" not in out
