"""The kinds of values that people write into a configuration, each with its own complaint."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator

from retinue.domain.ids import is_id
from retinue.domain.policy import DURATION, is_duration
from retinue.wire.forms.refusal import expected

_COUNT_LIMIT = 1_000_000_000_000
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_URL = re.compile(r"https?://[^\s/@]+(?:/\S*)?")
_NETWORK = {False: "off", True: "on"}  # YAML 1.1 readers take off and on for truth values


def _duration(value: object) -> object:
    if not is_duration(value):
        raise expected(DURATION)
    return value


def _amount(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise expected("a number above 0")
    if not 0 < value <= _COUNT_LIMIT:  # NaN is neither
        raise expected("a number above 0")
    return value


def _count(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _COUNT_LIMIT:
        raise expected("a whole number above 0")
    return value


def _pair(value: object) -> object:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise expected("a list of two durations in seconds, after SIGINT and after SIGTERM")
    return tuple(value)


def _word(value: object) -> object:
    if not isinstance(value, str) or not value or "\0" in value:
        raise expected("a text that is not empty")
    return value


def _variable(value: object) -> object:
    if not isinstance(value, str) or not _VARIABLE.fullmatch(value):
        raise expected("the name of an environment variable, never a key itself")
    return value


def _url(value: object) -> object:
    if not isinstance(value, str) or not _URL.fullmatch(value):
        raise expected("an http or https address without credentials")
    return value


def _name(value: object) -> object:
    if not isinstance(value, str) or not is_id(value):
        raise expected("an id: 1 to 64 letters, digits, '_' or '-', no '_' or '-' first")
    return value


def _network(value: object) -> object:
    return _NETWORK[value] if isinstance(value, bool) else value


Duration = Annotated[float, BeforeValidator(_duration)]
Pair = Annotated[tuple[Duration, Duration], BeforeValidator(_pair)]
Amount = Annotated[float, BeforeValidator(_amount)]
Count = Annotated[int, BeforeValidator(_count)]
Word = Annotated[str, BeforeValidator(_word)]
Name = Annotated[str, BeforeValidator(_name)]
Variable = Annotated[str, BeforeValidator(_variable)]
Address = Annotated[str, BeforeValidator(_url)]
Network = Annotated[Literal["off", "models", "on"], BeforeValidator(_network)]
