"""Status of providers: each one with a key is asked for its list of models."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from retinue.core.staffing import ModelBackend, ModelServer
from retinue.gateway.providers import BUILT_IN, EMBEDDING, LOCAL, Provider, resolve_provider
from retinue.sockets import find_listening_users

if TYPE_CHECKING:
    from retinue.gateway.gateway_server import GatewayServer
    from retinue.gateway.local_model.model_client import LocalModel
    from retinue.gateway.upstream import Upstream

TIMEOUT_SECONDS = 4.0
LOCAL_SECONDS = 0.5  # a server of this machine answers or refuses at once
MOST_MODELS = 200
SELF_HOSTED = tuple(each for each in BUILT_IN.values() if not each.key_variables)
FIRST_PERSON = 1000  # smaller numbers of users are root and the system's services


async def find_local_servers(
    upstream: Upstream, providers: Sequence[Provider] = SELF_HOSTED
) -> list[ModelServer]:
    """Return those of the servers on this machine that list a model to talk to.

    No configuration names them, but prompts would be sent to them. So servers of other users are
    skipped.
    """
    providers = [each for each in providers if _is_trusted(each)]
    lists = await asyncio.gather(
        *(_list_models(upstream, each, None, LOCAL_SECONDS) for each in providers)
    )
    found = []
    for provider, (names, _) in zip(providers, lists, strict=True):
        # Some list what they have for searches, too.
        models = tuple(name for name in names if EMBEDDING not in name.lower())
        if models:
            found.append(ModelServer(name=provider.name, url=provider.base_url, models=models))
    return found


def _is_trusted(provider: Provider) -> bool:
    """Return whether this user or a service of the system listens at the provider's port."""
    port = urlsplit(provider.base_url).port
    users = find_listening_users(port) if port else set()
    return bool(users) and all(each < FIRST_PERSON or each == os.getuid() for each in users)


def list_providers(backends: Sequence[ModelBackend]) -> list[tuple[Provider, bool]]:
    """Return all providers with whether they are configured; configured ones come first."""
    configured = {each.name: each for each in map(resolve_provider, backends)}
    local = resolve_provider(ModelBackend(name=LOCAL, type=LOCAL))
    others = [each for each in (local, *BUILT_IN.values()) if each.name not in configured]
    return [(each, True) for each in configured.values()] + [(each, False) for each in others]


async def probe_providers(
    server: GatewayServer, backends: Sequence[ModelBackend], environment: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return one row for each provider; ask all that need no key or have one."""
    return list(
        await asyncio.gather(
            *(
                _build_row(server, each, configured, environment)
                for each, configured in list_providers(backends)
            )
        )
    )


async def _build_row(
    server: GatewayServer, provider: Provider, configured: bool, environment: Mapping[str, str]
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "provider": provider.name,
        "wire": provider.wire,
        "base_url": provider.base_url,
        "key_variable": " or ".join(provider.key_variables) or None,
        "configured": configured,
        "ok": False,
        "models": [],
    }
    if provider.model:
        row["model"] = provider.model
    if provider.local:
        return row | _describe_local(server.local)
    key = provider.read_key(environment)
    if key is None and provider.key_variables:
        return row | {"detail": f"{' or '.join(provider.key_variables)} is not set"}
    models, why = await _list_models(server.upstream, provider, key, TIMEOUT_SECONDS)
    if why:
        return row | {"detail": why}
    return row | {"ok": True, "models": models, "detail": f"reachable, {len(models)} models"}


async def _list_models(
    upstream: Upstream, provider: Provider, key: str | None, seconds: float
) -> tuple[list[str], str]:
    """Return the names of a provider's models and an empty text, or none and the reason."""
    url = provider.base_url + provider.vendor.models_path
    answer, why = await upstream.fetch(url, provider.vendor.build_list_headers(key), seconds)
    return ([], why) if why else (_parse_model_names(answer), "")


def _describe_local(local: LocalModel) -> dict[str, Any]:
    """Return the status of the local model without starting it."""
    # A start would load a good part of a gigabyte into memory.
    if why := local.find_problem():
        return {"detail": why}
    detail = "installed, running" if local.is_running() else "installed, starts on first request"
    return {"ok": True, "models": [local.name], "detail": detail}


def _parse_model_names(body: bytes) -> list[str]:
    try:
        document = json.loads(body)
        found = document.get("data") or document.get("models") or []
        names = [str(each.get("id") or each.get("name", "")) for each in found]
    except (ValueError, AttributeError, TypeError):
        return []
    return [name.removeprefix("models/") for name in names if name][:MOST_MODELS]
