"""Where nobody named a model: the first provider with a key, else the local one."""

from __future__ import annotations

from retinue.domain.defaults import LOCAL_MODEL, USUAL, default_backends
from retinue.gateway.local.weights import SMOLLM2
from retinue.gateway.providers import BUILT_IN, provider_of


def test_without_a_key_the_local_model_answers() -> None:
    (backend,) = default_backends({"PATH": "/bin", "OPENAI_API_KEY": "  "})
    assert (backend.type, backend.model) == ("local", LOCAL_MODEL)
    assert provider_of(backend).local


def test_the_first_provider_with_a_key_answers_and_the_key_stays_where_it_is() -> None:
    (backend,) = default_backends({"GEMINI_API_KEY": "g", "OPENAI_API_KEY": "sk-secret"})
    assert (backend.type, backend.api_key_env) == ("openai", "OPENAI_API_KEY")
    assert "sk-secret" not in repr(backend)


def test_the_defaults_are_known_to_the_gateway() -> None:
    assert all(variable in BUILT_IN[kind].key_variables for variable, (kind, _) in USUAL.items())
    assert SMOLLM2.name == LOCAL_MODEL
