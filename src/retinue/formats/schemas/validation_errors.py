"""Validation errors in one sentence (full key, found, expected), and value types of the schemas."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from retinue.core.answer_schema import KNOWN, NOTES, UnusableSchema, require_usable_schema
from retinue.core.errors import BadInput
from retinue.core.ids import is_id
from retinue.core.task_config import DURATION, is_duration
from retinue.formats.yaml_document import Place

Model = TypeVar("Model", bound=BaseModel)

# Values of these keys are never shown: they may be secrets pasted into the wrong place.
UNSHOWN = {"api_key_env", "base_url", "env", "headers", "secrets", "url"}
_EXPECTED = {
    "bool_type": "true or false",
    "list_type": "a list",
    "model_type": "a mapping",
    "string_type": "a text",
}


def make_value_error(what: str) -> PydanticCustomError:
    """Return the error of a validator for one value; `what` describes valid values."""
    return PydanticCustomError("expected", "{what}", {"what": what})


def make_conflict_error(key: str, sentence: str) -> PydanticCustomError:
    """Return the error of a validator for a key that contradicts another one."""
    return PydanticCustomError("disagreement", "{sentence}", {"key": key, "sentence": sentence})


def require_distinct(names: Iterable[str], key: str, what: str) -> None:
    """Check in a validator that the names differ; case is ignored."""
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise make_conflict_error(key, f"two {what} are named {name!a}")
        seen.add(name.lower())


def validate_document(
    model: type[Model],
    document: object,
    *,
    where: str,
    under: Place = (),
    lines: Mapping[Place, int] | None = None,
) -> Model:
    """Validate the document.

    Args:
        under: place of the document in the file.
        lines: line of each place in the file.

    Raises:
        BadInput: the document is invalid. Unknown keys come first, with a similar known key.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        details = error.errors(include_url=False)
    # A misspelled key often causes the other errors, for example a missing one.
    unknown = [each for each in details if each["type"] == "extra_forbidden"]
    first = (unknown or details)[0]
    place = (*under, *first["loc"], *_find_conflicting_key(first))
    line = _find_line(place, lines or {})
    start = f"{where}: line {line}" if line else where
    if unknown:
        problem, hint = _format_unknown_key(model, first["loc"], under)
        raise BadInput(f"{start}: {problem}", code="unknown_key", hint=hint)
    raise BadInput(f"{start}: {_format_place(place)}: {_format_problem(first)}", code="bad_config")


def require_answer_schema(schema: Mapping[str, Any], where: str) -> None:
    """Check that every condition in the JSON schema of an answer can be checked.

    Raises:
        BadInput: one cannot; names the keyword.
    """
    try:
        require_usable_schema(schema)
    except UnusableSchema as why:
        raise BadInput(
            f"{where}: {why}",
            code="invalid_schema",
            hint=f"supported keywords: {', '.join(sorted(KNOWN - NOTES))}",
        ) from None


def _find_conflicting_key(detail: ErrorDetails) -> Place:
    return (str(detail["ctx"]["key"]),) if detail["type"] == "disagreement" else ()


def _find_line(place: Place, lines: Mapping[Place, int]) -> int | None:
    # A missing key has no line: use the line of the nearest section above it.
    known = (place[:end] for end in range(len(place), -1, -1))
    return next((lines[each] for each in known if each in lines), None)


def _format_place(place: Place) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return ascii(text.removeprefix("."))[1:-1][:200] or "the document"


def _format_problem(detail: ErrorDetails) -> str:
    kind = detail["type"]
    if kind == "missing":
        return "is missing"
    if kind == "disagreement":
        return detail["msg"]
    hidden = bool(UNSHOWN.intersection(detail["loc"]))
    found = "something else" if hidden else describe(detail["input"])
    if kind == "literal_error":
        what = str(detail["ctx"]["expected"]).replace("'", "")
        return f"expected {what}, found {found}"
    return f"expected {_EXPECTED.get(kind, detail['msg'])}, found {found}"


