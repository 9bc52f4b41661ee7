"""Policy that decides which requests, headers and parameters of a child reach a provider.

With the network `models`, a child may ask the models that the configuration names. It may not use
features with which the provider acts on its behalf; see vendors/request_features.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from urllib.parse import parse_qsl

from retinue.core import events
from retinue.core.budget import Budget
from retinue.core.default_models import get_model
from retinue.core.events import Event
from retinue.core.safe_text import shorten
from retinue.core.staffing import ModelBackend
from retinue.core.subagent import Subagent
from retinue.core.task_config import ModelTerms
from retinue.gateway.providers import Provider, resolve_provider
from retinue.gateway.request_summary import RequestSummary
from retinue.gateway.vendors.base import Headers
from retinue.gateway.vendors.request_features import BACKGROUND, WEB_SEARCH

MOST_RECORDED = 16  # recorded refusals in one attempt, one for each subject
ANY_MODEL = "*"

_RELEASE = re.compile(r"-(?:\d{8}|\d{4}-\d{2}-\d{2}|latest)\Z")  # date suffix of a model name

# Codex offers its model one hosted search in every request, whatever its configuration says.
_CODEX = "codex"
_SEARCH = b'"web_search"'
_TOOL_START = re.compile(rb'(,\s*)?\{"type"\s*:\s*\Z')  # of a tool, up to its type
_COMMA = re.compile(rb"\s*,")
_LONGEST_START = 64  # bytes
_LONGEST_TOOL = 4096
# A body is up to 64 MB of a child's choice and is searched on the event loop.
_MOST_STRIPPED = 4  # each one copies the body
_MOST_LOOKED_AT = 1000  # occurrences of the word, which may be the name of a client's own tool


@dataclass(frozen=True, kw_only=True)
class PolicyViolation:
    """Reason for refusing a request."""

    status: int
    code: str
    subject: str  # the feature or the model
    message: str


@dataclass(frozen=True, kw_only=True)
class RequestPolicy:
    """Rules for the requests of one child."""

    restricted: bool = False  # the network is `models`
    metered: bool = False  # the contract has a budget
    allowed: frozenset[str] = frozenset()  # names of allowed features
    models: Mapping[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)

    def find_violation(self, provider: Provider, summary: RequestSummary) -> PolicyViolation | None:
        """Return why the request is refused; None if it may pass."""
        # The answer of a background request is fetched later, so its tokens cannot be counted.
        if self.metered and BACKGROUND in summary.features:
            return _refuse_unmetered()
        if not self.restricted:
            return None
        # A body that the gateway cannot parse could mean something else to the vendor's parser.
        if not summary.readable:
            return _refuse_unreadable(summary.unreadable)
        for feature, what in summary.features.items():
            if self.is_forbidden(feature):
                return _refuse_hosted(feature, what)
        for model in summary.models:
            if not provider.local and not self._is_model_allowed(provider, model):
                return _refuse_unnamed(provider, model)
        return None

    def is_forbidden(self, feature: str) -> bool:
        return self.restricted and feature not in self.allowed

    def _is_model_allowed(self, provider: Provider, model: str) -> bool:
        name = _normalize_model(model)
        if not name and provider.free:
            return True  # a self-hosted server may serve a single model without a name
        # A configured name also allows its dated releases.
        undated = _RELEASE.sub("", name)
        for pattern in self.models.get(_get_account_key(provider), ()):
            if fnmatchcase(name, pattern) or undated == pattern:
                return True
        return any(fnmatchcase(name, each) for each in provider.vendor.helper_models)


def build_policy(
    network: str, budget: Budget, backends: Sequence[ModelBackend], terms: ModelTerms
) -> RequestPolicy:
    """Return the policy for a child from its network, budget and backends."""
    configured: dict[tuple[str, ...], list[str]] = {}
    for backend in backends:
        model = get_model(backend) or ANY_MODEL
        configured.setdefault(_get_account_key(resolve_provider(backend)), []).append(
            _normalize_model(model)
        )
    more = [_normalize_model(model) for model in terms.models]
    return RequestPolicy(
        restricted=network == "models",
        metered=budget.limited,
        allowed=frozenset(terms.allow_hosted),
        models={account: (*models, *more) for account, models in configured.items()},
    )


def strip_hosted_search(headers: Iterable[tuple[str, str]], body: bytes) -> bytes:
    """Remove the hosted search from a request of Codex; return any other body unchanged.

    This is a convenience, not a check: the caller must apply the policy to the returned body.
    """
    if not any(name.lower() == "originator" and _CODEX in value for name, value in headers):
        return body
    at = stripped = 0
    for _ in range(_MOST_LOOKED_AT):
        at = body.find(_SEARCH, at)
        if at < 0 or stripped == _MOST_STRIPPED:
            break
        before = body[max(0, at - _LONGEST_START) : at]
        if (found := _TOOL_START.search(before)) is None:
            at += len(_SEARCH)
            continue
        comma = found[1] or b""
        start = at - len(found[0]) + len(comma)
        text = body[start : start + _LONGEST_TOOL].decode("utf-8", "replace")
        try:
            _, length = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            break
        # Remove the comma before the tool, or the one after it if the tool is first in its list.
        end = start + len(text[:length].encode())
        if comma:
            start -= len(comma)
        elif following := _COMMA.match(body, end):
            end = following.end()
        body = body[:start] + body[end:]
        at = start
        stripped += 1
    return body


def make_denial_event(
    subagent: Subagent, attempt: int, provider: Provider, subject: str, why: str
) -> Event:
    """Return the event for a refused request, or for a tool removed from one."""
    return Event(
        type=events.REQUEST_DENIED,
        subagent=subagent.id,
        attempt=attempt,
        summary=shorten(f"{subagent.id} may not ask {provider.name} for {subject}"),
        payload={
            "member": subagent.id,
            "provider": provider.name,
            "subject": shorten(subject, 80),
            "reason": shorten(why, 400),
        },
    )


SEARCH_LEFT_OUT = f"the tool {WEB_SEARCH!r}, which Codex adds to every request, was removed"


def _get_account_key(provider: Provider) -> tuple[str, ...]:
    """Return what identifies an account: server and key variables, whatever the backend's name."""
    return provider.base_url, *provider.key_variables


