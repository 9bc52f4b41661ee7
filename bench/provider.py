"""A provider for a benchmark: a process of its own, which answers as a script says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from measure import PYTHON

# The script goes before this and defines `answer(asked, writer)`.
SERVE = r"""
async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            size = [l for l in head.split(b"\r\n") if l.lower().startswith(b"content-length")]
            asked = json.loads(await reader.readexactly(int(size[0].split(b":")[1])))
            await answer(asked, writer)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


@asynccontextmanager
async def provider(script: str) -> AsyncIterator[tuple[int, asyncio.StreamReader]]:
    """Where it is, and what it prints."""
    process = await asyncio.create_subprocess_exec(
        PYTHON, "-I", "-c", script + SERVE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline()), process.stdout
    finally:
        process.kill()
        await process.wait()
