"""Members in a configuration."""

from __future__ import annotations

import pytest

from retinue.core.errors import BadInput
from retinue.formats.config_document import parse_config


def member(name: str, model: str) -> dict[str, object]:
    return {"id": name, "backend": {"type": "openai", "model": model}}


def test_one_id_cannot_have_two_models() -> None:
    pool = {"enabled": True, "agents": [member("judge", "other")]}
    coordination = {"coordination": {"subagent_orchestrator": pool}}
    document = {"agents": [member("judge", "one")], "orchestrator": coordination}
    with pytest.raises(BadInput, match="judge"):
        parse_config(document, where="here")


def test_one_id_may_name_the_same_model_twice() -> None:
    pool = {"enabled": True, "agents": [member("judge", "one")]}
    coordination = {"coordination": {"subagent_orchestrator": pool}}
    document = {"agents": [member("judge", "one")], "orchestrator": coordination}
    assert parse_config(document, where="here").agents[0].id == "judge"


@pytest.mark.parametrize("name", ["temp", "snapshots"])
def test_no_member_has_the_name_of_a_team_folder(name: str) -> None:
    with pytest.raises(BadInput, match=name):
        parse_config({"agents": [member("ada", "one"), member(name, "one")]}, where="here")
