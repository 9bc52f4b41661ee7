"""Retry of writes that the disk refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from retinue.core.errors import StorageFailed

DELAYS_SECONDS = (0.1, 0.5, 1.0, 2.0, 5.0)  # the last one repeats


async def retry_while_storage_fails(
    write: Callable[[int], Awaitable[None]], complain: Callable[[str], None], name: str
) -> None:
    """Call `write` with the number of failures so far, until the disk accepts it.

    There is no last try: what is written here has happened and must not be lost.
    """
    failures = 0
    while True:
        try:
            return await write(failures)
        except StorageFailed as error:
            delay = DELAYS_SECONDS[min(failures, len(DELAYS_SECONDS) - 1)]
            complain(f"{name}: {error.message}; again in {delay} s")
        failures += 1
        await asyncio.sleep(delay)
