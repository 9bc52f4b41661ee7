"""Start and end of the MCP server, whatever transport it has."""

from __future__ import annotations

import asyncio
import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import StorageFailed
from retinue.delegation.task_session import Choice
from retinue.delegation.tool_definitions import PLAIN_NAMES, SPAWN, STATUS, WAIT
from retinue.mcp_server.http_transport import TOKEN_FILE, read_token
from retinue.mcp_server.sdk_server import run
from retinue.mcp_server.stdio_transport import can_block

BOUND_S = 20.0


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_a_second_signal_ends_the_server_without_an_exception(tmp_path: Path) -> None:
    async def serve(server: Any, cuts: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        # As the handler of a signal does that arrives while the server ends.
        task.cancel()

    run(tmp_path / ".retinue", Choice(folder=tmp_path), serve)


def test_a_server_waits_for_the_whole_token_of_one_that_starts_with_it(tmp_path: Path) -> None:
    root = tmp_path / ".retinue"
    first = read_token(root, make=True)
    assert read_token(root, make=True) == first
    token = root / TOKEN_FILE
    token.unlink()
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        token.touch(0o600)
        with ThreadPoolExecutor() as pool:
            second = pool.submit(read_token, root, make=True)
            with pytest.raises(NotDone):
                second.result(timeout=0.3)
            token.write_text("t" * 32)
            fcntl.flock(folder, fcntl.LOCK_UN)
            assert second.result(timeout=BOUND_S) == "t" * 32
    finally:
        os.close(folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_token_that_cannot_be_written_is_an_error_with_a_code(tmp_path: Path) -> None:
    root = tmp_path / ".retinue"
    read_token(root, make=True)
    (root / TOKEN_FILE).unlink()
    root.chmod(0o500)
    with pytest.raises(StorageFailed, match=TOKEN_FILE):
        read_token(root, make=True)


@pytest.mark.parametrize("name", [SPAWN, WAIT, PLAIN_NAMES[WAIT]])
def test_requests_that_block_are_known_by_both_names_of_their_tool(name: str) -> None:
    asked: dict[str, Any] = {"method": "tools/call", "params": {"name": name}}
    assert can_block(asked)
    assert not can_block({"method": "tools/call", "params": {"name": PLAIN_NAMES[STATUS]}})
    background = asked | {"params": {"name": name, "arguments": {"background": True}}}
    assert not can_block(background)
