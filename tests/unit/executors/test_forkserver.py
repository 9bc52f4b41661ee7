"""What the process that teams are cloned from carries: each clone maps all of it."""

from __future__ import annotations

import subprocess
import sys


def test_no_team_carries_what_only_forms_and_files_of_people_need() -> None:
    code = "import sys, retinue.executors.forkserver; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert not {"ruamel.yaml", "pydantic"} & {*told.stdout.split()}
