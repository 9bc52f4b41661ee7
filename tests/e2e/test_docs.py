"""What the documents show happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).parents[2]
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(TOP / "src"), "HOME": "/nonexistent"}


def test_the_example_of_the_readme_prints_what_it_says(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (TOP / "README.md").read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.splitlines() == ["completed hello", "completed_but_timeout draft"], done


def test_the_generated_pages_are_what_the_code_says() -> None:
    done = subprocess.run(
        [sys.executable, str(TOP / "docs" / "generate.py"), "--check"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
