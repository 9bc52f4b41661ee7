"""A server runs an attempt itself, before it clones anybody.

Of what an interpreter runs for the first time it keeps notes: in the code, in the types, in its
caches. Each clone would write them again, and every page that it writes to is copied for it.
"""

from __future__ import annotations

import os
from contextlib import suppress

from retinue.child.alerts import Alerts
from retinue.child.attempt import Attempt
from retinue.child.control import GO, Control
from retinue.child.order import Order, decode, encode

TIMES = 10  # by then the interpreter has adapted itself to what it runs
LEFT = ("exit.json", "exit.json.new", "stdout.log", "stderr.log", "init.log")
DESCRIPTORS = 64  # more than an attempt opens


def rehearse(first_free: int) -> None:
    """What an attempt needs is warm, and nothing of it is left.

    Args:
        first_free: a descriptor from which on none is in use.
    """
    folder = f"/tmp/retinue-{os.getpid()}"
    with suppress(OSError):  # then each clone learns it for itself
        os.mkdir(folder, 0o700)
        try:
            for _ in range(TIMES):
                _attempt(folder)
                os.closerange(first_free, first_free + DESCRIPTORS)
        finally:
            os.chdir("/")
            for name in LEFT:
                with suppress(FileNotFoundError):
                    os.unlink(f"{folder}/{name}")
            os.rmdir(folder)


def _attempt(folder: str) -> None:
    there = os.fsencode(folder)
    order = Order(
        attempt=1,
        argv=(b"/bin/true",),
        environment={},
        workspace=there,
        runtime_folder=there,
        timeout_ms=10_000,
        graces_ms=(0, 0),
        output_limit_bytes=1,
        limits={},
        contained=False,
    )
    source, ours = os.pipe()
    os.write(ours, GO)
    control = Control(source=source, sink=os.open(os.devnull, os.O_WRONLY))
    here = os.open(folder, os.O_DIRECTORY)
    # What it hears is meant for nobody who comes after it.
    Attempt(decode(encode(order)), control, here, Alerts()).run()
