"""Members as people configure them."""

from __future__ import annotations

import pytest

from retinue.domain.errors import BadInput
from retinue.wire.config import parse_config


def member(name: str, model: str) -> dict[str, object]:
    return {"id": name, "backend": {"type": "openai", "model": model}}


def test_one_name_cannot_lead_to_two_models() -> None:
    pool = {"enabled": True, "agents": [member("judge", "other")]}
    coordination = {"coordination": {"subagent_orchestrator": pool}}
    document = {"agents": [member("judge", "one")], "orchestrator": coordination}
    with pytest.raises(BadInput, match="judge"):
        parse_config(document, where="here")


def test_one_name_may_stand_for_the_same_model_twice() -> None:
    pool = {"enabled": True, "agents": [member("judge", "one")]}
    coordination = {"coordination": {"subagent_orchestrator": pool}}
    document = {"agents": [member("judge", "one")], "orchestrator": coordination}
    assert parse_config(document, where="here").agents[0].id == "judge"


@pytest.mark.parametrize("name", ["temp", "snapshots"])
def test_nobody_is_named_like_a_folder_of_the_teams_own(name: str) -> None:
    with pytest.raises(BadInput, match=name):
        parse_config({"agents": [member("ada", "one"), member(name, "one")]}, where="here")
