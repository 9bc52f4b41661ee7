"""Tokens that the MCP server costs a parent's model: descriptions, instructions and results.

Counted by an approximation: words of up to seven letters, up to three digits and up to three
signs are one token each. On these texts it came out 2 to 8 % above the tokenizer of SmolLM2, a
byte-pair encoding with 49,000 entries; larger vocabularies need fewer.
"""

from __future__ import annotations

import json
import re
from typing import Any

from mcp_types import CallToolResult, TextContent

from mcp_door import served
from measure import Figure

TASKS: list[dict[str, Any]] = [
    {"task": f"write {name}.md", "subagent_id": name, "context_paths": []}
    for name in ("biography", "discography", "songs")
]
# Names of the clients whose model gets the structure where there is one; that of others gets the
# text. `tests/clients` looks at what the models of the real ones get.
STRUCTURE_READERS = ("claude-code", "codex-mcp-client")
PROJECT = "/home/you/site"  # counted instead of the temporary folder, which has a longer path
_PIECE = re.compile(r" ?[A-Za-z]+|[0-9]{1,3}|[^A-Za-z0-9\s]{1,3}|\s+")
_LETTERS = 7


def count_tokens(text: str) -> int:
    """Return about how many tokens a model reads for this text."""
    total = 0
    for piece in _PIECE.findall(text):
        letters = piece.strip()
        total += max(1, -(-len(letters) // _LETTERS)) if letters.isalpha() else 1
    return total


async def tokens() -> list[Figure]:
    async with served() as (client, _):
        tools = (await client.list_tools()).tools
        instructions = client.instructions or ""
        answer = await client.call_tool("spawn_subagents", {"tasks": TASKS})
    texts = {
        tool.name: _to_json(
            {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
        )
        for tool in tools
    }
    each = {name: float(count_tokens(text)) for name, text in texts.items()}
    document = answer.structured_content or {}
    folder = document["results"][0]["workspace"].partition("/.retinue/")[0]
    structure = count_tokens(_to_json(document).replace(folder, PROJECT))
    # The same with nothing in the two keys that hold the path of the workspace.
    bare = [
        {key: "" if key.startswith("workspace") else value for key, value in result.items()}
        for result in document["results"]
    ]
    pathless = count_tokens(_to_json(document | {"results": bare}))
    read = {"others": float(_count_read(answer, by_structure=False, folder=folder))}
    for name in STRUCTURE_READERS:
        async with served(name) as (client, _):
            answer = await client.call_tool("spawn_subagents", {"tasks": TASKS})
        first = answer.content[0]
        assert isinstance(first, TextContent)
        folder = first.text.partition("workspaces: ")[2].partition("/.retinue/")[0]
        read[name] = float(_count_read(answer, by_structure=True, folder=folder))
    return [
        Figure(
            "mcp tools", sum(each.values()), "tokens of descriptions and schemas", 1200, "", each
        ),
        Figure("mcp instructions", count_tokens(instructions), "tokens", 500),
        Figure(
            "mcp results",
            max(read.values()),
            "tokens of three results, as models read them",
            150,
            details=read,
        ),
        Figure(
            "mcp results, structure",
            structure,
            f"tokens of three results for programs; {pathless} without what is in workspace "
            "and workspace_path",
        ),
    ]


def _count_read(answer: CallToolResult, *, by_structure: bool, folder: str) -> int:
    """Return the tokens that a client gives its model of an answer."""
    blocks = (block.text for block in answer.content if isinstance(block, TextContent))
    given = "\n\n".join(blocks)
    if by_structure and answer.structured_content is not None:
        given = _to_json(answer.structured_content)
    return count_tokens(given.replace(folder, PROJECT))


def _to_json(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))
