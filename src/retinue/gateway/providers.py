"""Who answers: well-known providers, and those that a configuration names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from retinue.domain.staffing import ModelBackend

OPENAI, ANTHROPIC, GEMINI = "openai", "anthropic", "gemini"
LOCAL = "local"


@dataclass(frozen=True, kw_only=True)
class Provider:
    """Where requests of one wire format go, and the variables that may hold the key for it."""

    name: str
    wire: str
    base_url: str
    key_variables: tuple[str, ...] = ()  # none: it wants no key
    priced_as: str = ""  # how the price list calls it
    model: str = ""  # the one that was configured, where one was
    local: bool = False  # the model that runs here: its address is known once it runs

    def key(self, environment: Mapping[str, str]) -> str | None:
        """The key, read anew for each request and kept nowhere; None where it is not set."""
        found = (environment.get(name, "").strip() for name in self.key_variables)
        return next(filter(None, found), None)

    def lacks(self, environment: Mapping[str, str]) -> str:
        """The variable without which it cannot be asked, by name; nothing where it can be."""
        wanted = self.key_variables and self.key(environment) is None
        return " or ".join(self.key_variables) if wanted else ""

    @property
    def place(self) -> tuple[str, str]:
        """Whom one meets there: the same name may mean another server in another task."""
        return self.name, self.base_url

    @property
    def free(self) -> bool:
        """Whether nobody sends a bill: a server that wants no key."""
        return not self.key_variables


def _hosted(name: str, url: str, variable: str, priced_as: str = "") -> Provider:
    return Provider(
        name=name,
        wire=OPENAI,
        base_url=url,
        key_variables=(variable,),
        priced_as=priced_as or name,
    )


def _served(name: str, port: int) -> Provider:
    return Provider(name=name, wire=OPENAI, base_url=f"http://127.0.0.1:{port}/v1")


BUILT_IN: dict[str, Provider] = {
    each.name: each
    for each in (
        _hosted(OPENAI, "https://api.openai.com/v1", "OPENAI_API_KEY"),
        Provider(
            name=ANTHROPIC,
            wire=ANTHROPIC,
            base_url="https://api.anthropic.com",
            key_variables=("ANTHROPIC_API_KEY",),
            priced_as="anthropic",
        ),
        Provider(
            name=GEMINI,
            wire=GEMINI,
            base_url="https://generativelanguage.googleapis.com",
            key_variables=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
            priced_as="google",
        ),
        _hosted("cerebras", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
        _hosted("deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
        _hosted("fireworks", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
        _hosted("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
        _hosted("mistral", "https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
        _hosted("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
        _hosted("together", "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
        _hosted("xai", "https://api.x.ai/v1", "XAI_API_KEY", "x-ai"),
        _served("ollama", 11434),
        _served("lmstudio", 1234),
        _served("vllm", 8000),
        _served("llamacpp", 8080),
    )
}


def provider_of(backend: ModelBackend) -> Provider:
    """The provider that a backend means, with what its configuration changes."""
    if backend.type == LOCAL:
        return Provider(name=LOCAL, wire=OPENAI, base_url="", model=backend.model, local=True)
    url = _trimmed(backend.base_url, backend.type)
    known = BUILT_IN.get(backend.type) or _at(url)
    if known is None:
        found = Provider(name=backend.name, wire=OPENAI, base_url=url)
    elif url and url != known.base_url:
        found = replace(known, name=backend.name, base_url=url)
    else:
        found = known
    if backend.api_key_env:
        same = backend.api_key_env in found.key_variables
        name = found.name if same else backend.name
        found = replace(found, name=name, key_variables=(backend.api_key_env,))
    return replace(found, model=backend.model)


def routes(backends: Sequence[ModelBackend]) -> dict[str, Provider]:
    """Every name that a path may begin with: wire formats, providers, members.

    A wire format means the first provider that was named for it.
    """
    found: dict[str, Provider] = {}
    for backend in backends:
        provider = provider_of(backend)
        for name in (provider.wire, provider.name, backend.name):
            found.setdefault(name, provider)
    return found


def _at(url: str) -> Provider | None:
    return next((each for each in BUILT_IN.values() if url and each.base_url == url), None)


def _trimmed(url: str, kind: str) -> str:
    """Without the version that requests of this wire bring along themselves."""
    url = url.rstrip("/")
    version = {ANTHROPIC: "/v1", GEMINI: "/v1beta"}.get(kind)
    return url.removesuffix(version) if version else url
