"""The first minute of a new user: what the program says before any task exists."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from retinue.cli.overview import ask_server
from support.cli import BOUND_S, Cli

SECRET = "sk-not-to-be-printed"


class ModelServer(BaseHTTPRequestHandler):
    """Lists one model, as Ollama does."""

    def do_GET(self) -> None:
        body = json.dumps({"data": [{"id": "qwen3:4b"}]}).encode()
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def serve_models() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), ModelServer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_bare_command_shows_what_is_possible_here_and_creates_nothing(cli: Cli) -> None:
    programs = cli.folder / "bin"
    programs.mkdir()
    (programs / "claude").write_text("#!/bin/sh\nexit 1\n")
    (programs / "claude").chmod(0o755)
    path = f"{programs}:{cli.environment['PATH']}"
    cli.environment |= {"PATH": path, "GROQ_API_KEY": SECRET, "ANTHROPIC_API_KEY": SECRET}
    shown = cli.run()
    assert "claude" in shown and "ANTHROPIC_API_KEY" in shown and "GROQ_API_KEY" in shown
    assert 'retinue run "' in shown and "retinue mcp install claude" in shown
    document = cli.json()
    assert {"agent": "claude", "title": "Claude Code", "program": str(programs / "claude")} in (
        document["agents"]
    )
    assert SECRET not in shown and SECRET not in json.dumps(document)
    assert not cli.root.exists()


def test_a_server_that_lists_models_is_found_and_one_that_does_not_is_not() -> None:
    with serve_models() as port:
        assert ask_server(port, "/v1/models") == ["qwen3:4b"]
        assert ask_server(port, "/other") is None
    assert ask_server(port, "/v1/models") is None


def test_run_without_a_prompt_shows_the_next_command_and_is_refused(cli: Cli) -> None:
    shown = cli.run("run", code=2)
    assert "next:" in shown and "retinue --help" in shown
    assert json.loads(cli.run("--json", "run", code=2))["error"]["code"] == "usage"
    assert list(cli.folder.iterdir()) == []


def test_the_bare_command_counts_the_tasks_of_an_existing_root(cli: Cli) -> None:
    cli.task()
    document = cli.json()
    assert (document["root"]["exists"], document["root"]["tasks"]) == (True, 1)
    assert "retinue task list" in cli.run("--root", str(cli.root))


def test_a_new_root_in_the_home_folder_is_warned_of(cli: Cli, tmp_path: Path) -> None:
    cli.environment |= {"HOME": str(tmp_path)}
    process = cli.start("task", "create", "--title", "T")
    _, err = process.communicate(timeout=BOUND_S)
    assert process.returncode == 0
    assert "warning: the new root" in err and "your home folder" in err
    assert "home folder" in cli.json()["root"]["problem"]
    process = cli.start("task", "create", "--title", "T")
    _, err = process.communicate(timeout=BOUND_S)
    assert "warning" not in err


def test_a_refused_command_in_an_empty_folder_leaves_no_root(cli: Cli) -> None:
    cli.run("run", "--config", "missing.yaml", "Do it", code=2)
    cli.run("subagent", "list", "none", code=3)
    (cli.folder / "bad.yaml").write_text("orchestrator: {coordination: {nonsense: 1}}\n")
    cli.run("task", "create", "--title", "T", "--config", "bad.yaml", code=2)
    assert [path.name for path in cli.folder.iterdir()] == ["bad.yaml"]
