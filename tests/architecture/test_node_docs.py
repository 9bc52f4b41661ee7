"""Each check of more than one machine is listed, and the tests that it names exist."""

from __future__ import annotations

import re

from architecture.source import TOP

PAGE = TOP / "docs" / "reference" / "node-checks.md"
PROOF = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
BENCHMARK = "`./dev bench nodes`"
CHECKS = 38


def test_every_check_of_nodes_has_a_proof_that_exists_or_says_that_it_has_none() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if re.match(r"\| \d", line)]
    assert [int(row.split()[1]) for row in rows] == list(range(1, CHECKS + 1))
    proved = [row for row in rows if PROOF.search(row) or BENCHMARK in row]
    assert not [row for row in rows if row not in proved and "no test yet" not in row]
    missing = [
        f"{path}::{name}"
        for row in rows
        for path, name in PROOF.findall(row)
        if not (TOP / path).is_file() or f"def {name}(" not in (TOP / path).read_text()
    ]
    assert not missing
