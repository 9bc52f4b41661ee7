"""Shipped configurations are found by name, parse, and name models that exist."""

from __future__ import annotations

import pytest
from genai_prices import data

from retinue.configs import list_names, read_shipped
from retinue.core.errors import BadInput
from retinue.formats.config_document import build_task_section, parse_config, parse_task_config
from retinue.formats.schemas.config_schema import Config
from retinue.formats.yaml_document import load_yaml

NAMES = ("anthropic", "demo", "gemini", "local", "mixed", "openai")
PRICED_AS = {"openai": "openai", "anthropic": "anthropic", "gemini": "google"}


def config(name: str) -> Config:
    return parse_config(load_yaml(read_shipped(f"@{name}"), where=name), where=name)


def test_these_are_shipped() -> None:
    assert list_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_is_a_configuration_that_a_task_could_keep(name: str) -> None:
    document = load_yaml(read_shipped(f"@{name}"), where=name)
    assert config(name).orchestrator.coordination.enable_subagents
    assert parse_task_config(build_task_section(document), where=name).backends


@pytest.mark.parametrize("name", NAMES)
def test_each_names_models_that_exist_and_variables_that_hold_keys(name: str) -> None:
    document = load_yaml(read_shipped(f"@{name}"), where=name)
    known = {each.id: {model.id for model in each.models} for each in data.providers}
    for backend in parse_task_config(build_task_section(document), where=name).backends:
        if backend.type != "local":
            assert backend.model in known[PRICED_AS[backend.type]]
            assert backend.api_key_env == f"{backend.type.upper()}_API_KEY"


@pytest.mark.parametrize("name", NAMES)
def test_no_two_ways_to_a_model_share_a_name(name: str) -> None:
    document = load_yaml(read_shipped(f"@{name}"), where=name)
    ways = [
        each.name for each in parse_task_config(build_task_section(document), where=name).backends
    ]
    assert len(ways) == len(set(ways))


@pytest.mark.parametrize("name", ["demo", "local"])
def test_configurations_without_keys_use_only_the_local_model(name: str) -> None:
    assert {each.backend.type for each in config(name).agents} == {"local"}


def test_the_demonstration_does_not_wait_long_for_a_small_model() -> None:
    coordination = config("demo").orchestrator.coordination
    assert coordination.subagent_default_timeout <= 120
    assert coordination.subagent_min_timeout <= 10
    assert coordination.subagent_round_timeouts.initial_round_timeout_seconds is not None


@pytest.mark.parametrize(
    "named",
    [
        "@demo",
        "@demo.yaml",
        "@retinue/configs/demo.yaml",
        "@retinue/configs/features/demo.yaml",
        "@massgen/configs/features/subagent_demo.yaml",
    ],
)
def test_a_longer_path_is_found_by_its_last_name(named: str) -> None:
    assert read_shipped(named) == read_shipped("@demo")


@pytest.mark.parametrize("named", ["@", "@demos", "@../demo/..", "@__init__.py", "@demo/x"])
def test_an_unknown_name_is_refused_with_those_that_are_known(named: str) -> None:
    with pytest.raises(BadInput) as refused:
        read_shipped(named)
    assert refused.value.code == "unknown_config"
    assert refused.value.hint.startswith(
        "known: @anthropic, @demo, @gemini, @local, @mixed, @openai"
    )
