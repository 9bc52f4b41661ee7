"""Status of providers: each one with a key is asked for its list of models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from retinue.core.staffing import ModelBackend
from retinue.gateway.providers import BUILT_IN, LOCAL, Provider, resolve_provider

if TYPE_CHECKING:
    from retinue.gateway.gateway_server import GatewayServer
    from retinue.gateway.local_model.model_client import LocalModel

TIMEOUT_SECONDS = 4.0
MOST_MODELS = 200


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
    url = provider.base_url + provider.vendor.models_path
    headers = provider.vendor.build_list_headers(key)
    answer, why = await server.upstream.fetch(url, headers, TIMEOUT_SECONDS)
    if why:
        return row | {"detail": why}
    models = _parse_model_names(answer)
    return row | {"ok": True, "models": models, "detail": f"reachable, {len(models)} models"}


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
