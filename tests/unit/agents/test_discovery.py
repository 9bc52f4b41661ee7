"""Programs of coding agents are found without running them, with what a child needs of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from retinue.agents.discovery import ProgramMissing, find_program
from retinue.agents.profiles import CODEX, GEMINI_CLI, GOOSE


def install(folder: Path, name: str, script: str, first: str) -> Path:
    """An npm package with one command; return the folder of commands."""
    package = folder / "node_modules" / name
    (package / "bin").mkdir(parents=True)
    (package / "package.json").write_text(json.dumps({"name": name, "version": "1.2.3"}))
    program = package / "bin" / script
    program.write_text(first)
    program.chmod(0o755)
    commands = folder / "node_modules" / ".bin"
    commands.mkdir(exist_ok=True)
    (commands / script.partition(".")[0]).symlink_to(program)
    return commands


def test_a_script_is_lent_with_its_package_and_its_interpreter(tmp_path: Path) -> None:
    commands = install(tmp_path, "@google/gemini-cli", "gemini.js", "#!/usr/bin/env node\n")
    (commands / "node").write_text("binary")
    (commands / "node").chmod(0o755)
    found = find_program(GEMINI_CLI, "", str(commands))
    package = tmp_path / "node_modules" / "@google" / "gemini-cli"
    assert found.words == (str(commands / "node"), str(package / "bin" / "gemini.js"))
    assert found.version == "1.2.3"
    assert found.lent == (str(commands / "node"), str(package))


def test_a_script_without_its_interpreter_is_not_installed(tmp_path: Path) -> None:
    commands = install(tmp_path, "@google/gemini-cli", "gemini.js", "#!/usr/bin/env node\n")
    with pytest.raises(ProgramMissing, match="needs node"):
        find_program(GEMINI_CLI, "", str(commands))


def test_an_interpreter_that_is_itself_a_script_is_passed_over(tmp_path: Path) -> None:
    commands = install(tmp_path, "@google/gemini-cli", "gemini.js", "#!/usr/bin/env node\n")
    (commands / "node").write_text("#!/usr/bin/env bash\n")
    later = tmp_path / "later"
    later.mkdir()
    (later / "node").write_text("binary")
    for each in (commands, later):
        (each / "node").chmod(0o755)
    found = find_program(GEMINI_CLI, "", f"{commands}:{later}")
    assert found.words[0] == str(later / "node")


def test_a_native_program_is_lent_alone(tmp_path: Path) -> None:
    commands = install(tmp_path, "@openai/codex", "codex", "\x7fELF")
    found = find_program(CODEX, "", str(commands))
    assert found.words == found.lent == (str((commands / "codex").resolve()),)


def test_a_home_folder_is_not_lent_for_a_script_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "package.json").write_text('{"version": "1.2.3"}')
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "goose"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    found = find_program(GOOSE, "", str(program.parent) + ":/bin")
    assert found.lent == (str(program),) and found.version == ""


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProgramMissing, match="codex"):
        find_program(CODEX, "", str(tmp_path))
