"""Location and integrity of the local model's weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.core.errors import BadInput
from retinue.gateway.local_model.weights import SMOLLM2, find_models_folder, intact, missing


def test_the_models_folder_follows_the_environment() -> None:
    home = find_models_folder({})
    assert home == Path.home() / ".local" / "share" / "retinue" / "models"
    assert find_models_folder({"XDG_DATA_HOME": "/data"}) == Path("/data/retinue/models")
    assert find_models_folder({"XDG_DATA_HOME": "relative"}) == home
    assert find_models_folder({"RETINUE_MODELS": "/m/../n", "XDG_DATA_HOME": "/data"}) == Path("/n")
    with pytest.raises(BadInput, match="RETINUE_MODELS"):
        find_models_folder({"RETINUE_MODELS": "models"})


def test_weights_with_a_wrong_size_or_hash_are_damaged(tmp_path: Path) -> None:
    assert "no weights" in str(missing(tmp_path))
    path = tmp_path / SMOLLM2.file
    path.write_bytes(b"short")
    assert "is damaged" in str(missing(tmp_path))
    assert not intact(path)
    # The right size with the wrong content: only the hash can tell.
    with path.open("r+b") as file:
        file.truncate(SMOLLM2.size)
    assert not intact(path)
