"""Schema of the front matter of SUBAGENT.md.

Apart from `profile_document`, which imports it late: pydantic takes 0.1 s to import.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

from retinue.core.subagent_type import MAX_DESCRIPTION
from retinue.formats.schemas.validation_errors import Name, make_value_error

MAX_ITEM = 1000
MAX_ITEMS = 32


def _check_text(value: object, longest: int) -> object:
    if not isinstance(value, str) or not value.strip() or len(value) > longest:
        raise make_value_error(f"a text of 1 to {longest} characters that is not blank")
    return value.strip()


def _check_description(value: object) -> object:
    return _check_text(value, MAX_DESCRIPTION)


def _check_item(value: object) -> object:
    return _check_text(value, MAX_ITEM)


def _check_items(value: object) -> object:
    if isinstance(value, list) and len(value) > MAX_ITEMS:
        raise make_value_error(f"a list of at most {MAX_ITEMS}")
    return [] if value is None else value


_Items = Annotated[
    list[Annotated[str, BeforeValidator(_check_item)]], BeforeValidator(_check_items)
]


class FrontMatter(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Name
    description: Annotated[str, BeforeValidator(_check_description)]
    skills: _Items = []
    expected_input: _Items = []
