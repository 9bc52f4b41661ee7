"""Coding agents as people install them, asked for one thing, without a screen.

Each answers with the model at a given address; `./dev clients` puts them into a cache of ours.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
_INSTALLED = Path(os.environ.get("RETINUE_CLIENTS") or _CACHE / "retinue-clients")
BINARIES = _INSTALLED / "node_modules" / ".bin"

# Given the model's address and an environment to complete, the words that start it.
Agent = Callable[[str, dict[str, str]], list[str]]


def surroundings(home: Path) -> dict[str, str]:
    """An environment in which they find nothing of this user's."""
    return {
        "HOME": str(home),
        "CODEX_HOME": f"{home}/codex",
        "PATH": f"{BINARIES}:{os.environ['PATH']}",
    }


def claude(url: str, environment: dict[str, str]) -> list[str]:
    environment |= {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "x",
        "CLAUDE_CONFIG_DIR": environment["HOME"] + "/claude",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "MCP_CONNECTION_NONBLOCKING": "0",  # the first turn waits for the servers
        "ENABLE_TOOL_SEARCH": "false",  # the model of the tests does not search
    }
    return ["claude", "-p", "go", "--output-format", "stream-json", "--verbose"]


def codex(url: str, environment: dict[str, str]) -> list[str]:
    environment |= {"K": "x"}
    Path(environment["CODEX_HOME"]).mkdir(exist_ok=True)
    provider = f'{{name="fake",base_url="{url}/v1",wire_api="responses",env_key="K"}}'
    return [
        *("codex", "exec", "go", "--json", "--skip-git-repo-check", "--ephemeral"),
        "--dangerously-bypass-approvals-and-sandbox",
        *("-c", "model_provider=fake", "-c", f"model_providers.fake={provider}", "-m", "gpt-5"),
    ]


def gemini(url: str, environment: dict[str, str]) -> list[str]:
    home = Path(environment["HOME"]) / "gemini"
    (home / ".gemini").mkdir(parents=True)
    settings = {"security": {"auth": {"selectedType": "gemini-api-key"}}}
    (home / ".gemini" / "settings.json").write_text(json.dumps(settings))
    environment |= {
        "GOOGLE_GEMINI_BASE_URL": url,
        "GEMINI_API_KEY": "x",
        "GEMINI_CLI_HOME": str(home),
        "GEMINI_CLI_TRUST_WORKSPACE": "true",  # else it starts no servers at all
    }
    return [
        *("gemini", "-p", "go", "-o", "stream-json"),
        *("--approval-mode", "yolo", "-m", "gemini-2.5-flash"),
    ]


def opencode(url: str, environment: dict[str, str]) -> list[str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": "x"},
        "models": {"m": {"name": "m", "tool_call": True}},
    }
    content = {"model": "fake/m", "small_model": "fake/m", "provider": {"fake": provider}}
    environment |= {
        "OPENCODE_CONFIG_CONTENT": json.dumps(content),
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }
    return ["opencode", "run", "--format", "json", "go"]
