"""Allow-lists for the headers and query parameters that pass between children and providers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl

from retinue.gateway.providers import Provider
from retinue.gateway.vendors.base import Headers

KEY_HEADERS = ("authorization", "x-api-key", "x-goog-api-key")
# Headers that vendors' clients send. Others are dropped: they might select an account or a method.
_SENT = frozenset(
    {
        *("accept", "accept-encoding", "accept-language", "content-type", "content-encoding"),
        *("user-agent", "anthropic-version", "anthropic-beta", "openai-beta", "idempotency-key"),
        *("anthropic-dangerous-direct-browser-access", "x-app", "x-claude-code-session-id"),
        *("x-client-request-id", "x-request-id", "originator", "version", "session-id"),
        *("session_id", "thread-id", "conversation_id", "x-session-id", "x-session-affinity"),
        *("x-goog-api-client", "http-referer", "x-title"),
    }
)
_SENT_PREFIXES = ("x-stainless-", "x-codex-")
_SENT_QUERY = frozenset(
    {
        *("alt", "beta", "limit", "after", "after_id", "before_id", "pageSize", "pageToken"),
        *("order", "api-version", "client_version"),
    }
)
_DECOMPRESSED = ("gzip", "deflate", "br", "zstd")  # the gateway's server has undone these already
_OF_ONE_CONNECTION = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te"),
        *("trailer", "transfer-encoding", "upgrade", "host", "content-length", "expect"),
        *KEY_HEADERS,
    }
)
_NOT_ASCII = re.compile(r"[^\t\x20-\x7e]")


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
    kept = [part for part in query.split("&") if part.split("=")[0] in _SENT_QUERY]
    path = provider.vendor.to_provider_path(path)
    return provider.base_url + path + ("?" + "&".join(kept) if kept else "")


def build_request_headers(
    headers: Iterable[tuple[str, str]], provider: Provider, key: str | None
) -> Headers:
    """Return the allowed headers, with the provider's key in place of the child's token."""
    kept = []
    for name, value in headers:
        lowered = name.lower()
        # The usage meter must be able to decompress the answer.
        if lowered == "accept-encoding":
            value = "gzip" if "gzip" in value.lower() else "identity"
        undone = lowered == "content-encoding" and value.lower() in _DECOMPRESSED
        known = lowered in _SENT or lowered.startswith(_SENT_PREFIXES)
        if known and not undone:
            kept.append((name, value))
    # An idle connection would occupy one of the few threads of the local model's server.
    if provider.local:
        kept.append(("Connection", "close"))
    return kept if key is None else kept + provider.vendor.build_authorization(key)


def filter_response_headers(headers: Iterable[tuple[str, str]]) -> Headers:
    # Bytes outside of ASCII have no defined encoding, and aiohttp refuses some of them.
    return [
        (name, _NOT_ASCII.sub("?", value))
        for name, value in headers
        if name.lower() not in _OF_ONE_CONNECTION
    ]
