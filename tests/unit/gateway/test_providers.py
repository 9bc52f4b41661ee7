"""Providers, and the routes to them."""

from __future__ import annotations

from retinue.core.staffing import ModelBackend
from retinue.gateway.providers import BUILT_IN, build_environment, build_routes, resolve_provider


def test_a_configured_server_is_a_provider_without_a_key() -> None:
    mine = ModelBackend(name="mine", type="chatcompletion", base_url="http://127.0.0.1:9/v1/")
    found = resolve_provider(mine)
    assert (found.name, found.free, found.base_url) == ("mine", True, "http://127.0.0.1:9/v1")


def test_the_address_of_a_built_in_provider_selects_it() -> None:
    url = BUILT_IN["groq"].base_url
    found = resolve_provider(ModelBackend(name="fast", type="chatcompletion", base_url=url))
    assert (found.name, found.key_variables) == ("groq", ("GROQ_API_KEY",))


def test_another_key_is_another_provider() -> None:
    found = resolve_provider(ModelBackend(name="team", type="openai", api_key_env="TEAM_KEY"))
    assert (found.name, found.key_variables) == ("team", ("TEAM_KEY",))
    assert found.read_key({"TEAM_KEY": " k\n", "OPENAI_API_KEY": "other"}) == "k"


def test_a_wire_format_means_the_first_provider_named_for_it() -> None:
    found = build_routes(
        [
            ModelBackend(name="a", type="chatcompletion", base_url="http://h/v1"),
            ModelBackend(name="b", type="openai"),
            ModelBackend(name="c", type="anthropic", base_url="https://proxy/v1"),
        ]
    )
    assert {name: each.base_url for name, each in found.items()} == {
        "openai": "http://h/v1",
        "a": "http://h/v1",
        "b": "https://api.openai.com/v1",
        "anthropic": "https://proxy",
        "c": "https://proxy",
    }


def test_one_name_at_two_addresses_is_two_providers() -> None:
    places = [f"http://127.0.0.1:{port}/v1" for port in (1, 2)]
    here, there = (
        resolve_provider(ModelBackend(name="cheap", type="chatcompletion", base_url=place))
        for place in places
    )
    assert here.name == there.name
    assert here.place != there.place


def test_a_member_named_local_is_not_the_local_model() -> None:
    backend = ModelBackend(name="local", type="openai", base_url="http://127.0.0.1:1/v1")
    assert not resolve_provider(backend).local


def test_the_environment_leads_vendors_clients_to_the_gateway() -> None:
    found = build_environment("http://h:1", "token")
    assert found == {
        "RETINUE_GATEWAY": "http://h:1",
        "RETINUE_GATEWAY_TOKEN": "token",
        "OPENAI_BASE_URL": "http://h:1/openai/v1",
        "OPENAI_API_KEY": "token",
        "ANTHROPIC_BASE_URL": "http://h:1/anthropic",
        "ANTHROPIC_API_KEY": "token",
        "GOOGLE_GEMINI_BASE_URL": "http://h:1/gemini",
        "GEMINI_API_KEY": "token",
    }
