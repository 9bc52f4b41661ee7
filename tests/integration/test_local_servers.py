"""Model servers on this machine: found where they list a model, passed over where they do not."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from contextlib import ExitStack

import pytest
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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("user", "found"), [(0, 1), (990, 1), (4321, 0)])
def test_a_server_of_another_person_is_passed_over(user: int, found: int) -> None:
    program = f"""
import http.server, os
class Models(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{{"data": [{{"id": "llama"}}]}}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
os.setuid({user})
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Models)
print(server.server_port, flush=True)
server.serve_forever()
"""
    words = ["/usr/bin/python3", "-I", "-c", program]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"

            async def find() -> None:
                upstream = Upstream()
                try:
                    provider = Provider(name="near", wire="openai", base_url=url)
                    assert len(await find_local_servers(upstream, [provider])) == found
                finally:
                    await upstream.close()

            asyncio.run(find())
        finally:
            server.kill()


def test_the_usual_servers_are_asked_at_their_usual_ports() -> None:
    assert {each.name: each.base_url for each in SELF_HOSTED} == {
        "ollama": "http://127.0.0.1:11434/v1",
        "lmstudio": "http://127.0.0.1:1234/v1",
        "vllm": "http://127.0.0.1:8000/v1",
        "llamacpp": "http://127.0.0.1:8080/v1",
    }
