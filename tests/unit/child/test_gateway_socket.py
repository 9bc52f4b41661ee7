"""The Unix socket at which the next steward gets a child's gateway socket."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from retinue.child.gateway_socket import DOOR, PROOF, Listener
from retinue.runtime.launch_handshake import fetch_adopted_socket


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    (tmp_path / PROOF).touch()
    (tmp_path / "other").touch()
    before = os.getcwd()
    descriptor = os.open(tmp_path, os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)
    os.chdir(before)


def handed(listener: Listener, shown: list[int]) -> bool:
    """Return whether a caller that shows these descriptors gets the socket."""
    with socket.socket(socket.AF_UNIX) as way:
        way.settimeout(5)
        way.connect(DOOR)
        if shown:
            socket.send_fds(way, [b"?"], shown)
        else:
            way.send(b"?")
        listener.answer()
        _, came, _, _ = socket.recv_fds(way, 16, 1)
        for each in came:
            os.close(each)
        return bool(came)


@pytest.mark.parametrize(
    ("name", "flags", "expected"),
    [
        (PROOF, os.O_WRONLY, True),
        (PROOF, os.O_RDWR, True),
        (PROOF, os.O_RDONLY, False),
        (PROOF, os.O_PATH, False),
        ("other", os.O_WRONLY, False),
    ],
)
def test_only_a_caller_that_can_write_the_record_gets_the_socket(
    folder: int, name: str, flags: int, expected: bool
) -> None:
    listener = Listener(folder)
    shown = os.open(name, flags, dir_fd=folder)
    try:
        assert handed(listener, [shown]) is expected
    finally:
        os.close(shown)
        listener.door.close()


def test_a_caller_without_a_descriptor_gets_nothing(folder: int) -> None:
    listener = Listener(folder)
    assert not handed(listener, [])
    listener.door.close()


def test_the_next_steward_gets_the_socket(folder: int, tmp_path: Path) -> None:
    listener = Listener(folder)

    async def ask() -> socket.socket | None:
        asyncio.get_running_loop().add_reader(listener.door, listener.answer)
        return await fetch_adopted_socket(tmp_path)

    found = asyncio.run(ask())
    assert found is not None and found.family == socket.AF_INET
    assert not found.get_inheritable()  # by the processes that the steward starts
    found.close()
    listener.door.close()
