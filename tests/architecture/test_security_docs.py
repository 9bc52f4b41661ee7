"""Each line of the threat model names a test, and that test exists."""

from __future__ import annotations

import re

from architecture.source import TOP

PAGE = TOP / "docs" / "explanation" / "security.md"
PROOF = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def test_every_proof_in_the_threat_model_is_a_test() -> None:
    proofs = PROOF.findall(PAGE.read_text())
    assert len(proofs) > 30
    missing = [
        f"{path}::{name}"
        for path, name in proofs
        if not (TOP / path).is_file() or f"def {name}(" not in (TOP / path).read_text()
    ]
    assert not missing


def test_every_attempt_in_the_threat_model_has_a_proof() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.count(" | ") == 2]
    attempts = [row for row in rows if not row.startswith(("| it tries", "| they try"))]
    assert not [row for row in attempts if not PROOF.search(row)]
