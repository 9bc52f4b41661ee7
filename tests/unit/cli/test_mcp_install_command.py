"""By which words a client starts the server that it is given."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from retinue.cli.mcp_commands import find_own_command


@pytest.mark.parametrize("environment", [True, False])
def test_a_program_that_only_this_shell_finds_is_named_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: bool
) -> None:
    program = tmp_path / "bin" / "retinue"
    program.parent.mkdir()
    program.touch(mode=0o755)
    if environment:
        (tmp_path / "pyvenv.cfg").touch()
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setattr(sys, "argv", [str(program)])
    assert find_own_command() == [str(program) if environment else "retinue"]
