"""The way to the root's steward, which is started where there is none."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from retinue.steward import link
from retinue.steward.client import reach, require_root
from retinue.steward.remote import Remote, connected


class Link(link.Link):
    def __init__(self, root: Path) -> None:
        super().__init__(self._reach)
        self._root = root

    async def call(self, verb: str, **params: Any) -> Any:
        require_root(self._root, verb)
        return await super().call(verb, **params)

    async def _reach(self) -> Remote:
        return await connected(sock=await asyncio.to_thread(reach, self._root))
