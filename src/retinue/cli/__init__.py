"""The command-line interface. Each command imports only the modules that it needs."""

from __future__ import annotations

import gc
import os
import sys


def main() -> None:
    """Run the command and exit the process."""
    # Garbage collection and interpreter shutdown would take a third of a short command's time.
    gc.disable()
    try:
        from retinue.cli.entry import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    os._exit(code)


def collect_garbage() -> None:
    """Collect garbage from now on: for commands that serve until they are stopped."""
    # What was imported stays for good, so it need not be searched.
    gc.freeze()
    gc.enable()
