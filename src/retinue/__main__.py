"""`python -m retinue` is the command line."""

from __future__ import annotations

import sys

from retinue.doors.cli import main

if __name__ == "__main__":
    sys.exit(main())
