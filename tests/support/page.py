"""`retinue ui` as a process of its own, and a plain client of it that forgets nothing."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

BOUND_S = 20.0


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


class Served:
    """The page's server. Its link is used up once `enter` was called, or a browser has it."""

    def __init__(self, process: subprocess.Popen[str], said: dict[str, Any]) -> None:
        self.process = process
        self.link: str = said["link"]
        self.port: int = said["port"]
        self.host = f"127.0.0.1:{self.port}"
        self.base = f"http://{self.host}"
        self.cookie = ""
        self.word = ""

    def enter(self) -> None:
        """This client has a session."""
        answer = self.send("GET", urlsplit(self.link).path)
        assert answer.status == 200, answer.body
        self.cookie = answer.headers["set-cookie"].partition(";")[0]
        found = re.search(rb'name="csrf-token" content="([\w-]+)"', answer.body)
        assert found, answer.body
        self.word = found[1].decode()

    def streams(self) -> int:
        """How many connections browsers have to it."""
        rows = Path(f"/proc/{self.process.pid}/net/tcp").read_text().splitlines()[1:]
        ends = [row.split()[1:4] for row in rows]
        return sum(own.endswith(f":{self.port:04X}") and state == "01" for own, _, state in ends)

    def send(
        self, method: str, path: str, body: bytes | None = None, **headers: str | None
    ) -> Answer:
        """One request on a connection of its own, with these headers instead of the usual."""
        usual = {"Host": self.host, "Cookie": self.cookie or None}
        usual |= {"X-CSRF-Token": self.word or None}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        given = {name: value for name, value in {**usual, **named}.items() if value is not None}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=BOUND_S)
        try:
            connection.request(method, path, body, given)
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def get(self, path: str, **headers: str | None) -> Answer:
        return self.send("GET", path, None, **headers)

    def post(self, path: str, document: Any = None, **headers: str | None) -> Answer:
        """As the page itself posts."""
        own = {
            "Origin": self.base,
            "Content_Type": "application/json",
            "X_CSRF_Token": self.word,
        }
        return self.send("POST", path, json.dumps(document or {}).encode(), **{**own, **headers})


@contextmanager
def served(root: Path, *words: str, port: int = 0) -> Iterator[Served]:
    process = start(root, "--port", str(port), *words)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, process.communicate(timeout=BOUND_S)
        yield Served(process, json.loads(line))
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=BOUND_S)


def start(root: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "retinue", "--root", str(root), "--json", "ui", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
