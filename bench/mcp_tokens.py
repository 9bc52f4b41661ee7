"""Tokens that the MCP server costs a parent's model: descriptions, instructions and results.

Counted by an approximation: words of up to seven letters, up to three digits and up to three
signs are one token each. On these texts it came out 2 to 8 % above the tokenizer of SmolLM2, a
byte-pair encoding with 49,000 entries; larger vocabularies need fewer.
"""

from __future__ import annotations

import json
import re
from typing import Any

from mcp_types import TextContent

from mcp_door import served
from measure import Figure

TASKS: list[dict[str, Any]] = [
    {"task": f"write {name}.md", "subagent_id": name, "context_paths": []}
    for name in ("biography", "discography", "songs")
]
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
    # The same without the two keys that hold the path of the workspace.
    bare = [
        {key: value for key, value in result.items() if not key.startswith("workspace")}
        for result in document["results"]
    ]
    pathless = count_tokens(_to_json(document | {"results": bare}))
    blocks = (block.text for block in answer.content if isinstance(block, TextContent))
    text = count_tokens("\n\n".join(blocks).replace(folder, PROJECT))
    return [
        Figure(
            "mcp tools", sum(each.values()), "tokens of descriptions and schemas", 1200, "", each
        ),
        Figure("mcp instructions", count_tokens(instructions), "tokens", 500),
        Figure("mcp results, text", text, "tokens of three results", 150),
        Figure(
            "mcp results, structure",
            structure,
            "tokens of three results",
            150,
            note=f"{structure - pathless} of them are workspace and workspace_path of each result, "
            "the same absolute path, and both belong to the shape of a result. The rest is ids, "
            "status, success, answer and time of each, and the summary. The text names the pattern "
            "of the paths once.",
        ),
    ]


def _to_json(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))
