"""One question to the local model: what is installed is shown to work."""

from __future__ import annotations

import asyncio
import json
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from retinue.domain.errors import RetinueError
from retinue.gateway.local.lease import LocalModel, NoLocalModel, Place

QUESTION = "Say hello in one short sentence."
SECONDS = 120


def try_out(folder: Path) -> str:
    """The model's own answer.

    Raises:
        RetinueError: there is none, and why.
    """
    try:
        return asyncio.run(_asked(LocalModel(folder)))
    except (NoLocalModel, OSError, HTTPException, ValueError, LookupError) as error:
        raise RetinueError(
            f"the local model is installed but does not answer: {error}", code="no_answer"
        ) from error


async def _asked(local: LocalModel) -> str:
    async with local.lease() as place:
        return await asyncio.to_thread(_ask, place, local.name)


def _ask(place: Place, model: str) -> str:
    url = urlsplit(place.url)
    connection = HTTPConnection(url.netloc, timeout=SECONDS)
    try:
        connection.request(
            "POST",
            f"{url.path}/chat/completions",
            json.dumps(
                {
                    "model": model,
                    "messages": [{"role": "user", "content": QUESTION}],
                    "max_tokens": 40,
                    "temperature": 0,
                }
            ),
            {"Content-Type": "application/json", "Authorization": f"Bearer {place.key}"},
        )
        response = connection.getresponse()
        document = json.loads(response.read())
    finally:
        connection.close()
    if response.status != 200:
        raise ValueError(document.get("error", {}).get("message", f"status {response.status}"))
    return str(document["choices"][0]["message"]["content"]).strip()
