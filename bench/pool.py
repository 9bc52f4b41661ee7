"""Python's own pool, with a process for each line it is given: `python pool.py METHOD COUNT`."""

from __future__ import annotations

import multiprocessing
import sys


def no_op(line: str) -> None:
    """What there is to do for it."""


if __name__ == "__main__":
    method, count = multiprocessing.get_context(sys.argv[1]), int(sys.argv[2])
    with method.Pool(count, maxtasksperchild=1) as pool:
        pool.map(no_op, sys.stdin, chunksize=1)
