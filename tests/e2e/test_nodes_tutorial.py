"""The tutorial "Three machines in five minutes", on three machines that the test makes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from support.cluster import wait_for
from support.machines import Machines, can_make_machines

pytest.importorskip("nats")

PAGE = Path(__file__).parents[2] / "docs" / "tutorial-nodes.md"
BOUND_S = 90
BLOCK = re.compile(r"```(sh|text)\n(.*?)```", re.DOTALL)


@pytest.fixture
def machines() -> Iterator[Machines]:
    if not can_make_machines():
        pytest.skip("this user may not make network namespaces")
    made = Machines("project", "w1", "w2")
    try:
        yield made
    finally:
        made.close()


class Tutorial:
    """Runs the page's commands in their order, and compares what they print with the page."""

    def __init__(self, machines: Machines, top: Path) -> None:
        self._machines = machines
        self._top = top
        self.project = top / "project"
        self.project.mkdir()
        programs = top / "programs"
        programs.mkdir()
        (programs / "retinue").write_text(f'#!/bin/sh\nexec {sys.executable} -m retinue "$@"\n')
        (programs / "retinue").chmod(0o755)
        self.serving: dict[str, subprocess.Popen[str]] = {}
        self._invitations: list[str] = []

    def _environment(self, machine: str) -> dict[str, str]:
        home = self._top / f"home-{machine}"
        home.mkdir(exist_ok=True)
        kept = {name: os.environ[name] for name in ("LANG", "PYTHONPATH") if name in os.environ}
        path = f"{self._top / 'programs'}:{os.environ['PATH']}"
        return {**kept, "HOME": str(home), "PATH": path, "RETINUE_IDLE_SECONDS": "60"}

    def run(self, machine: str, script: str) -> str:
        done = subprocess.run(
            [*self._machines.enter(machine), "sh", "-ec", script],
            cwd=self.project if machine == "project" else self._top,
            env=self._environment(machine),
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def join(self, command: str) -> str:
        """Run a `node join`, which goes on, on the machine that it names; return its first line."""
        machine = command.split("--name ")[1].split()[0]
        command = re.sub(r"'retinue:[^']*'", f"'{self._invitations.pop(0)}'", command)
        with open(self._top / f"{machine}.log", "w") as log:
            process = self.serving[machine] = subprocess.Popen(
                [*self._machines.enter(machine), "sh", "-c", f"exec {command}"],
                cwd=self._top,
                env=self._environment(machine),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert process.stdout is not None
        return process.stdout.readline()

    def do(self, script: str) -> str:
        """Run one block of the page; return what it prints."""
        if script.startswith("pip install"):
            return ""  # what is tested is this checkout
        if script.startswith("retinue node join"):
            return self.join(script.strip())
        said = self.run("project", script)
        self._invitations += [line for line in said.splitlines() if line.startswith("retinue://")]
        return said

    def close(self) -> None:
        for process in self.serving.values():
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        for words in ("steward stop --cancel", "hub stop"):
            with suppress(AssertionError):
                self.run("project", f"retinue {words}")


def to_pattern(shown: str) -> re.Pattern[str]:
    """Return what the page's text must match: some words in it stand for what differs."""
    pattern = re.escape(shown.strip())
    pattern = re.sub(r"(\\ )+", r"\\s+", pattern)
    for word, stands_for in (
        ("…", r".+"),
        ("PID", r"\\d+"),
        ("TOKEN", r"[\\w=-]+"),
        (re.escape("/home/you"), r"\\S+"),
        (re.escape("0.0s"), r"[\\d.]+s"),
    ):
        pattern = re.sub(re.escape(word), stands_for, pattern)
    return re.compile(pattern)


def test_the_tutorial_of_three_machines_does_what_it_shows(
    machines: Machines, tmp_path: Path
) -> None:
    tutorial = Tutorial(machines, tmp_path)
    compared = 0
    try:
        said = ""
        for kind, text in BLOCK.findall(PAGE.read_text()):
            if kind == "sh":
                said = tutorial.do(text)
            else:
                assert to_pattern(text).fullmatch(said.strip()), f"{text}\n---\n{said}"
                compared += 1
        assert tutorial.serving["w2"].wait(BOUND_S) == 0
        wait_for(lambda: re.search(r"w2\s+left", tutorial.run("project", "retinue nodes")))
        assert compared >= 6
    finally:
        tutorial.close()
