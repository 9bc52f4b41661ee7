"""What `retinue hub start` refuses leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nats")
from retinue.cluster.hub_server import Hub
from retinue.core.errors import BadInput


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"cluster": "0.0.0.0:6222"}, "invalid_cluster"),
        ({"cluster": "0.0.0.0:6222", "routes": ["a:6222", "b:6222"]}, "invalid_cluster"),
        ({"listen": "0.0.0.0:²"}, "invalid_listen"),
        ({"listen": "0.0.0.0:" + "9" * 5000}, "invalid_listen"),
    ],
)
def test_a_refused_setting_leaves_neither_keys_nor_a_folder(
    tmp_path: Path, given: dict[str, Any], code: str
) -> None:
    with pytest.raises(BadInput) as refused:
        Hub(tmp_path / "hub").prepare(**given)

    assert refused.value.code == code
    assert not (tmp_path / "hub").exists()
