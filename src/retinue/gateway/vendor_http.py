"""HTTP details of each vendor: endpoints, headers, keys, error bodies and request limits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

from retinue.gateway.json_outline import (
    BASE64_AT_LEAST,
    LARGE,
    InvalidDocument,
    build_outline,
    parse,
)
from retinue.gateway.providers import ANTHROPIC, GEMINI, OPENAI, Provider
from retinue.gateway.request_features import UnknownShape, find_features

CHAT, RESPONSES, MESSAGES, GENERATE = "chat", "responses", "messages", "generate"
FREE = "free"  # the request costs nothing

# Forwarded endpoints. A key also gives access to files, stored answers and accounts.
_SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9._:@+~-]*"  # no "..", no "..;", no percent-encoding
_MODELS = rf"/models(?:/{_SEGMENT}){{0,3}}"
_GOOGLE = r"/v1(?:beta|alpha)?/models/[A-Za-z0-9_][A-Za-z0-9._@+~-]*"
_ENDPOINTS: dict[str, list[tuple[str, re.Pattern[str], str]]] = {
    OPENAI: [
        ("POST", re.compile(r"/v1/(chat/completions|completions|embeddings)"), CHAT),
        ("POST", re.compile(r"/v1/responses"), RESPONSES),
        ("GET", re.compile(rf"/v1{_MODELS}"), FREE),
    ],
    ANTHROPIC: [
        ("POST", re.compile(r"/v1/messages"), MESSAGES),
        ("POST", re.compile(r"/v1/messages/count_tokens"), FREE),
        ("GET", re.compile(rf"/v1{_MODELS}"), FREE),
    ],
    GEMINI: [
        ("POST", re.compile(rf"{_GOOGLE}:(stream)?[gG]enerateContent"), GENERATE),
        ("POST", re.compile(rf"{_GOOGLE}:(batchE|e)mbedContents?"), GENERATE),
        ("POST", re.compile(rf"{_GOOGLE}:countTokens"), FREE),
        ("GET", re.compile(rf"{_GOOGLE}|/v1(?:beta|alpha)?/models"), FREE),
    ],
}
KEY_HEADERS = ("authorization", "x-api-key", "x-goog-api-key")
OF_ONE_CONNECTION = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te"),
        *("trailer", "transfer-encoding", "upgrade", "host", "content-length", "expect"),
        *KEY_HEADERS,
    }
)
# Headers that vendors' clients send. Others are dropped: they might select an account or a method.
PASSED_ON = frozenset(
    {
        *("accept", "accept-encoding", "accept-language", "content-type", "content-encoding"),
        *("user-agent", "anthropic-version", "anthropic-beta", "openai-beta", "idempotency-key"),
        *("anthropic-dangerous-direct-browser-access", "x-app", "x-claude-code-session-id"),
        *("x-client-request-id", "x-request-id", "originator", "version", "session-id"),
        *("session_id", "thread-id", "conversation_id", "x-session-id", "x-session-affinity"),
        *("x-goog-api-client", "http-referer", "x-title"),
    }
)
PASSED_ON_FROM = ("x-stainless-", "x-codex-")
QUERY_PASSED_ON = frozenset(
    {
        *("alt", "beta", "limit", "after", "after_id", "before_id", "pageSize", "pageToken"),
        *("order", "api-version", "client_version"),
    }
)
_NOT_PLAIN = re.compile(r"[^\t\x20-\x7e]")
UNDONE = ("gzip", "deflate", "br", "zstd")  # the gateway's server has decompressed these already
# Names of output limits: the documented ones of each endpoint, then all known ones.
OUTPUT_LIMITS = {
    CHAT: ("max_completion_tokens", "max_tokens"),
    RESPONSES: ("max_output_tokens",),
    MESSAGES: ("max_tokens",),
    GENERATE: ("maxOutputTokens", "max_output_tokens"),
}
ALL_LIMITS = (
    *("max_output_tokens", "max_completion_tokens", "max_tokens", "maxOutputTokens"),
    *("max_new_tokens", "max_tokens_to_sample", "n_predict", "num_predict", "budget_tokens"),
)
COPIES = ("n", "best_of", "candidateCount", "candidate_count")
NESTED = ("generationConfig", "generation_config", "thinking", "reasoning", "options")
CHARACTERS_PER_TOKEN = 4
LONGEST_ANSWER = 128_000  # assumed output tokens of a request without a limit
MOST_COPIES = 128
MOST_COUNTED = 1_000_000_000
LARGEST_CONTEXT = 1_000_000  # input tokens that a hosted tool can cause
WRAPPING = 64  # tokens that a vendor adds to a request


def find_endpoint_kind(wire: str, method: str, path: str) -> str | None:
    """Return the kind of request; None if it is not forwarded."""
    # Decode once. A path that is still encoded matches no pattern.
    plain = unquote(path)
    for verb, pattern, kind in _ENDPOINTS[wire]:
        if verb == method and pattern.fullmatch(plain):
            return kind
    return None


def read_token(headers: Mapping[str, str], query: str) -> str:
    """Return the token of a request from any place where vendors' clients put a key."""
    bearer = headers.get("authorization", "")
    if bearer[:7].lower() == "bearer ":
        return bearer[7:].strip()
    for name in KEY_HEADERS[1:]:
        if value := headers.get(name, ""):
            return value.strip()
    return dict(parse_qsl(query)).get("key", "")


def build_url(provider: Provider, path: str, query: str) -> str:
    """Return the provider's URL for a path, with the allowed query parameters."""
    if provider.wire == OPENAI:
        path = path.removeprefix("/v1")
    kept = [part for part in query.split("&") if part.split("=")[0] in QUERY_PASSED_ON]
    return provider.base_url + path + ("?" + "&".join(kept) if kept else "")


