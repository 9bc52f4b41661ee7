"""A part of the disk for the benchmarks alone.

ext4 without a journal keeps from reusing what was deleted lately, and searches
past all of it for every new file nearby: next to a test suite that cleans up
after itself, one file costs half a millisecond. Figures would tell of the
neighbours. Folders below a marked one are laid out far from each other, and so
mostly far from all that; of several, the one is used in which a file costs least;
and nothing is removed before everything is.
"""

from __future__ import annotations

import array
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TRIES, FILES = 8, 20
GET_FLAGS, SET_FLAGS, APART = 0x80086601, 0x40086602, 0x20000  # as `chattr +T` sets it


@contextmanager
def apart() -> Iterator[None]:
    """Temporary folders of this program lie apart from everybody else's, where that can be had."""
    with tempfile.TemporaryDirectory(prefix="retinue-bench-") as top:
        here = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
        flags = array.array("l", [0])
        with suppress(OSError):  # another file system, with other ways
            fcntl.ioctl(here, GET_FLAGS, flags)
            flags[0] |= APART
            fcntl.ioctl(here, SET_FLAGS, flags)
        os.close(here)
        tempfile.tempdir = top
        # Roots of the benchmarks are trusted, and kept out of the user's own list of roots.
        os.environ["XDG_STATE_HOME"] = f"{top}/state"
        os.environ["RETINUE_TRUST"] = top
        try:
            yield
        finally:
            tempfile.tempdir = None


def folder() -> Path:
    """A new one, which is there as long as all of them are."""
    cheapest = min((Path(tempfile.mkdtemp()) for _ in range(TRIES)), key=_cost)
    new = cheapest / "used"
    new.mkdir()
    return new


def about() -> str:
    """What a file costs where the figures come from."""
    here = folder()
    return f"bench: in {here}, where a new file takes {_cost(here) * 1e6:.0f} us"


def _cost(folder: Path) -> float:
    """Seconds for each new file, which stays there."""
    began = time.perf_counter()
    for number in range(FILES):
        (folder / str(number)).touch()
    return (time.perf_counter() - began) / FILES
