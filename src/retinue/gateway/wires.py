"""What differs between vendors' formats: paths, where a key stands, how an error looks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote

from retinue.gateway.outline import BASE64_AT_LEAST, LARGE, outline
from retinue.gateway.providers import ANTHROPIC, GEMINI, OPENAI, Provider

CHAT, RESPONSES, MESSAGES, GENERATE = "chat", "responses", "messages", "generate"
FREE = "free"  # nothing is spent by asking

# What is let through. A key opens more than models: files, other people's answers, accounts.
_ENDPOINTS: dict[str, list[tuple[str, re.Pattern[str], str]]] = {
    OPENAI: [
        ("POST", re.compile(r"/v1/(chat/completions|completions|embeddings)"), CHAT),
        ("POST", re.compile(r"/v1/responses"), RESPONSES),
        ("GET", re.compile(r"/v1/models(/.+)?"), FREE),
    ],
    ANTHROPIC: [
        ("POST", re.compile(r"/v1/messages"), MESSAGES),
        ("POST", re.compile(r"/v1/messages/count_tokens"), FREE),
        ("GET", re.compile(r"/v1/models(/.+)?"), FREE),
    ],
    GEMINI: [
        (
            "POST",
            re.compile(r"/v1(beta|alpha)?/models/[^/:]+:(stream)?[gG]enerateContent"),
            GENERATE,
        ),
        ("POST", re.compile(r"/v1(beta|alpha)?/models/[^/:]+:(batchE|e)mbedContents?"), GENERATE),
        ("POST", re.compile(r"/v1(beta|alpha)?/models/[^/:]+:countTokens"), FREE),
        ("GET", re.compile(r"/v1(beta|alpha)?/models(/[^/:]+)?"), FREE),
    ],
}
KEY_HEADERS = ("authorization", "x-api-key", "x-goog-api-key")
NOT_PASSED_ON = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te"),
        *("trailer", "transfer-encoding", "upgrade", "host", "content-length", "expect"),
        *KEY_HEADERS,
    }
)
UNDONE = ("gzip", "deflate", "br", "zstd")  # by whoever lets a request in; it is read there
MOST_OUTPUT = ("max_output_tokens", "max_completion_tokens", "max_tokens")
DESCRIBING = frozenset({"model", "generationConfig", *MOST_OUTPUT})
CHARACTERS_PER_TOKEN = 4
USUAL_ANSWER = 4096
WRAPPING = 64  # tokens that a vendor puts around a request


def endpoint(wire: str, method: str, path: str) -> str | None:
    """What kind of request this is; None for one that is not let through."""
    if ".." in unquote(path).split("/"):
        return None
    for verb, pattern, kind in _ENDPOINTS[wire]:
        if verb == method and pattern.fullmatch(path):
            return kind
    return None


def presented(headers: Mapping[str, str], query: str) -> str:
    """The token that came with a request, wherever its vendor's clients put theirs."""
    bearer = headers.get("authorization", "")
    if bearer[:7].lower() == "bearer ":
        return bearer[7:].strip()
    for name in KEY_HEADERS[1:]:
        if value := headers.get(name, ""):
            return value.strip()
    return dict(parse_qsl(query)).get("key", "")


def target(provider: Provider, path: str, query: str) -> str:
    """The provider's address for a path, without the child's token in its query."""
    if provider.wire == OPENAI:
        path = path.removeprefix("/v1")
    kept = [part for part in query.split("&") if part and unquote(part.split("=")[0]) != "key"]
    return provider.base_url + path + ("?" + "&".join(kept) if kept else "")


def passed_on(
    headers: Iterable[tuple[str, str]], provider: Provider, key: str | None
) -> list[tuple[str, str]]:
    """The child's headers with the provider's key in place of its token."""
    kept = []
    for name, value in headers:
        lowered = name.lower()
        if lowered == "accept-encoding":  # only what can be read as it passes
            value = "gzip" if "gzip" in value.lower() else "identity"
        undone = lowered == "content-encoding" and value.lower() in UNDONE
        if lowered not in NOT_PASSED_ON and not undone:
            kept.append((name, value))
    if provider.local:  # its threads are few, and a connection that is kept would keep one
        kept.append(("Connection", "close"))
    return kept + authorization(provider.wire, key)


def authorization(wire: str, key: str | None) -> list[tuple[str, str]]:
    if key is None:
        return []
    if wire == ANTHROPIC:
        return [("x-api-key", key)]
    return [("x-goog-api-key", key)] if wire == GEMINI else [("Authorization", f"Bearer {key}")]


def passed_back(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers if name.lower() not in NOT_PASSED_ON]


def refusal(wire: str, status: int, code: str, message: str) -> bytes:
    """An error as the vendor's clients know it, so that an agent can read it."""
    if wire == ANTHROPIC:
        error: dict[str, Any] = {"type": code, "message": message}
        document: dict[str, Any] = {"type": "error", "error": error}
    elif wire == GEMINI:
        document = {"error": {"code": status, "message": message, "status": code.upper()}}
    else:
        error = {"message": message, "type": code, "param": None, "code": code}
        document = {"error": error}
    return json.dumps(document).encode()


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What can be told from a request before it is answered."""

    model: str = ""
    input_tokens: int = 0  # about
    most_input_tokens: int = 0  # no token is shorter than a letter
    most_output_tokens: int = USUAL_ANSWER


def describe(wire: str, path: str, body: bytes) -> Asked:
    """What cannot be read is left to the provider to refuse.

    Raises:
        TooMany: of a large one, that there is too much in it to be read.
    """
    document, characters = _parsed(body) if len(body) <= LARGE else outline(body, DESCRIBING)
    if wire == GEMINI:
        model = path.rpartition("/")[2].partition(":")[0]
        config = document.get("generationConfig")
        most = config.get("maxOutputTokens") if isinstance(config, dict) else None
    else:
        model = str(document.get("model") or "")
        most = next((document[name] for name in MOST_OUTPUT if document.get(name)), None)
    return Asked(
        model=model[:200],
        input_tokens=tokens_in(characters),
        most_input_tokens=characters + WRAPPING,
        most_output_tokens=most if isinstance(most, int) and most > 0 else USUAL_ANSWER,
    )


def _parsed(body: bytes) -> tuple[dict[str, Any], int]:
    try:
        document = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        document = {}
    if not isinstance(document, dict):
        document = {}
    return document, _characters(document)


def tokens_in(characters: int) -> int:
    return -(-characters // CHARACTERS_PER_TOKEN)


def _characters(document: object) -> int:
    """How much text there is; pictures and sounds count for little."""
    unseen, found = [document], 0
    while unseen:
        value = unseen.pop()
        if isinstance(value, str):
            media = len(value) >= BASE64_AT_LEAST and " " not in value[:BASE64_AT_LEAST]
            found += BASE64_AT_LEAST if media else len(value)
        elif isinstance(value, dict):
            unseen += value.values()
        elif isinstance(value, list):
            unseen += value
    return found
