"""Descriptors that are kept back for what must be read."""

from __future__ import annotations

import os
from contextlib import suppress

from retinue.files import Reserve


def kept() -> int:
    count = 0
    for each in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{each}") == os.devnull
    return count


def test_one_of_two_holders_does_not_take_the_reserve_of_the_other() -> None:
    before, reserve = kept(), Reserve(3)
    reserve.fill()
    reserve.fill()
    reserve.release()
    assert kept() == before + 3
    with reserve.lent():
        assert kept() == before + 1
    assert kept() == before + 3
    reserve.release()
    assert kept() == before
    with reserve.lent():
        pass
    assert kept() == before  # whoever holds none is left with none