def build_request_headers(
    headers: Iterable[tuple[str, str]], provider: Provider, key: str | None
) -> list[tuple[str, str]]:
    """Return the allowed headers, with the provider's key in place of the child's token."""
    kept = []
    for name, value in headers:
        lowered = name.lower()
        # The usage meter must be able to decompress the answer.
        if lowered == "accept-encoding":
            value = "gzip" if "gzip" in value.lower() else "identity"
        undone = lowered == "content-encoding" and value.lower() in UNDONE
        known = lowered in PASSED_ON or lowered.startswith(PASSED_ON_FROM)
        if known and not undone:
            kept.append((name, value))
    # An idle connection would occupy one of the few threads of the local model's server.
    if provider.local:
        kept.append(("Connection", "close"))
    return kept + build_authorization(provider.wire, key)


def build_authorization(wire: str, key: str | None) -> list[tuple[str, str]]:
    if key is None:
        return []
    if wire == ANTHROPIC:
        return [("x-api-key", key)]
    return [("x-goog-api-key", key)] if wire == GEMINI else [("Authorization", f"Bearer {key}")]


def filter_response_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    # Bytes outside of ASCII have no defined encoding, and aiohttp refuses some of them.
    return [
        (name, _NOT_PLAIN.sub("?", value))
        for name, value in headers
        if name.lower() not in OF_ONE_CONNECTION
    ]


def format_refusal(wire: str, status: int, code: str, message: str) -> bytes:
    """Return an error body in the vendor's format, so that its clients can show it."""
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
class RequestSummary:
    """Model, size and features of a request, known before it is sent."""

    model: str = ""
    models: tuple[str, ...] = ()  # all models that it names
    input_tokens: int = 0  # estimate
    most_input_tokens: int = 0  # upper bound: a token has at least one character
    most_output_tokens: int = LONGEST_ANSWER
    features: Mapping[str, str] = field(default_factory=dict)  # see request_features
    unreadable: str = ""  # why the request cannot be interpreted

    @property
    def readable(self) -> bool:
        return not self.unreadable


def describe(wire: str, path: str, body: bytes) -> RequestSummary:
    """Summarise a request; one that cannot be read gets the reason in `unreadable`.

    Raises:
        DocumentTooLarge: a large request exceeds a limit of the outline.
    """
    unreadable = ""
    document = {}
    features = {}
    text, characters = "", 0
    try:
        if len(body) > LARGE:
            text, characters = build_outline(body)
        else:
            text = body.decode()
        document = parse(text)
        features = find_features(wire, path, document)
    except UnknownShape as where:
        unreadable = f"{where} is not in the documented format"
    except UnicodeDecodeError:
        unreadable = "it is not UTF-8"
    except RecursionError:
        unreadable = "it is nested too deeply"
    except InvalidDocument as why:
        unreadable = str(why)
    if len(body) <= LARGE:
        characters = _count_characters(document)
    model = _find_model(wire, path, document)
    most_input = characters + WRAPPING
    return RequestSummary(
        model=model,
        models=(model, *_list_more_models(wire, document)),
        input_tokens=estimate_tokens(characters),
        most_input_tokens=max(most_input, LARGEST_CONTEXT) if features else most_input,
        most_output_tokens=_compute_output_limit(_find_kind(wire, path), document),
        features=features,
        unreadable=unreadable,
    )


def _find_kind(wire: str, path: str) -> str:
    if wire == OPENAI:
        return RESPONSES if path.endswith("/responses") else CHAT
    return MESSAGES if wire == ANTHROPIC else GENERATE


def _find_model(wire: str, path: str, document: dict[str, Any]) -> str:
    if wire == GEMINI:
        return unquote(path).rpartition("/")[2].partition(":")[0][:200]
    return str(document.get("model") or "")[:200]


def _list_more_models(wire: str, document: dict[str, Any]) -> Iterator[str]:
    """Yield the models that a Google request names in its body, besides the one in its path."""
    if wire != GEMINI:
        return
    inner = document.get("requests")
    nested = [document.get(name) for name in ("generateContentRequest", "generate_content_request")]
    for each in [document, *nested, *(inner if isinstance(inner, list) else [])]:
        if isinstance(each, dict) and each.get("model"):
            yield str(each["model"])[:200]


def _compute_output_limit(kind: str, document: dict[str, Any]) -> int:
    """Return the most output tokens that a request allows.

    A server may read any of the known limits, so the largest one counts. Without a documented
    limit of this endpoint, the limit is the model's.
    """
    places = [document, *(document.get(name) for name in NESTED)]
    known = [place for place in places if isinstance(place, dict)]
    limits = [place[name] for place in known for name in ALL_LIMITS if _is_set(place.get(name))]
    copies = [place[name] for place in known for name in COPIES if _is_set(place.get(name))]
    most = max((_count(each, LONGEST_ANSWER) for each in limits), default=LONGEST_ANSWER)
    own = OUTPUT_LIMITS.get(kind, ())
    if not any(_is_set(place.get(name)) for place in known for name in own):
        most = max(most, LONGEST_ANSWER)
    return most * max((_count(each, MOST_COPIES) for each in copies), default=1)


def _is_set(value: object) -> bool:
    return value is not None


def _count(value: object, unclear: int) -> int:
    """Return a number as lenient servers read it; `unclear` if it is not a number above 0."""
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 1:
        return unclear
    return int(min(value, MOST_COUNTED))


def estimate_tokens(characters: int) -> int:
    return -(-characters // CHARACTERS_PER_TOKEN)


def _count_characters(document: object) -> int:
    """Return the number of characters in all strings; encoded media counts little."""
    # A loop instead of recursion: the depth of the document is the child's choice.
    unseen = [document]
    found = 0
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