def describe(value: object) -> str:
    """Describe a value in a few printable words."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, str):
        return f"the text {value[:40]!a}"
    try:
        return repr(value)[:40]
    except ValueError:
        # Python refuses to print integers with more than 4300 digits.
        return "a very long number"


def _format_unknown_key(model: type[BaseModel], loc: Place, under: Place) -> tuple[str, str]:
    *above, key = loc
    siblings = list(_find_model(model, above).model_fields)
    near = difflib.get_close_matches(str(key), siblings, n=1, cutoff=0.6)
    elsewhere = [place for place in _list_places(model) if place[-1] == key]
    problem = f"unknown key {_format_place((*under, *loc))}"
    if near:
        nearest = _format_place((*under, *above, near[0]))
    elif elsewhere:
        nearest = _format_place((*under, *elsewhere[0]))
    else:
        return problem, f"known here: {', '.join(siblings)}"
    return f"{problem}; did you mean {nearest}?", f"known here: {', '.join(siblings)}"


def _find_model(model: type[BaseModel], place: list[str | int]) -> type[BaseModel]:
    for part in place:
        if isinstance(part, str):
            model = _find_inner_model(model.model_fields[part].annotation) or model
    return model


def _find_inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_find_inner_model, get_args(annotation))), None)


def _list_places(model: type[BaseModel], above: Place = ()) -> Iterator[Place]:
    for name, field in model.model_fields.items():
        yield (*above, name)
        inner = _find_inner_model(field.annotation)
        if inner is not None:
            yield from _list_places(inner, (*above, name))


_COUNT_LIMIT = 1_000_000_000_000
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FEATURE = re.compile(r"[a-z][a-z0-9_]{0,59}")
_URL = re.compile(r"https?://[^\s/@]+(?:/\S*)?")
_NETWORK = {False: "off", True: "on"}  # YAML 1.1 tools write off and on as booleans


def _check_duration(value: object) -> object:
    if not is_duration(value):
        raise make_value_error(DURATION)
    return value


def _check_amount(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise make_value_error("a number above 0")
    # The comparison is also false for NaN.
    if not 0 < value <= _COUNT_LIMIT:
        raise make_value_error("a number above 0")
    return value


def _check_count(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _COUNT_LIMIT:
        raise make_value_error("a whole number above 0")
    return value


def _check_pair(value: object) -> object:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise make_value_error("a list of two durations in seconds, after SIGINT and after SIGTERM")
    return tuple(value)


def _check_word(value: object) -> object:
    if not isinstance(value, str) or not value or "\0" in value:
        raise make_value_error("a text that is not empty")
    return value


def _check_variable(value: object) -> object:
    if not isinstance(value, str) or not _VARIABLE.fullmatch(value):
        raise make_value_error("the name of an environment variable, never a key itself")
    return value


def _check_url(value: object) -> object:
    if not isinstance(value, str) or not _URL.fullmatch(value):
        raise make_value_error("an http or https address without credentials")
    return value


def _check_name(value: object) -> object:
    if not isinstance(value, str) or not is_id(value):
        raise make_value_error("an id: 1 to 64 letters, digits, '_' or '-', no '_' or '-' first")
    return value


def _check_feature(value: object) -> object:
    if not isinstance(value, str) or not _FEATURE.fullmatch(value):
        raise make_value_error(
            "the name of a feature as its refusal gives it, such as web_search or urls"
        )
    return value


def _check_network(value: object) -> object:
    return _NETWORK[value] if isinstance(value, bool) else value


Duration = Annotated[float, BeforeValidator(_check_duration)]
Pair = Annotated[tuple[Duration, Duration], BeforeValidator(_check_pair)]
Amount = Annotated[float, BeforeValidator(_check_amount)]
Count = Annotated[int, BeforeValidator(_check_count)]
Word = Annotated[str, BeforeValidator(_check_word)]
Name = Annotated[str, BeforeValidator(_check_name)]
Variable = Annotated[str, BeforeValidator(_check_variable)]
Address = Annotated[str, BeforeValidator(_check_url)]
Feature = Annotated[str, BeforeValidator(_check_feature)]
Network = Annotated[Literal["off", "models", "on"], BeforeValidator(_check_network)]
