"""The embedded model's lead splits a request by a rule."""

from __future__ import annotations

import pytest

from retinue.team.models.local_backend import split_request


@pytest.mark.parametrize(
    ("request_", "parts"),
    [
        (
            "Write a short note about rivers and one about mountains",
            ["Write a short note about rivers", "Write a short note about mountains"],
        ),
        (
            "Write a note about rivers, lakes and mountains.",
            [f"Write a note about {each}" for each in ("rivers", "lakes", "mountains")],
        ),
        (
            "Write a poem about tea; write a letter to a friend",
            ["Write a poem about tea", "write a letter to a friend"],
        ),
        (
            "Explain recursion",
            [
                "Write an introduction for: Explain recursion",
                "Write an example for: Explain recursion",
            ],
        ),
    ],
)
def test_a_request_is_split_into_the_parts_that_it_names(request_: str, parts: list[str]) -> None:
    assert split_request(request_) == parts
