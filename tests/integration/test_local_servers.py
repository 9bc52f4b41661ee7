"""Model servers on this machine: found where they list a model, passed over where they do not."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack

from aiohttp import web

from retinue.gateway.provider_status import SELF_HOSTED, find_local_servers
from retinue.gateway.providers import Provider
from retinue.gateway.upstream import Upstream
from support.upstream import serving


async def list_two(request: web.BaseRequest) -> web.StreamResponse:
    assert request.path == "/v1/models"
    return web.json_response({"data": [{"id": "nomic-embed-text"}, {"id": "llama"}]})


async def show_a_page(request: web.BaseRequest) -> web.StreamResponse:
    return web.Response(text="<h1>my project</h1>", content_type="text/html")


async def want_a_key(request: web.BaseRequest) -> web.StreamResponse:
    return web.json_response({"error": "no key"}, status=401)


async def have_none(request: web.BaseRequest) -> web.StreamResponse:
    return web.json_response({"object": "list", "data": []})


async def say_nothing(request: web.BaseRequest) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


def test_only_servers_that_list_a_model_to_talk_to_are_found() -> None:
    handlers = [show_a_page, want_a_key, have_none, say_nothing, list_two]
    with ExitStack() as stack:
        ports = [stack.enter_context(serving(handler)) for handler in handlers]
        providers = [
            Provider(name=f"p{number}", wire="openai", base_url=f"http://127.0.0.1:{port}/v1")
            for number, port in enumerate([9, *ports])
        ]

        async def find() -> None:
            upstream = Upstream()
            try:
                (found,) = await find_local_servers(upstream, providers)
            finally:
                await upstream.close()
            assert (found.name, found.url, found.models) == (
                "p5",
                providers[5].base_url,
                ("llama",),
            )

        began = time.monotonic()
        asyncio.run(find())
        assert time.monotonic() - began < 5


def test_the_usual_servers_are_asked_at_their_usual_ports() -> None:
    assert {each.name: each.base_url for each in SELF_HOSTED} == {
        "ollama": "http://127.0.0.1:11434/v1",
        "lmstudio": "http://127.0.0.1:1234/v1",
        "vllm": "http://127.0.0.1:8000/v1",
        "llamacpp": "http://127.0.0.1:8080/v1",
    }
