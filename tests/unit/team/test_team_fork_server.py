"""Imports of the team fork server, all of which each child maps."""

from __future__ import annotations

import subprocess
import sys


def test_a_team_does_not_import_pydantic_or_yaml() -> None:
    code = "import sys, retinue.team.team_fork_server; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert not {"ruamel.yaml", "pydantic"} & {*told.stdout.split()}
