"""Results as JSON, the same for MCP, CLI, web page and database."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from retinue.core.answer_schema import Mismatch, check_value
from retinue.core.errors import BadInput
from retinue.core.ids import SubagentId
from retinue.core.result import Result, Status, TokenUsage, count_results
from retinue.core.safe_text import clean_text
from retinue.formats.json_text import parse_strict_json

json_to_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
EVENT_LIMIT = 16 * 1024  # characters of a result that its event contains whole
CUT_LIMIT = 1024  # characters of each text in the event of a larger result


def result_to_json(result: Result) -> dict[str, Any]:
    """Return the fixed keys, then the optional ones that have a value."""
    document: dict[str, Any] = {
        "subagent_id": result.subagent_id,
        "status": result.status.value,
        "success": result.success,
        "answer": result.answer,
        "workspace": result.workspace,
        "workspace_path": result.workspace,
        "execution_time_seconds": result.execution_time_seconds,
        "token_usage": usage_to_json(result.token_usage),
        "log_path": result.log_path,
    }
    if result.error:
        document["error"] = result.error
    if result.error_output:
        document["error_output"] = result.error_output
    if result.completion_percentage is not None:
        document["completion_percentage"] = result.completion_percentage
    if result.warning:
        document["warning"] = result.warning
    if result.questions:
        document["questions"] = list(result.questions)
    if result.workspace_files:
        document["workspace_files"] = list(result.workspace_files)
    if result.workspace_removed:
        document["workspace_removed"] = True
    if result.integration is not None:
        document["integration"] = result.integration
    if result.agent is not None:
        document["agent"] = dict(result.agent)
    if result.structured_answer is not None:
        document["structured_answer"] = result.structured_answer
    return {key: _to_plain_json(value) for key, value in document.items()}


def result_to_text(result: Result) -> str:
    """Return the result as one line of JSON; equal results give equal text."""
    return json_to_text(result_to_json(result))


def result_to_payload(result: Result) -> dict[str, Any]:
    """Return what an event's payload contains of a result.

    A large result is shortened; then `result_sha256` is the hash of its whole text, which is in
    result.json and in the database.
    """
    document = result_to_json(result)
    text = json_to_text(document)
    if len(text) <= EVENT_LIMIT:
        return {"result": document}
    return {"result": _shorten(document), "result_sha256": hash_result(text)}


def result_from_payload(
    payload: Mapping[str, Any], copies: Iterable[str]
) -> tuple[Result, bool] | None:
    """Return the result in an event's payload, and whether it is whole; None if it has none.

    Args:
        copies: texts that may be the whole of a large result.
    """
    if "result" not in payload:
        return None
    whole = payload.get("result_sha256")
    for text in copies if whole else ():
        if text and hash_result(text) == whole:
            return result_from_text(text), True
    return result_from_json(payload["result"]), whole is None


def hash_result(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _shorten(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with long texts cut, and without other long values."""
    short: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, str) and len(value) > CUT_LIMIT:
            short[key] = f"{value[:CUT_LIMIT]}…"
        elif isinstance(value, str) or len(json_to_text(value)) <= CUT_LIMIT:
            short[key] = value
    return short


def usage_to_json(usage: TokenUsage) -> dict[str, int | float]:
    """Return the known counts; an empty object if there are none."""
    known = {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "estimated_cost": usage.estimated_cost,
        "cached_tokens": usage.cached_tokens or None,
        "reasoning_tokens": usage.reasoning_tokens or None,
        "estimated": usage.estimated or None,
        "unpriced": usage.unpriced or None,
    }
    return {key: value for key, value in known.items() if value is not None}


def batch_to_json(results: Sequence[Result]) -> dict[str, Any]:
    """Return the results of one call in its order, and their counts."""
    summary = count_results(results)
    return {
        "success": summary.success,
        "results": [result_to_json(result) for result in results],
        "summary": {
            "total": summary.total,
            "completed": summary.completed,
            "failed": summary.failed,
            "timeout": summary.timeout,
            "partial": summary.partial,
            "blocked": summary.blocked,
            "recovered_timeouts": summary.recovered_timeouts,
        },
    }


def counts_to_text(words: Collection[str]) -> str:
    """Return the total and the count of each status, as one phrase."""
    parts = [f"{number} {word}" for word, number in Counter(words).items()]
    return f"{len(words)} in all: {', '.join(parts)}" if words else "none yet"


