"""Hosted models over a real connection: retries, errors, replies and costs."""

from __future__ import annotations

import asyncio
import socket

import pytest

from retinue.core.contract import TeamMember
from retinue.core.conversation import ModelFailed, OutOfBudget, Reply, Tool, Turn
from retinue.team.models.hosted_model import PATIENT_TRIES, TRIES, HostedModel
from support.scripted import Heard, Models, Said, Script, call

MEMBER = TeamMember(id="m", route="anything", wire="openai", model="m")
HELLO = [Turn(role="system", text="be kind"), Turn(role="user", text="hello")]
TOOL = Tool(name="look", description="Look.", parameters={"type": "object", "properties": {}})


class Pauses:
    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def ask(port: int, pauses: Pauses, turns: list[Turn] = HELLO) -> Reply:
    model = HostedModel(MEMBER, f"http://127.0.0.1:{port}", "token", sleep=pauses)
    return asyncio.run(model.reply(turns, [TOOL]))


def answered(script: Script) -> tuple[Reply, Pauses, Models]:
    pauses = Pauses()
    with Models(script) as models:
        return ask(models.port, pauses), pauses, models


def test_a_reply_has_text_calls_and_tokens() -> None:
    reply, _, models = answered(lambda heard: Said(text="so", calls=[("look", {"at": 1})]))
    assert (reply.text, reply.calls[0].tool, reply.calls[0].arguments) == ("so", "look", {"at": 1})
    assert (reply.used.input_tokens, reply.used.output_tokens) == (10, 5)
    roles = [each["role"] for each in models.heard[0].document["messages"]]
    assert roles == ["system", "user"] and models.heard[0].tools == ["look"]


def test_an_overloaded_provider_is_retried_with_growing_pauses() -> None:
    def script(heard: Heard) -> Said:
        return Said(text="at last") if heard.number == 3 else Said(status=503)

    reply, pauses, models = answered(script)
    assert reply.text == "at last" and len(models.heard) == 3
    assert 0.1 <= pauses.seconds[0] <= 0.25 and 0.25 <= pauses.seconds[1] <= 0.5


def test_retries_of_an_overloaded_provider_are_limited() -> None:
    pauses = Pauses()
    with Models(lambda heard: Said(status=500, text="broken")) as models:
        with pytest.raises(ModelFailed, match="broken"):
            ask(models.port, pauses)
        assert len(models.heard) == TRIES


def test_a_refusal_is_not_retried() -> None:
    pauses = Pauses()
    with Models(lambda heard: Said(status=400, text="no such model")) as models:
        with pytest.raises(ModelFailed, match="400: no such model"):
            ask(models.port, pauses)
        assert len(models.heard) == 1 and not pauses.seconds


def test_a_used_up_budget_raises_out_of_budget() -> None:
    with (
        Models(lambda heard: Said(status=402, text="budget exceeded")) as models,
        pytest.raises(OutOfBudget, match="budget exceeded"),
    ):
        ask(models.port, Pauses())


def test_a_missing_gateway_is_retried_a_limited_number_of_times() -> None:
    pauses = Pauses()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # without listening
        with pytest.raises(ModelFailed):
            ask(taken.getsockname()[1], pauses)
    assert len(pauses.seconds) == PATIENT_TRIES - 1
    assert sum(pauses.seconds) > 30


def test_arguments_that_are_no_object_are_malformed() -> None:
    reply, _, _ = answered(lambda heard: Said(calls=[("look", "[1, 2")]))
    assert reply.calls[0].malformed


def test_a_tool_result_is_sent_with_its_call() -> None:
    first, _, _ = answered(lambda heard: call("look"))
    said = Turn(role="tool", text="a tree", call=first.calls[0])
    with Models(lambda heard: Said(text="I see")) as models:
        ask(models.port, Pauses(), [*HELLO, first.turn, said])
        last = models.heard[0].document["messages"][-1]
    assert (last["role"], last["content"]) == ("tool", "a tree")


def test_the_cost_is_computed_by_the_rates_in_the_answer() -> None:
    async def whole() -> Reply:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            usage = b'{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}'
            head = b"HTTP/1.1 200 OK\r\nRetinue-Rates: 0.5 0 0 2.0\r\n\r\n"
            writer.write(head + b"data: " + usage + b"\n\n")
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await HostedModel(MEMBER, f"http://127.0.0.1:{port}", "token").reply(HELLO, [])

    reply = asyncio.run(whole())
    assert (reply.used.input_tokens, reply.used.output_tokens) == (3, 2)
    assert reply.used.cost == 3 * 0.5 + 2 * 2.0
