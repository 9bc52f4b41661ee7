"""A fork server exits without an error if its steward ends while it starts."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

import retinue

BOUND_S = 20.0
SERVER = """
import os, sys
os.dup2(int(sys.argv[2]), 3)
sys.path.insert(0, sys.argv[1])
from retinue.child import fork_server
fork_server.main()
"""


@pytest.mark.parametrize("ready", [False, True])
def test_the_server_exits_quietly_if_the_steward_ends_while_it_starts(ready: bool) -> None:
    source = str(Path(retinue.__file__).parent.parent)
    steward, channel = socket.socketpair()
    with steward, channel:
        number = channel.fileno()
        server = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", SERVER, source, str(number)],
            stderr=subprocess.PIPE,
            pass_fds=[number],
        )
        if ready:
            steward.recv(1, socket.MSG_PEEK)  # it has said so, and nobody has read it
        steward.close()
    _, complaints = server.communicate(timeout=BOUND_S)
    assert (server.returncode, complaints) == (0, b"")
