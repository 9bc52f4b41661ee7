"""Results as JSON: what MCP, CLI, web page and database all show."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from retinue.domain.errors import BadInput
from retinue.domain.ids import SubagentId
from retinue.domain.recovery import TokenUsage
from retinue.domain.result import Result, Status, clean_text, summarise

json_to_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def result_to_json(result: Result) -> dict[str, Any]:
    """Every key that is always there, then those that have something to say."""
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
    if result.completion_percentage is not None:
        document["completion_percentage"] = result.completion_percentage
    if result.warning:
        document["warning"] = result.warning
    if result.questions:
        document["questions"] = list(result.questions)
    if result.workspace_files:
        document["workspace_files"] = list(result.workspace_files)
    if result.integration is not None:
        document["integration"] = result.integration
    return {key: _plain(value) for key, value in document.items()}


def result_to_text(result: Result) -> str:
    """The result as one line of JSON; the same result gives the same text."""
    return json_to_text(result_to_json(result))


def usage_to_json(usage: TokenUsage) -> dict[str, int | float]:
    """Only what is known; an empty object when nothing is."""
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
    """The results of one call, in its order, and their counts."""
    summary = summarise(results)
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
    """How often each status is among them; the numbers add up to the first."""
    parts = [f"{number} {word}" for word, number in Counter(words).items()]
    return f"{len(words)} in all: {', '.join(parts)}" if words else "none yet"


def usage_to_text(usage: Mapping[str, Any]) -> str:
    """Tokens read and written, and known dollars; empty where no model was asked."""
    known = (usage.get("input_tokens"), usage.get("output_tokens"))
    if not any(known):
        return ""
    tokens = " + ".join("?" if number is None else str(number) for number in known)
    cost = usage.get("estimated_cost")
    known_cost = cost is not None and (cost or not usage.get("unpriced"))
    return f"{tokens} tokens" + (f", ${cost:.4f}" if known_cost else "")


def result_from_json(document: object) -> Result:
    """The result that was written, by this version or another: unknown keys are ignored.

    Raises:
        BadInput: it is no result object.
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("subagent_id"), str):
        raise BadInput("not a result object: it names no subagent", code="invalid_result")
    status, warning = _status(document)
    answer = document.get("answer")
    integration = document.get("integration")
    return Result(
        subagent_id=SubagentId(document["subagent_id"]),
        status=status,
        answer=answer if isinstance(answer, str) else None,
        workspace=_text(document.get("workspace")) or _text(document.get("workspace_path")),
        execution_time_seconds=_number(document.get("execution_time_seconds")) or 0.0,
        token_usage=usage_from_json(document.get("token_usage")),
        log_path=_text(document.get("log_path")),
        error=_text(document.get("error")),
        completion_percentage=_number(document.get("completion_percentage")),
        warning="; ".join(filter(None, [_text(document.get("warning")), warning])),
        questions=_texts(document.get("questions")),
        workspace_files=_texts(document.get("workspace_files")),
        integration=integration if isinstance(integration, Mapping) else None,
    )


def result_from_text(text: str) -> Result:
    """The result that a line of JSON holds.

    Raises:
        BadInput: it is no JSON, or no result object.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not a result object: {error}", code="invalid_result") from None
    return result_from_json(document)


def usage_from_json(document: object) -> TokenUsage:
    """The known counts; anything else counts as not known."""
    usage = document if isinstance(document, Mapping) else {}
    return TokenUsage(
        input_tokens=_whole(usage.get("input_tokens")),
        output_tokens=_whole(usage.get("output_tokens")),
        estimated_cost=_number(usage.get("estimated_cost")),
        cached_tokens=_whole(usage.get("cached_tokens")),
        reasoning_tokens=_whole(usage.get("reasoning_tokens")),
        estimated=usage.get("estimated") is True,
        unpriced=usage.get("unpriced") is True,
    )


def _status(document: Mapping[str, Any]) -> tuple[Status, str]:
    """The status, and a warning when it had to be guessed from `success`."""
    status = document.get("status")
    if isinstance(status, str) and status in set(Status):
        return Status(status), ""
    guess = Status.COMPLETED if document.get("success") is True else Status.ERROR
    return guess, f"its status {ascii(status)[:60]} is unknown here"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: object) -> tuple[str, ...]:
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()


def _number(value: object) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, int) or math.isfinite(value) else None


def _whole(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _plain(value: object) -> object:
    """The value with nothing in it that strict JSON in UTF-8 cannot carry."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {clean_text(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
