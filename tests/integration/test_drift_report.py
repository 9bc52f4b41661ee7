"""`./dev clients` ends with the versions of the agents and what failed with each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from support.coding_agents import find_agent

TOP = Path(__file__).parents[2]


def test_a_new_version_is_told_with_what_failed(tmp_path: Path) -> None:
    for name, version in (("claude", "99.0.0"), ("codex", find_agent("codex").tested[0])):
        (package,) = find_agent(name).packages
        folder = tmp_path / "node_modules" / package
        folder.mkdir(parents=True)
        (folder / "package.json").write_text(json.dumps({"version": version}))
    words = ["-m", "pytest", "tests/clients/test_agent_links.py", "-p", "no:cacheprovider"]
    end = subprocess.run(
        [sys.executable, *words, "-k", "installed_version"],
        cwd=TOP,
        env=os.environ | {"RETINUE_CLIENTS": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert end.returncode == 1, end.stdout
    report = end.stdout.partition("= versions =")[2].splitlines()
    test = "test_the_installed_version_is_one_that_was_tried"
    place = report.index("claude 99.0.0 (new): 1 failed")
    assert report[place + 1] == f"  {test}[claude]"
    assert f"codex {find_agent('codex').tested[0]} (tested): nothing failed" in report
    assert "goose (not installed): 1 failed" in report
