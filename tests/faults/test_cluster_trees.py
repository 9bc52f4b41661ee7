"""A plan on 20,000 files that runs on nodes leads to the same tree as one that runs here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster import Lab
from support.node_plans import CONFIGS, make_repository, run_plan

pytest.importorskip("nats")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path, lease_s=10.0)
    try:
        made.open()
        made.join("w1")
        made.join("w2")
        yield made
    finally:
        made.close()


@pytest.mark.timeout(400)
def test_a_plan_on_20000_files_leads_to_the_same_tree_as_here(lab: Lab) -> None:
    repository = make_repository(lab, folders=200, files=100)
    here = run_plan(lab, repository, "isolated", on_nodes=False)
    assert here != repository.git("rev-parse", "HEAD^{tree}")
    for mode in CONFIGS:
        assert run_plan(lab, repository, mode, on_nodes=True) == here, mode
