"""What does not fit a model, in one sentence: the full key, what was found, what is expected."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from retinue.domain.errors import BadInput
from retinue.wire.yaml import Place

Model = TypeVar("Model", bound=BaseModel)

# A secret pasted in the wrong place stays out of messages.
UNSHOWN = {"api_key_env", "base_url", "env", "headers", "url"}
_EXPECTED = {
    "bool_type": "true or false",
    "list_type": "a list",
    "model_type": "a mapping",
    "string_type": "a text",
}


def expected(what: str) -> PydanticCustomError:
    """For validators: this value is refused, and what would have been accepted."""
    return PydanticCustomError("expected", "{what}", {"what": what})


def disagreement(key: str, sentence: str) -> PydanticCustomError:
    """For validators: a key of this model contradicts another one."""
    return PydanticCustomError("disagreement", "{sentence}", {"key": key, "sentence": sentence})


def require_distinct(names: Iterable[str], key: str, what: str) -> None:
    """For validators: no name is given twice, and case does not count."""
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise disagreement(key, f"two {what} are named {name!a}")
        seen.add(name.lower())


def fit(
    model: type[Model],
    document: object,
    *,
    where: str,
    under: Place = (),
    lines: Mapping[Place, int] | None = None,
) -> Model:
    """The document as a model; `under` is where it stands in the file, `lines` on which line.

    Raises:
        BadInput: something does not fit; unknown keys are named first, with the nearest known.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        details = error.errors(include_url=False)
    unknown = [each for each in details if each["type"] == "extra_forbidden"]
    first = (unknown or details)[0]
    place = (*under, *first["loc"], *_own_key(first))
    line = _line(place, lines or {})
    start = f"{where}: line {line}" if line else where
    if unknown:
        problem, hint = _unknown(model, first["loc"], under)
        raise BadInput(f"{start}: {problem}", code="unknown_key", hint=hint)
    raise BadInput(f"{start}: {_dotted(place)}: {_complaint(first)}", code="bad_config")


def _own_key(detail: ErrorDetails) -> Place:
    return (str(detail["ctx"]["key"]),) if detail["type"] == "disagreement" else ()


def _line(place: Place, lines: Mapping[Place, int]) -> int | None:
    known = (place[:end] for end in range(len(place), -1, -1))
    return next((lines[each] for each in known if each in lines), None)


def _dotted(place: Place) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return ascii(text.removeprefix("."))[1:-1][:200] or "the document"


def _complaint(detail: ErrorDetails) -> str:
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
    """A value in few words, safe to print."""
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
    except ValueError:  # an integer beyond what Python prints
        return "a very long number"


def _unknown(model: type[BaseModel], loc: Place, under: Place) -> tuple[str, str]:
    *above, key = loc
    siblings = list(_model_at(model, above).model_fields)
    near = difflib.get_close_matches(str(key), siblings, n=1, cutoff=0.6)
    elsewhere = [place for place in _places(model) if place[-1] == key]
    problem = f"unknown key {_dotted((*under, *loc))}"
    if near:
        nearest = _dotted((*under, *above, near[0]))
    elif elsewhere:
        nearest = _dotted((*under, *elsewhere[0]))
    else:
        return problem, f"known here: {', '.join(siblings)}"
    return f"{problem}; did you mean {nearest}?", f"known here: {', '.join(siblings)}"


def _model_at(model: type[BaseModel], place: list[str | int]) -> type[BaseModel]:
    for part in place:
        if isinstance(part, str):
            model = _inner(model.model_fields[part].annotation) or model
    return model


def _inner(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_inner, get_args(annotation))), None)


def _places(model: type[BaseModel], above: Place = ()) -> Iterator[Place]:
    for name, field in model.model_fields.items():
        yield (*above, name)
        inner = _inner(field.annotation)
        if inner is not None:
            yield from _places(inner, (*above, name))
