"""Models of the well-known vendors and of any OpenAI-compatible server, all by pydantic-ai.

A child sees the gateway alone: the key it shows there is its attempt's token.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import httpx2
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from openai._base_client import get_platform
from pydantic_ai.exceptions import AgentRunError, ModelAPIError, ModelHTTPError, UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from retinue.domain.contract import TeamMember
from retinue.domain.conversation import Call, ModelFailed, OutOfBudget, Reply, Tool, Turn, Used

PAYMENT_REQUIRED = 402
PASSING = {408, 409, 425, 429, 500, 502, 503, 504, 529}
TRIES = 5
PATIENT_TRIES = 20
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0

Sleep = Callable[[float], Any]


class HostedModel:
    """Implements `AgentBackend` for one member."""

    def __init__(
        self, member: TeamMember, gateway: str, token: str, *, sleep: Sleep = asyncio.sleep
    ) -> None:
        # No certificates to load: the gateway is on this child's own loopback, in plain HTTP.
        self._client = httpx2.AsyncClient(verify=False, trust_env=False, timeout=900.0)
        self._model = _model(member, f"{gateway}/{member.route}", token, self._client)
        self._sleep = sleep

    async def reply(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Tool],
        settings: Mapping[str, object] | None = None,
    ) -> Reply:
        """What the model says next.

        Raises:
            OutOfBudget: nothing may be spent any more.
            ModelFailed: it did not answer, and trying again does not help.
        """
        parameters = ModelRequestParameters(function_tools=[_definition(tool) for tool in tools])
        messages = [*_messages(turns)]
        extra = ModelSettings(**dict(settings or {}))  # type: ignore[typeddict-item]
        for attempt in count():
            try:
                return _reply(await self._ask(messages, extra, parameters))
            except (AgentRunError, UserError, httpx2.HTTPError) as error:
                if _status(error) == PAYMENT_REQUIRED:
                    raise OutOfBudget(_said(error)) from error
                if attempt + 1 >= _tries(error):
                    raise ModelFailed(_said(error)) from error
            pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**attempt)
            await self._sleep(pause * random.uniform(0.5, 1.0))
        raise AssertionError("count() does not end")

    async def close(self) -> None:
        await self._client.aclose()

    async def _ask(
        self,
        messages: list[ModelMessage],
        settings: ModelSettings,
        parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Streamed, so that what passed is counted even when it is cut."""
        async with self._model.request_stream(messages, settings, parameters) as stream:
            async for _ in stream:
                pass
        return stream.get()


def _model(member: TeamMember, url: str, token: str, client: httpx2.AsyncClient) -> Model[Any]:
    """Retries are ours: the vendors' own are switched off."""
    name = member.model or "default"
    if member.wire == "anthropic":
        anthropic = AsyncAnthropic(base_url=url, api_key=token, http_client=client, max_retries=0)
        return AnthropicModel(name, provider=AnthropicProvider(anthropic_client=anthropic))
    if member.wire == "gemini":
        google = GoogleProvider(api_key=token, base_url=url, http_client=client)
        return GoogleModel(name, provider=google)
    openai = AsyncOpenAI(base_url=f"{url}/v1", api_key=token, http_client=client, max_retries=0)
    openai._platform = get_platform()  # else each child would start a thread to find it out
    return OpenAIChatModel(name, provider=OpenAIProvider(openai_client=openai))


def _definition(tool: Tool) -> ToolDefinition:
    return ToolDefinition(
        name=tool.name,
        description=tool.description,
        parameters_json_schema=dict(tool.parameters),
    )


def _messages(turns: Sequence[Turn]) -> list[ModelMessage]:
    """In the library's words; what follows each other in one direction goes in one message."""
    messages: list[ModelMessage] = []
    parts: list[Any] = []
    for turn in turns:
        if turn.role != "assistant":
            parts.append(_request_part(turn))
            continue
        if parts:
            messages.append(ModelRequest(parts=parts))
            parts = []
        messages.append(_response(turn))
    if parts:
        messages.append(ModelRequest(parts=parts))
    return messages


def _request_part(turn: Turn) -> SystemPromptPart | UserPromptPart | ToolReturnPart[Any]:
    if turn.role == "system":
        return SystemPromptPart(turn.text)
    if turn.call is not None:
        return ToolReturnPart(
            tool_name=turn.call.tool, content=turn.text, tool_call_id=turn.call.id
        )
    return UserPromptPart(turn.text)


def _response(turn: Turn) -> ModelResponse:
    if isinstance(turn.source, ModelResponse):
        return turn.source  # with what a vendor wants back as it gave it
    said = [TextPart(turn.text)] if turn.text else []
    asked = [
        ToolCallPart(tool_name=call.tool, args=dict(call.arguments), tool_call_id=call.id)
        for call in turn.calls
    ]
    return ModelResponse(parts=[*said, *asked] or [TextPart("(nothing)")])


def _reply(response: ModelResponse) -> Reply:
    text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    calls = tuple(_call(part) for part in response.parts if isinstance(part, ToolCallPart))
    return Reply(
        text=text,
        calls=calls,
        used=Used(
            input_tokens=response.usage.input_tokens,
            output_tokens=response.usage.output_tokens,
            cost=_cost(response),
        ),
        source=response if response.parts else None,
    )


def _call(part: ToolCallPart[Any]) -> Call:
    try:
        arguments = part.args if isinstance(part.args, dict) else json.loads(part.args or "{}")
    except (ValueError, RecursionError) as error:
        return Call(id=part.tool_call_id, tool=part.tool_name, malformed=str(error)[:200])
    if not isinstance(arguments, dict):
        return Call(id=part.tool_call_id, tool=part.tool_name, malformed="not an object")
    return Call(id=part.tool_call_id, tool=part.tool_name, arguments=arguments)


def _cost(response: ModelResponse) -> float:
    """By the price list, where it knows the model; the gateway's ledger goes before it."""
    try:
        return float(response.cost().total_price)
    except (LookupError, ValueError, AssertionError):
        return 0.0


def _status(error: Exception) -> int:
    return error.status_code if isinstance(error, ModelHTTPError) else 0


def _tries(error: Exception) -> int:
    """How often it is worth asking.

    A provider that is overloaded may answer soon. Where nobody answers at all, the gateway is
    gone with its steward, and comes back with the next one.
    """
    if isinstance(error, ModelHTTPError):
        return TRIES if error.status_code in PASSING else 1
    return PATIENT_TRIES if isinstance(error, ModelAPIError | httpx2.TransportError) else 1


def _said(error: Exception) -> str:
    body = getattr(error, "body", None)
    told = body.get("error", body) if isinstance(body, dict) else None
    if isinstance(told, dict) and isinstance(told.get("message"), str):
        return f"{_status(error)}: {told['message']}"[:500]
    return f"{type(error).__name__}: {error}"[:500]
