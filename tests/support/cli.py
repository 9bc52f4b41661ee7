"""`retinue` at the command line, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.roots import holder
from support.traces import is_over

BOUND_S = 30
SOURCE = Path(__file__).resolve().parents[2] / "src"
CONFIG = """
orchestrator:
  coordination:
    subagent_min_timeout: 0.1
    subagent_cancel_grace_seconds: [0.4, 0.3]
    subagent_runtime_mode: inherited
"""
BLOCKS = """
if grep -q blue "$RETINUE_BRIEF"; then echo "it is blue"; exit 0; fi
echo '{"status": "blocked", "summary": "?", "questions": ["Which colour?"]}' > "$RETINUE_FINAL"
"""


class Cli:
    """`retinue` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / ".retinue"
        unwanted = ("RETINUE_ROOT", "PYTHONUNBUFFERED", "NO_COLOR", "COLUMNS")
        known = {name: value for name, value in os.environ.items() if name not in unwanted}
        self.environment = known | {"PYTHONPATH": str(SOURCE)}

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        known = {"cwd": self.folder, "env": self.environment, "stdin": subprocess.DEVNULL}
        options = known | options
        return subprocess.Popen(
            [sys.executable, "-m", "retinue", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **options,
        )

    def run(self, *words: str, code: int | None = 0, **options: Any) -> str:
        """What it printed, once its exit code is known to be this one."""
        process = self.start(*words, **options)
        out, err = process.communicate(timeout=BOUND_S)
        assert code is None or process.returncode == code, (out, err)
        assert "Traceback" not in err
        if code not in (0, 130):
            assert err.count("\n") <= 1, err
        return out

    def json(self, *words: str, code: int | None = 0) -> Any:
        return json.loads(self.run("--json", *words, code=code))

    def task(self, config: str = CONFIG) -> str:
        (self.folder / "c.yaml").write_text(config)
        answer = self.json("task", "create", "--title", "A task", "--config", "c.yaml")
        return str(answer["task_id"])

    def workspace(self, task: str, subagent: str) -> Path:
        return self.root / "tasks" / task / "agents" / subagent / "workspace"


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    cli = Cli(tmp_path)
    yield cli
    pid = holder(cli.root)
    cli.run("steward", "stop", "--cancel")
    assert pid is None or is_over(pid)
