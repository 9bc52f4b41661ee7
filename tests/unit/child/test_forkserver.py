"""A fork server whose steward goes while it starts goes as well, and has nothing to complain of."""

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
from retinue.child import forkserver
forkserver.main()
"""


@pytest.mark.parametrize("ready", [False, True])
def test_a_steward_that_goes_while_its_server_starts_is_no_fault(ready: bool) -> None:
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
