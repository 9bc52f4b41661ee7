"""The local model that cannot be loaded: what its user can do about it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from retinue.gateway.local import process


@pytest.mark.parametrize(
    ("fault", "remedy"),
    [
        ("libgomp.so.1: cannot open shared object file: No such file or directory", "libgomp1"),
        ("No module named 'xllamacpp'", "retinue model install"),
    ],
)
def test_a_library_of_the_system_is_no_matter_of_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str, remedy: str
) -> None:
    (tmp_path / "xllamacpp.py").write_text(f"raise ImportError({fault!r})")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "xllamacpp", raising=False)
    monkeypatch.setattr(process, "intact", lambda path: True)
    engine, told = process.load(tmp_path / "weights")
    assert engine is None
    assert fault in told["error"]
    assert remedy in told["error"].partition("; ")[2]
