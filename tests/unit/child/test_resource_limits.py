"""Finding the limit that a failed command reached."""

from __future__ import annotations

import pytest

from retinue.child.resource_limits import MB, can_hold_limits, find_reached_limit
from retinue.core.result import Ending, EndKind
from retinue.formats.exit_record import parse_ending

LIMITS = {
    "RLIMIT_DATA": 64 * MB,
    "RLIMIT_NPROC": 20,
    "RLIMIT_FSIZE": 2 * MB,
    "RLIMIT_NOFILE": 100,
}


@pytest.mark.parametrize(
    ("code", "peak_mb", "processes", "said", "told"),
    [
        (0, 64, 20, b"MemoryError", ""),
        (1, 10, 1, b"", ""),
        (1, 10, 1, b"something else", ""),
        (-25, 10, 1, b"", "the file size limit of 2 MB"),
        (153, 10, 1, b"", "probably the file size limit of 2 MB"),
        (1, 10, 1, b"cat: write error: File too large\n", "probably the file size limit of 2 MB"),
        (2, 10, 20, b"", "at the process limit of 20"),
        (2, 10, 3, b"sh: 0: Cannot fork\n", "probably the process limit of 20"),
        (1, 60, 1, b"", "at the memory limit of 64 MB"),
        (1, 10, 1, b"MemoryError\n", "probably the memory limit of 64 MB"),
        (-6, 10, 1, b"terminate called: std::bad_alloc", "probably the memory limit of 64 MB"),
        (1, 10, 1, b"Too many open files\xff", "probably the limit of 100 open files"),
    ],
)
def test_a_reached_limit_is_named_with_its_certainty(
    code: int, peak_mb: int, processes: int, said: bytes, told: str
) -> None:
    peak_kb = peak_mb * 1024
    assert find_reached_limit(LIMITS, code, peak_kb=peak_kb, processes=processes, said=said) == told


def test_without_limits_none_was_reached() -> None:
    assert find_reached_limit({}, -25, peak_kb=1 << 30, processes=1000, said=b"MemoryError") == ""


def test_a_described_end_names_the_limit_after_the_cause() -> None:
    record = b'{"kind":"exited","exit_code":1,"signal":null,"limit":"probably the limit of 4"}'
    assert parse_ending(record).describe() == "exited with code 1 (probably the limit of 4)"
    deadline = Ending(kind=EndKind.DEADLINE, limit="at the process limit of 20")
    assert deadline.describe() == "reached its time limit (at the process limit of 20)"


def test_an_init_takes_on_only_ample_limits() -> None:
    ample = {"RLIMIT_DATA": 4096 * MB, "RLIMIT_FSIZE": 10 * MB, "RLIMIT_NOFILE": 100}
    assert can_hold_limits(ample, output_bytes=MB)
    assert not can_hold_limits(ample, output_bytes=10 * MB)
    assert not can_hold_limits(ample | {"RLIMIT_DATA": 64 * MB}, output_bytes=MB)
    assert not can_hold_limits(ample | {"RLIMIT_NOFILE": 20}, output_bytes=MB)
    assert not can_hold_limits(ample | {"RLIMIT_NPROC": 5000}, output_bytes=MB)
