"""Default models: the first provider with a key, else the local model."""

from __future__ import annotations

from retinue.core.default_models import KEY_VARIABLES, LOCAL_MODEL, select_default_backends
from retinue.gateway.local_model.weights import SMOLLM2
from retinue.gateway.providers import BUILT_IN, resolve_provider


def test_without_a_key_the_local_model_is_used() -> None:
    (backend,) = select_default_backends({"PATH": "/bin", "OPENAI_API_KEY": "  "})
    assert (backend.type, backend.model) == ("local", LOCAL_MODEL)
    assert resolve_provider(backend).local


def test_the_first_provider_with_a_key_is_used_and_the_key_is_not_stored() -> None:
    (backend,) = select_default_backends({"GEMINI_API_KEY": "g", "OPENAI_API_KEY": "sk-secret"})
    assert (backend.type, backend.api_key_env) == ("openai", "OPENAI_API_KEY")
    assert "sk-secret" not in repr(backend)


def test_the_defaults_are_known_to_the_gateway() -> None:
    assert all(
        variable in BUILT_IN[kind].key_variables for variable, (kind, _) in KEY_VARIABLES.items()
    )
    assert SMOLLM2.name == LOCAL_MODEL
