"""Warm-up of a fork server: it runs attempts itself before it clones a child.

The interpreter fills caches in code and types when it first runs something. Each clone would
write them again, and each memory page that a clone writes to is copied.
"""

from __future__ import annotations

import os
from contextlib import suppress

from retinue.child.attempt_runner import Attempt
from retinue.child.control_protocol import GO, Control
from retinue.child.launch_order import Order, decode, encode
from retinue.child.signals import PendingSignals

TIMES = 10  # enough for the interpreter to specialize the code
LEFT = ("exit.json", "exit.json.new", "stdout.log", "stderr.log", "init.log")
DESCRIPTORS = 64  # more than an attempt opens


def warm_up(first_free: int) -> None:
    """Run attempts in a temporary folder, and remove all that they leave.

    Args:
        first_free: the lowest descriptor from which on none is in use.
    """
    folder = f"/tmp/retinue-{os.getpid()}"
    with suppress(OSError):  # without a warm-up, children are only slower
        os.mkdir(folder, 0o700)
        try:
            for _ in range(TIMES):
                _make_attempt(folder)
                os.closerange(first_free, first_free + DESCRIPTORS)
        finally:
            os.chdir("/")
            for name in LEFT:
                with suppress(FileNotFoundError):
                    os.unlink(f"{folder}/{name}")
            os.rmdir(folder)


def _make_attempt(folder: str) -> None:
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
    # Its own PendingSignals: a signal that it reads must not count for a later attempt.
    Attempt(decode(encode(order)), control, here, PendingSignals()).run()
