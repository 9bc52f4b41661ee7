"""Whether the local model can be used, and what is said when it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.domain.errors import BadInput
from retinue.gateway.local.weights import SMOLLM2, intact, missing, models_folder


def test_the_folder_is_the_users_own_unless_it_was_moved() -> None:
    home = models_folder({})
    assert home == Path.home() / ".local" / "share" / "retinue" / "models"
    assert models_folder({"XDG_DATA_HOME": "/data"}) == Path("/data/retinue/models")
    assert models_folder({"XDG_DATA_HOME": "relative"}) == home
    assert models_folder({"RETINUE_MODELS": "/m/../n", "XDG_DATA_HOME": "/data"}) == Path("/n")
    with pytest.raises(BadInput, match="RETINUE_MODELS"):
        models_folder({"RETINUE_MODELS": "models"})


def test_weights_of_another_size_or_with_another_byte_are_not_the_weights(tmp_path: Path) -> None:
    assert "no weights" in str(missing(tmp_path))
    path = tmp_path / SMOLLM2.file
    path.write_bytes(b"short")
    assert "is damaged" in str(missing(tmp_path))
    assert not intact(path)
    with path.open("r+b") as file:
        file.truncate(SMOLLM2.size)
    assert not intact(path)