def usage_to_text(usage: Mapping[str, Any]) -> str:
    """Return input and output tokens, known cost, and models without a known price.

    Empty if no model was used.
    """
    known = (usage.get("input_tokens"), usage.get("output_tokens"))
    if not any(known):
        return ""
    tokens = " + ".join("?" if number is None else str(number) for number in known)
    cost = usage.get("estimated_cost")
    models = usage.get("unpriced_models")
    unpriced = bool(models or usage.get("unpriced"))
    said = f"{tokens} tokens"
    if cost is not None and (cost or not unpriced):
        said += f", ${cost:.4f}"
    if unpriced:
        what = ", ".join(map(str, models)) if models else "a model that was used"
        said += f", no price known for {what}"
    return said


def result_from_json(document: object) -> Result:
    """Parse a result of this or another version; unknown keys are ignored.

    Raises:
        BadInput: it is not a result object.
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("subagent_id"), str):
        raise BadInput("not a result object: it names no subagent", code="invalid_result")
    status, warning = _parse_status(document)
    answer = document.get("answer")
    integration = document.get("integration")
    agent = document.get("agent")
    return Result(
        subagent_id=SubagentId(document["subagent_id"]),
        status=status,
        answer=answer if isinstance(answer, str) else None,
        workspace=_parse_text(document.get("workspace"))
        or _parse_text(document.get("workspace_path")),
        execution_time_seconds=_parse_number(document.get("execution_time_seconds")) or 0.0,
        token_usage=usage_from_json(document.get("token_usage")),
        log_path=_parse_text(document.get("log_path")),
        error=_parse_text(document.get("error")),
        error_output=_parse_text(document.get("error_output")),
        completion_percentage=_parse_number(document.get("completion_percentage")),
        warning="; ".join(filter(None, [_parse_text(document.get("warning")), warning])),
        questions=_parse_texts(document.get("questions")),
        workspace_files=_parse_texts(document.get("workspace_files")),
        workspace_removed=document.get("workspace_removed") is True,
        integration=integration if isinstance(integration, Mapping) else None,
        agent={str(key): str(value) for key, value in agent.items()}
        if isinstance(agent, Mapping)
        else None,
        structured_answer=document.get("structured_answer"),
    )


def result_from_text(text: str) -> Result:
    """Parse a result from a line of JSON.

    Raises:
        BadInput: it is not JSON, or not a result object.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not a result object: {error}", code="invalid_result") from None
    return result_from_json(document)


def usage_from_json(document: object) -> TokenUsage:
    """Parse token counts; invalid values count as unknown."""
    usage = document if isinstance(document, Mapping) else {}
    return TokenUsage(
        input_tokens=_parse_count(usage.get("input_tokens")),
        output_tokens=_parse_count(usage.get("output_tokens")),
        estimated_cost=_parse_number(usage.get("estimated_cost")),
        cached_tokens=_parse_count(usage.get("cached_tokens")),
        reasoning_tokens=_parse_count(usage.get("reasoning_tokens")),
        estimated=usage.get("estimated") is True,
        unpriced=usage.get("unpriced") is True,
    )


def _parse_status(document: Mapping[str, Any]) -> tuple[Status, str]:
    """Return the status, and a warning if it had to be guessed from `success`."""
    # A later version may have more statuses.
    status = document.get("status")
    if isinstance(status, str) and status in set(Status):
        return Status(status), ""
    guess = Status.COMPLETED if document.get("success") is True else Status.ERROR
    return guess, f"its status {ascii(status)[:60]} is unknown here"


def _parse_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _parse_texts(value: object) -> tuple[str, ...]:
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()


def _parse_number(value: object) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, int) or math.isfinite(value) else None


def _parse_count(value: object) -> int | None:
    number = _parse_number(value)
    return None if number is None else int(number)


def _to_plain_json(value: object) -> object:
    """Replace what strict JSON in UTF-8 cannot represent."""
    if isinstance(value, str):
        # Most texts are ASCII, which holds no surrogates and is known without a search.
        return value if value.isascii() else clean_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {clean_text(str(key)): _to_plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain_json(item) for item in value]
    return value


_FENCED = re.compile(r"\A\s*```[a-zA-Z]*\s*\n(.*)\n\s*```\s*\Z", re.DOTALL)


def parse_structured_answer(text: str, schema: str) -> object:
    """Return the value of an answer that is one JSON document, also inside a code fence.

    Raises:
        Mismatch: it is not JSON, or does not fit the schema.
    """
    fenced = _FENCED.match(text)
    try:
        value = parse_strict_json(fenced[1] if fenced else text)
    except (ValueError, RecursionError) as why:
        raise Mismatch(f"the answer is not one JSON document: {str(why)[:200]}") from None
    check_value(json.loads(schema), value)
    return value
