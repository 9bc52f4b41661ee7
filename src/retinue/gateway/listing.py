"""Which providers there are, and whether they can be reached: tried, not guessed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from retinue.domain.staffing import ModelBackend
from retinue.gateway import wires
from retinue.gateway.providers import (
    ANTHROPIC,
    BUILT_IN,
    GEMINI,
    LOCAL,
    Provider,
    provider_of,
)

if TYPE_CHECKING:
    from retinue.gateway.host import Host
    from retinue.gateway.local.lease import LocalModel

SECONDS = 4.0
MOST_MODELS = 200
LISTS = {ANTHROPIC: "/v1/models", GEMINI: "/v1beta/models"}


def providers(backends: Sequence[ModelBackend]) -> list[tuple[Provider, bool]]:
    """Everyone there is, those that were configured first and marked."""
    mine = {each.name: each for each in map(provider_of, backends)}
    local = provider_of(ModelBackend(name=LOCAL, type=LOCAL))
    others = [each for each in (local, *BUILT_IN.values()) if each.name not in mine]
    return [(each, True) for each in mine.values()] + [(each, False) for each in others]


async def survey(
    host: Host, backends: Sequence[ModelBackend], environment: Mapping[str, str]
) -> list[dict[str, Any]]:
    """One row for each provider; those that could be asked have been."""
    return list(
        await asyncio.gather(
            *(_row(host, each, mine, environment) for each, mine in providers(backends))
        )
    )


async def _row(
    host: Host, provider: Provider, mine: bool, environment: Mapping[str, str]
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "provider": provider.name,
        "wire": provider.wire,
        "base_url": provider.base_url,
        "key_variable": " or ".join(provider.key_variables) or None,
        "configured": mine,
        "ok": False,
        "models": [],
    }
    if provider.model:
        row["model"] = provider.model
    if provider.local:
        return row | _local(host.local)
    key = provider.key(environment)
    if key is None and provider.key_variables:
        return row | {"detail": f"{' or '.join(provider.key_variables)} is not set"}
    url = provider.base_url + LISTS.get(provider.wire, "/models")
    headers = wires.authorization(provider.wire, key)
    if provider.wire == ANTHROPIC:
        headers.append(("anthropic-version", "2023-06-01"))
    answer, why = await host.upstream.look(url, headers, SECONDS)
    if why:
        return row | {"detail": why}
    models = _names(answer)
    return row | {"ok": True, "models": models, "detail": f"reachable, {len(models)} models"}


def _local(local: LocalModel) -> dict[str, Any]:
    """Nothing is started for this: it takes a good part of a gigabyte."""
    if why := local.missing():
        return {"detail": why}
    detail = "installed, and runs" if local.runs() else "installed, starts when it is asked"
    return {"ok": True, "models": [local.name], "detail": detail}


def _names(body: bytes) -> list[str]:
    try:
        document = json.loads(body)
        found = document.get("data") or document.get("models") or []
        names = [str(each.get("id") or each.get("name", "")) for each in found]
    except (ValueError, AttributeError, TypeError):
        return []
    return [name.removeprefix("models/") for name in names if name][:MOST_MODELS]
