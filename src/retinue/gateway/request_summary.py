"""Summary of a request, made before it is sent: models, size, limits and features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from retinue.gateway.json_outline import (
    BASE64_AT_LEAST,
    LARGE,
    InvalidDocument,
    build_outline,
    parse,
)
from retinue.gateway.vendors.base import Document, Endpoint, Vendor
from retinue.gateway.vendors.request_features import UnknownShape

# All known names of output limits. A lenient server may read another vendor's.
ALL_LIMITS = (
    *("max_output_tokens", "max_completion_tokens", "max_tokens", "maxOutputTokens"),
    *("max_new_tokens", "max_tokens_to_sample", "n_predict", "num_predict", "budget_tokens"),
)
COPIES = ("n", "best_of", "candidateCount", "candidate_count")
NESTED = ("generationConfig", "generation_config", "thinking", "reasoning", "options")
CHARACTERS_PER_TOKEN = 4
LONGEST_ANSWER = 128_000  # assumed output tokens of a request without a limit
MOST_COPIES = 128
MOST_COUNTED = 1_000_000_000
LARGEST_CONTEXT = 1_000_000  # input tokens that a hosted tool can cause
WRAPPING = 64  # tokens that a vendor adds to a request


@dataclass(frozen=True, kw_only=True)
class RequestSummary:
    """Model, size and features of a request, known before it is sent."""

    model: str = ""
    models: tuple[str, ...] = ()  # all models that it names
    input_tokens: int = 0  # estimate
    most_input_tokens: int = 0  # upper bound: a token has at least one character
    most_output_tokens: int = LONGEST_ANSWER
    features: Mapping[str, str] = field(default_factory=dict)  # see vendors/request_features.py
    unreadable: str = ""  # why the request cannot be interpreted

    @property
    def readable(self) -> bool:
        return not self.unreadable


def describe_request(vendor: Vendor, path: str, body: bytes) -> RequestSummary:
    """Summarise a POST request; one that cannot be read gets the reason in `unreadable`.

    Raises:
        DocumentTooLarge: a large request exceeds a limit of the outline.
    """
    endpoint = vendor.find_endpoint("POST", path)
    assert endpoint is not None, path
    unreadable = ""
    document: Document = {}
    features: dict[str, str] = {}
    characters = 0
    try:
        if len(body) > LARGE:
            text, characters = build_outline(body)
        else:
            text = body.decode()
        document = parse(text)
        features = _find_features(endpoint, document)
    except UnknownShape as where:
        unreadable = f"{where} is not in the documented format"
    except UnicodeDecodeError:
        unreadable = "it is not UTF-8"
    except RecursionError:
        unreadable = "it is nested too deeply"
    except InvalidDocument as why:
        unreadable = str(why)
    if len(body) <= LARGE:
        characters = _count_characters(document)
    models = vendor.list_models(path, document)
    most_input = characters + WRAPPING
    return RequestSummary(
        model=models[0],
        models=tuple(models),
        input_tokens=estimate_tokens(characters),
        most_input_tokens=max(most_input, LARGEST_CONTEXT) if features else most_input,
        most_output_tokens=_compute_output_limit(endpoint.output_limits, document),
        features=features,
        unreadable=unreadable,
    )


def _find_features(endpoint: Endpoint, document: Document) -> dict[str, str]:
    """Return the features that a request uses, each with its first description.

    Raises:
        UnknownShape: the request cannot be interpreted.
    """
    used: dict[str, str] = {}
    for name, description in endpoint.find_features(document):
        used.setdefault(name, description)
    return used


def _compute_output_limit(documented: tuple[str, ...], document: Document) -> int:
    """Return the most output tokens that a request allows.

    A server may read any of the known limits, so the largest one counts. Without a documented
    limit of this endpoint, the limit is the model's.
    """
    places = [document, *(document.get(name) for name in NESTED)]
    known = [place for place in places if isinstance(place, dict)]
    limits = [place[name] for place in known for name in ALL_LIMITS if _is_set(place.get(name))]
    copies = [place[name] for place in known for name in COPIES if _is_set(place.get(name))]
    most = max((_count(each, LONGEST_ANSWER) for each in limits), default=LONGEST_ANSWER)
    if not any(_is_set(place.get(name)) for place in known for name in documented):
        most = max(most, LONGEST_ANSWER)
    return most * max((_count(each, MOST_COPIES) for each in copies), default=1)


def _is_set(value: object) -> bool:
    return value is not None


def _count(value: object, unclear: int) -> int:
    """Return a number as lenient servers read it; `unclear` if it is not a number above 0."""
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 1:
        return unclear
    return int(min(value, MOST_COUNTED))


def estimate_tokens(characters: int) -> int:
    return -(-characters // CHARACTERS_PER_TOKEN)


def _count_characters(document: object) -> int:
    """Return the number of characters in all strings; encoded media counts little."""
    # A loop instead of recursion: the depth of the document is the child's choice.
    unseen = [document]
    found = 0
    while unseen:
        value = unseen.pop()
        if isinstance(value, str):
            media = len(value) >= BASE64_AT_LEAST and " " not in value[:BASE64_AT_LEAST]
            found += BASE64_AT_LEAST if media else len(value)
        elif isinstance(value, dict):
            unseen += value.values()
        elif isinstance(value, list):
            unseen += value
    return found
