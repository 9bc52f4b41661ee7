"""What `--quota` of a node takes."""

from __future__ import annotations

from typing import Any, cast

import pytest

from retinue.cli.cluster_commands import parse_quotas
from retinue.core.errors import BadInput


def parse(*given: str) -> dict[str, int]:
    return parse_quotas(cast(Any, None), cast(Any, None), given)


def test_a_number_is_for_each_steward_and_one_with_an_id_for_that() -> None:
    assert parse("4", "a1b2=8") == {"": 4, "a1b2": 8}


@pytest.mark.parametrize(
    "given", ["0", "", "x", "a=", "a=0", "A=1", "-1", "²", "9" * 5000, "a=b=1"]
)
def test_anything_else_is_refused(given: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse(given)
    assert refused.value.code == "invalid_quota"
