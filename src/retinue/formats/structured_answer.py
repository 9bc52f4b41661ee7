"""Answers that a JSON schema describes."""

from __future__ import annotations

import json
import re

from retinue.core.answer_schema import Mismatch, check_value

_FENCED = re.compile(r"\A\s*```[a-zA-Z]*\s*\n(.*)\n\s*```\s*\Z", re.DOTALL)


def parse_structured_answer(text: str, schema: str) -> object:
    """Return the value of an answer that is one JSON document, also inside a code fence.

    Raises:
        Mismatch: it is not JSON, or does not fit the schema.
    """
    fenced = _FENCED.match(text)
    try:
        value = json.loads(fenced[1] if fenced else text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as why:
        raise Mismatch(f"the answer is not one JSON document: {str(why)[:200]}") from None
    check_value(json.loads(schema), value)
    return value


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
