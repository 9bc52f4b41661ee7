"""Each promise about coding agents names a test, and that test exists."""

from __future__ import annotations

import re

from architecture.source import TOP
from architecture.test_security_docs import PROOF
from retinue.agents.profiles import PROFILES
from retinue.steward.agent_staffing import KEY_BY_WIRE

GUIDE = TOP / "docs" / "how-to" / "coding-agents.md"
PAGE = TOP / "docs" / "reference" / "agent-checks.md"


def test_every_test_of_the_page_exists() -> None:
    missing = [
        f"{path}::{name}"
        for path, name in PROOF.findall(PAGE.read_text())
        if not (TOP / path).is_file() or f"def {name}(" not in (TOP / path).read_text()
    ]
    assert not missing


def test_every_promise_has_a_test() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if re.match(r"\| \d", line)]
    assert [int(row.split("|")[1]) for row in rows] == list(range(1, 26))
    assert not [row for row in rows if not PROOF.search(row)]


def test_the_guide_names_version_key_login_and_masks_of_each_vendor() -> None:
    rows = GUIDE.read_text().partition("## Vendor by vendor")[2].splitlines()
    for profile in PROFILES:
        sources = [each.source for each in profile.credentials]
        cells = (
            profile.title,
            ", ".join(profile.tested),
            f"`{KEY_BY_WIRE[profile.wire]}`",
            ", ".join(f"`{each}`" for each in sources),
            ", ".join(f"`{each}`" for each in profile.masks) or "nothing",
        )
        assert f"| {' | '.join(cells)} |" in rows
