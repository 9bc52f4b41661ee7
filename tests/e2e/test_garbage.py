"""Commands that serve for long collect garbage, which short commands do not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from support.cli import BOUND_S, SOURCE, Cli
from support.roots import until

TELLS = """
import gc, signal
def tell(*_):
    with open({file!r}, "w") as file:
        file.write(str(gc.isenabled()))
signal.signal(signal.SIGUSR1, tell)
"""


@pytest.mark.parametrize(
    "words", [("ui", "--no-open"), ("metrics", "--listen", "127.0.0.1:0"), ("acp",)]
)
def test_a_command_that_serves_collects_garbage(
    cli: Cli, tmp_path: Path, words: tuple[str, ...]
) -> None:
    told = tmp_path / "told"
    added = tmp_path / "added"
    added.mkdir()
    (added / "sitecustomize.py").write_text(TELLS.format(file=str(told)))
    cli.environment |= {"PYTHONPATH": f"{added}{os.pathsep}{SOURCE}"}
    reading, writing = os.pipe()
    process = cli.start(*words, stdin=reading)
    os.close(reading)
    try:
        assert process.stdout is not None
        if words == ("acp",):
            os.write(writing, b'{"jsonrpc": "2.0", "id": 1, "method": "initialize"}\n')
        assert process.stdout.readline(), "it serves"
        process.send_signal(signal.SIGUSR1)
        assert until(lambda: told.read_text() if told.exists() else "") == "True"
    finally:
        os.close(writing)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=BOUND_S)
