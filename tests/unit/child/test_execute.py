"""State of a team's process at its start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import retinue

TEAM = """
import os, sys
sys.path.insert(0, sys.argv[1])
from retinue.child.execute import execute
from retinue.child.control_protocol import Order
def work(environment):
    print(sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1])
    return 0
record = os.open("/dev/null", os.O_WRONLY)
order = Order(attempt=1, argv=(), environment={}, workspace=b"/", runtime_folder=b"/",
    timeout_ms=1000, graces_ms=(0, 0), output_limit_bytes=1, limits={}, team=True,
    contained=False)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(execute(order, (-1, 1, 2), work)[0], 0)[1]))
"""


def test_a_team_inherits_no_descriptor_of_its_init() -> None:
    source = str(Path(retinue.__file__).parent.parent)
    argv = [sys.executable, "-I", "-S", "-c", TEAM, source]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[0, 1, 2]\n"
