"""The command line: one process per command, loaded no further than the command needs."""

from __future__ import annotations

import gc
import os
import sys


def main() -> None:
    """The command was carried out and the process is over.

    Neither collecting garbage nor taking the interpreter apart would serve anyone: together
    they would be a third of a short command's time.
    """
    gc.disable()
    try:
        from retinue.doors.cli.run import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    os._exit(code)
