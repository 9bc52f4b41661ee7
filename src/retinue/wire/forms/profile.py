"""The front matter of SUBAGENT.md."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

from retinue.wire.forms.refusal import expected
from retinue.wire.forms.values import Name

MAX_DESCRIPTION = 4000
MAX_ITEM = 1000
MAX_ITEMS = 32


def _text(value: object, longest: int) -> object:
    if not isinstance(value, str) or not value.strip() or len(value) > longest:
        raise expected(f"a text of at most {longest} characters, and not a blank one")
    return value.strip()


def _description(value: object) -> object:
    return _text(value, MAX_DESCRIPTION)


def _item(value: object) -> object:
    return _text(value, MAX_ITEM)


def _items(value: object) -> object:
    if isinstance(value, list) and len(value) > MAX_ITEMS:
        raise expected(f"a list of at most {MAX_ITEMS}")
    return [] if value is None else value


_Items = Annotated[list[Annotated[str, BeforeValidator(_item)]], BeforeValidator(_items)]


class FrontMatter(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Name
    description: Annotated[str, BeforeValidator(_description)]
    skills: _Items = []
    expected_input: _Items = []
