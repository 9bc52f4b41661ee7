"""A team of models spawned by an agent: the tools with what is behind them in earnest."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from retinue.trust import trust_root
from support.mcp import BOUND_S, SPAWN, client
from support.roots import held
from support.scripted import Models, answer


def test_models_answer_and_what_they_spent_is_told(tmp_path: Path) -> None:
    root = tmp_path / "project" / ".retinue"
    root.mkdir(parents=True, mode=0o700)

    async def scene() -> None:
        async with asyncio.timeout(BOUND_S * 2), client(root, mode="2026-07-28") as connected:
            tasks = [{"task": "Say hello", "subagent_id": "greeter", "context_paths": []}]
            called = await connected.call_tool(SPAWN, {"tasks": tasks, "refine": False})
            assert not called.is_error, called.content
            (result,) = called.structured_content["results"]
            assert (result["status"], result["answer"]) == ("completed", "hello from the model")
            assert result["token_usage"]["input_tokens"] == 10

    with Models(lambda heard: answer("hello from the model")) as models, held(root):
        (root / "config.yaml").write_text(models.config("solo"))
        trust_root(root, os.environ, ())
        asyncio.run(scene())
        assert "Say hello" in str(models.heard[0])
