"""Fork server: a process with all modules imported, from which children are cloned.

It reads requests from one socket. Each request holds the namespaces of a child and its control
socket. The server exits with the steward; the children go on.
"""

from __future__ import annotations

import ctypes
import gc
import os
import socket
import sys
from contextlib import suppress
from itertools import chain
from types import CodeType, FunctionType, ModuleType

from retinue.child import seccomp
from retinue.child.attempt_runner import AttemptRunner
from retinue.child.child_main import start_child, start_child_behind_launcher
from retinue.child.control_protocol import GO, Control, Order, decode_order, encode_order
from retinue.child.execute import Work
from retinue.child.pending_signals import PendingSignals
from retinue.child.resource_limits import forbid_core_files

# Warm-up of a fork server: it runs attempts itself before it clones a child.
#
# The interpreter fills caches in code and types when it first runs something. Each clone would
# write them again, and each memory page that a clone writes to is copied.

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
    AttemptRunner(decode_order(encode_order(order)), control, here, PendingSignals()).run()


UNCOUNTED = 1 << 31  # reference counts from here on mark immortal objects


def make_objects_immortal() -> int:
    """Make all current objects immortal and return their number.

    A write to a reference count copies a memory page in each clone; immortal objects have no
    such writes. Returns 0 if this interpreter has no immortal objects.
    """
    if sys.implementation.name != "cpython":
        return 0
    count_at = ctypes.c_uint32.from_address
    # None is immortal where the interpreter knows such objects: its count is the mark.
    nones = count_at(id(None)).value
    if nones < UNCOUNTED:
        return 0
    places = _find_addresses()
    for place in places:
        count_at(place).value = nones
    return len(places)


def _find_addresses() -> set[int]:
    """Return addresses of objects known to the garbage collector, their referents and code."""
    known = gc.get_objects()
    # Modules are left out: one may refer to freed objects that it keeps for reuse.
    referring = [one for one in known if type(one) is not ModuleType]
    found = set(map(id, chain(known, gc.get_referents(*referring))))
    codes = [one.__code__ for one in known if type(one) is FunctionType]
    while codes:
        constants = [one for code in codes for one in code.co_consts]
        found.update(map(id, chain(codes, constants)))
        codes = [one for one in constants if type(one) is CodeType]
    return found


CHANNEL = 3
READY = b"r"
SIZE = 8  # of a request, in bytes


def serve(channel: socket.socket, work: Work | None) -> None:
    """Start a child for each request, until the steward closes the channel."""
    signals = PendingSignals()
    forbid_core_files()
    seccomp.prepare()
    warm_up(first_free=channel.fileno() + 1)
    gc.collect()
    make_objects_immortal()
    gc.freeze()  # a collection in a child would otherwise copy everything that was imported
    channel.send(READY)
    while True:
        request, descriptors, _, _ = socket.recv_fds(channel, SIZE, 1, socket.MSG_CMSG_CLOEXEC)
        if not request:
            return
        namespaces = int.from_bytes(request, sys.byteorder)
        for descriptor in descriptors:
            start_child(Control(source=descriptor, sink=descriptor), namespaces, signals, work)
            os.close(descriptor)


def main(work: Work | None = None) -> None:
    # The steward may exit while this process starts: then READY cannot be sent, or is not read.
    with socket.socket(fileno=CHANNEL) as channel, suppress(ConnectionError):
        os.set_inheritable(CHANNEL, False)
        serve(channel, work)


def serve_one(work: Work | None = None) -> None:
    """Start one child behind a launcher, with standard input and output as control."""
    forbid_core_files()
    os._exit(start_child_behind_launcher(Control(source=0, sink=1), work))
