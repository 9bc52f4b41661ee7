"""Errors while the local model is loaded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from retinue.gateway.local_model import model_server


@pytest.mark.parametrize(
    ("fault", "remedy"),
    [
        ("libgomp.so.1: cannot open shared object file: No such file or directory", "libgomp1"),
        ("No module named 'xllamacpp'", "retinue model install"),
    ],
)
def test_a_load_error_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str, remedy: str
) -> None:
    # A module that fails like the real library, found first on the path.
    (tmp_path / "xllamacpp.py").write_text(f"raise ImportError({fault!r})")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "xllamacpp", raising=False)
    monkeypatch.setattr(model_server, "intact", lambda path: True)
    engine, told = model_server.load(tmp_path / "weights")
    assert engine is None
    assert fault in told["error"]
    assert remedy in told["error"].partition("; ")[2]