def _normalize_model(model: str) -> str:
    return model.removeprefix("models/").strip()


def _refuse_hosted(feature: str, what: str) -> PolicyViolation:
    message = (
        f"{what} is not allowed: with subagent_network 'models' a subagent may ask models, but not "
        "have the provider search, fetch, run or store anything. The configuration can allow it "
        f"with subagent_models: {{allow_hosted: [{feature}]}}"
    )
    return PolicyViolation(status=403, code="hosted_not_allowed", subject=feature, message=message)


def _refuse_unnamed(provider: Provider, model: str) -> PolicyViolation:
    if not model:
        message = f"this request names no model, so {provider.name} would choose one: name a model"
        return PolicyViolation(
            status=403, code="model_not_allowed", subject="no model", message=message
        )
    message = (
        f"the model {model[:80]!a} is not named for {provider.name} in the configuration of this "
        "task. Name it as the model of a backend, or allow it with subagent_models: "
        f"{{models: [{model[:80]!a}]}}"
    )
    return PolicyViolation(
        status=403, code="model_not_allowed", subject=model[:80], message=message
    )


def _refuse_unreadable(where: str) -> PolicyViolation:
    message = (
        f"this request cannot be checked: {where}. Send one JSON object in UTF-8, in the format "
        "that the vendor documents, without duplicate names"
    )
    return PolicyViolation(
        status=400, code="invalid_request", subject="invalid_request", message=message
    )


def _refuse_unmetered() -> PolicyViolation:
    message = (
        "a background response is not allowed for a subagent with a budget: its tokens could not "
        "be counted. Send the request without 'background'"
    )
    return PolicyViolation(
        status=403, code="hosted_not_allowed", subject=BACKGROUND, message=message
    )


# Allow-lists for the headers and query parameters that pass between children and providers.

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
