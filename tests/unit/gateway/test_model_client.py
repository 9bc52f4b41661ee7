"""Start of the local model's server process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from retinue.gateway.local_model.model_client import LOG, LocalModel, NoLocalModel


class InstalledModel(LocalModel):
    def find_problem(self) -> str | None:
        return None


def test_a_server_that_cannot_be_started_leaves_no_descriptor_open(tmp_path: Path) -> None:
    (tmp_path / LOG).mkdir()  # in the place of the log file

    async def use() -> None:
        async with InstalledModel(tmp_path).acquire_endpoint():
            raise AssertionError("there is no model")

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NoLocalModel, match="cannot be started"):
        asyncio.run(use())
    assert len(os.listdir("/proc/self/fd")) == before
