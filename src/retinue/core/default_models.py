"""Default models: of each provider, and of a configuration that names no model."""

from __future__ import annotations

from collections.abc import Mapping

from retinue.core.staffing import ModelBackend

LOCAL = "local"
LOCAL_MODEL = "smollm2-135m-instruct"
LOCAL_NOTE = (
    "the local model has 135 million parameters: it demonstrates delegation, but its answers are "
    "not reliable"
)
NOT_SET = "is not set where the steward was started"
SET_IT = "set it, then 'retinue steward stop': the next command starts a new one"

# Variable -> (type, model). The first variable that is set decides.
KEY_VARIABLES = {
    "ANTHROPIC_API_KEY": ("anthropic", "claude-sonnet-5-5"),
    "OPENAI_API_KEY": ("openai", "gpt-5-mini"),
    "GEMINI_API_KEY": ("gemini", "gemini-2.5-flash"),
    "GOOGLE_API_KEY": ("gemini", "gemini-2.5-flash"),
}
DEFAULT_MODELS = {
    LOCAL: LOCAL_MODEL,
    **dict(KEY_VARIABLES.values()),
}  # default model by backend type


def get_model(backend: ModelBackend) -> str:
    """Return the backend's model, or the default of its type; empty if that has none."""
    return backend.model or DEFAULT_MODELS.get(backend.type, "")


def is_key_variable(name: str) -> bool:
    """Return whether a variable's name is that of a provider's API key."""
    return name.endswith("_API_KEY")


def select_default_backends(environment: Mapping[str, str]) -> tuple[ModelBackend, ...]:
    """Return the first provider whose API key is set; without any key, the local model.

    Used if the configuration names no backend. `environment` is the steward's. Only the names
    of variables are kept, never a key.
    """
    keyed = list_keyed_backends(environment)
    return keyed[:1] or (ModelBackend(name=LOCAL, type=LOCAL, model=LOCAL_MODEL),)


def list_keyed_backends(environment: Mapping[str, str]) -> tuple[ModelBackend, ...]:
    """Return every provider whose API key is set, one for each type."""
    found: dict[str, ModelBackend] = {}
    for variable, (kind, model) in KEY_VARIABLES.items():
        if environment.get(variable, "").strip():
            backend = ModelBackend(name=kind, type=kind, model=model, api_key_env=variable)
            found.setdefault(kind, backend)
    return tuple(found.values())


# Backend type -> the formats of requests that it understands, as `AgentProfile.wire` names them.
WIRES_BY_TYPE = {
    "anthropic": ("anthropic",),
    "openai": ("responses", "chat"),
    "gemini": ("gemini",),
    "chatcompletion": ("chat",),
    LOCAL: (),  # too small for a coding agent
}


def accepts_wire(backend: ModelBackend, wire: str) -> bool:
    return wire in WIRES_BY_TYPE.get(backend.type, ())
