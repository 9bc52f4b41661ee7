"""Model providers: built-in ones, and those that a configuration defines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from retinue.core.contract import Contract
from retinue.core.staffing import ModelBackend
from retinue.core.task_config import TaskConfig
from retinue.gateway.vendors import VENDORS, find_vendor
from retinue.gateway.vendors.base import Vendor
from retinue.gateway.vendors.openai import OpenAI

LOCAL = "local"
EMBEDDING = "embed"  # in the names of models that cannot answer


@dataclass(frozen=True, kw_only=True)
class Provider:
    """Address, wire format and key variables of one provider."""

    name: str
    wire: str
    base_url: str
    key_variables: tuple[str, ...] = ()  # empty: it needs no key
    priced_as: str = ""  # its name in the price list
    model: str = ""  # the configured model, if any
    local: bool = False  # the local model, whose address is known only while it runs

    def read_key(self, environment: Mapping[str, str]) -> str | None:
        """Return the key; None if it is unset.

        It is read for each request and never stored.
        """
        found = (environment.get(name, "").strip() for name in self.key_variables)
        return next(filter(None, found), None)

    def find_missing_variable(self, environment: Mapping[str, str]) -> str:
        """Return the name of the unset key variable; empty if none is missing."""
        wanted = self.key_variables and self.read_key(environment) is None
        return " or ".join(self.key_variables) if wanted else ""

    @property
    def vendor(self) -> Vendor:
        """The vendor whose API the provider has."""
        return find_vendor(self.wire)

    @property
    def place(self) -> tuple[str, str]:
        """Identity of the server: a name may mean different servers in different tasks."""
        return self.name, self.base_url

    @property
    def free(self) -> bool:
        """Whether requests cost nothing: true for a server that needs no key."""
        return not self.key_variables


def _make_vendor_provider(vendor: Vendor) -> Provider:
    return Provider(
        name=vendor.name,
        wire=vendor.name,
        base_url=vendor.base_url,
        key_variables=vendor.key_variables,
        priced_as=vendor.priced_as,
    )


def _make_hosted(name: str, url: str, variable: str, priced_as: str = "") -> Provider:
    return Provider(
        name=name,
        wire=OpenAI.name,
        base_url=url,
        key_variables=(variable,),
        priced_as=priced_as or name,
    )


def _make_self_hosted(name: str, port: int) -> Provider:
    return Provider(name=name, wire=OpenAI.name, base_url=f"http://127.0.0.1:{port}/v1")


BUILT_IN: dict[str, Provider] = {
    each.name: each
    for each in (
        *map(_make_vendor_provider, VENDORS.values()),
        _make_hosted("cerebras", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
        _make_hosted("deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
        _make_hosted("fireworks", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
        _make_hosted("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
        _make_hosted("mistral", "https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
        _make_hosted("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
        _make_hosted("together", "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
        _make_hosted("xai", "https://api.x.ai/v1", "XAI_API_KEY", "x-ai"),
        _make_self_hosted("ollama", 11434),
        _make_self_hosted("lmstudio", 1234),
        _make_self_hosted("vllm", 8000),
        _make_self_hosted("llamacpp", 8080),
    )
}


def resolve_provider(backend: ModelBackend) -> Provider:
    """Return the provider of a backend, with the changes from its configuration."""
    if backend.type == LOCAL:
        return Provider(name=LOCAL, wire=OpenAI.name, base_url="", model=backend.model, local=True)
    url = _strip_version(backend.base_url, backend.type)
    known = BUILT_IN.get(backend.type) or _find_by_url(url)
    if known is None:
        found = Provider(name=backend.name, wire=OpenAI.name, base_url=url)
    elif url and url != known.base_url:
        found = replace(known, name=backend.name, base_url=url)
    else:
        found = known
    # A different key is a different account, so the provider takes the backend's name.
    if backend.api_key_env:
        same = backend.api_key_env in found.key_variables
        name = found.name if same else backend.name
        found = replace(found, name=name, key_variables=(backend.api_key_env,))
    return replace(found, model=backend.model)


def build_routes(backends: Sequence[ModelBackend]) -> dict[str, Provider]:
    """Map the first path segment of a request to its provider.

    Segments are wire formats, providers and backends. A wire format maps to the first provider
    that speaks it.
    """
    found: dict[str, Provider] = {}
    for backend in backends:
        provider = resolve_provider(backend)
        for name in (provider.wire, provider.name, backend.name):
            found.setdefault(name, provider)
    return found


def _find_by_url(url: str) -> Provider | None:
    return next((each for each in BUILT_IN.values() if url and each.base_url == url), None)


def _strip_version(url: str, kind: str) -> str:
    """Remove the version suffix: requests of this wire format contain it in their path."""
    return url.rstrip("/").removesuffix(find_vendor(kind).url_version)


def build_environment(address: str, token: str) -> dict[str, str]:
    """Return the variables with which vendors' clients find the gateway by themselves."""
    found = {"RETINUE_GATEWAY": address, "RETINUE_GATEWAY_TOKEN": token}
    for vendor in VENDORS.values():
        found |= vendor.build_environment(address, token)
    return found


def list_reachable(contract: Contract, config: TaskConfig) -> tuple[ModelBackend, ...]:
    """Return the backends that an attempt may reach, each with the model that it may ask."""
    if contract.team is None:
        return config.backends
    known = {each.name: each for each in config.agent_providers}
    added = [
        replace(known[member.route], model=member.model)
        for member in contract.team.members
        if member.agent is not None and member.route in known
    ]
    return (*config.reachable, *added)
