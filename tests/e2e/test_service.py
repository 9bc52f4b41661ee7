"""The steward as a service: foreground, unit, metrics, log and webhooks."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from retinue.cli.service_commands import serve_metrics
from retinue.core import events
from retinue.core.errors import BadInput
from retinue.core.events import Event, Recorded
from retinue.core.ids import RunId, TaskId
from retinue.steward.webhooks import KINDS, Webhook, WebhookSender, post, read_webhooks
from support.cli import BOUND_S, Cli
from support.roots import until
from support.traces import is_over


@contextmanager
def serve_hooks(*statuses: int) -> Iterator[tuple[str, Queue[Any]]]:
    """Serve a webhook that answers with these statuses, one after the other; the last stays."""
    got: Queue[Any] = Queue()
    left = [*statuses] or [200]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.put((self.path, json.loads(body)))
            self.send_response(left.pop(0) if len(left) > 1 else left[0])
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook?key=1", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_steward_in_the_foreground_serves_until_it_is_told_to_stop(cli: Cli) -> None:
    process = cli.start("steward", "run")
    assert process.stderr is not None
    assert any("is ready" in line for line in process.stderr)
    task = cli.task()
    cli.run("subagent", "spawn", task, "--wait", "--id", "one", "--", "echo", "hi")
    assert "root_held" in cli.run("--json", "steward", "run", code=1)
    steward = cli.json("steward", "status")["pid"]
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=BOUND_S)
    assert process.returncode == 0 and is_over(steward)
    assert f"{task}/one agent.subagent_closed" in err and "steward stopped" in err


def test_the_unit_is_printed_and_a_machine_without_systemd_is_told_so(cli: Cli) -> None:
    shown = cli.run("service", "install", "--print")
    assert f"--root {cli.root} steward run" in shown and "KillMode=process" in shown
    assert not cli.json("service", "status")["installed"]
    cli.environment |= {"PATH": "/nonexistent"}
    said = json.loads(cli.run("--json", "service", "install", code=1))
    assert said["error"]["code"] == "no_systemd"
    assert not cli.root.exists()


def test_a_steward_in_the_foreground_outlives_a_refused_command_in_a_new_root(cli: Cli) -> None:
    process = cli.start("steward", "run")
    assert process.stderr is not None
    assert any("is ready" in line for line in process.stderr)
    pid = cli.json("steward", "status")["pid"]
    cli.run("task", "show", "unknown", code=3)
    assert cli.json("steward", "status")["pid"] == pid
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=BOUND_S)
    assert not cli.root.exists()


def test_a_steward_ends_with_the_program_that_a_service_manager_watches(cli: Cli) -> None:
    process = cli.start("steward", "run")
    assert process.stderr is not None
    assert any("is ready" in line for line in process.stderr)
    pid = cli.json("steward", "status")["pid"]
    process.kill()
    process.communicate(timeout=BOUND_S)  # the steward has standard error, too
    assert until(lambda: is_over(pid))


def test_a_steward_serves_the_socket_that_systemd_holds(cli: Cli, tmp_path: Path) -> None:
    cli.task()
    cli.run("steward", "stop")
    with (
        socket.socket(socket.AF_UNIX) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
    ):
        listener.bind(str(cli.root / "steward.sock"))
        listener.listen()
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(BOUND_S)
        words = f'LISTEN_PID=$$ LISTEN_FDS=1 NOTIFY_SOCKET={tmp_path / "notify"} exec "$@"'
        process = subprocess.Popen(
            ["sh", "-c", words, "-", sys.executable, "-m", "retinue", "steward", "run"],
            cwd=cli.folder,
            env=cli.environment,
            preexec_fn=lambda: os.dup2(listener.fileno(), 3),
            close_fds=False,
        )
        assert manager.recv(100) == b"READY=1"
        pid = cli.json("steward", "status")["pid"]
        assert cli.json("steward", "stop")["pid"] == pid and process.wait(BOUND_S) == 0
        # systemd still listens: it starts the service again when the next client connects.
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(cli.root / "steward.sock"))
            listener.accept()[0].close()


SYSTEMCTL = """#!/bin/sh
echo "$*" >> {log}
case "$*" in *{refuses}*) echo 'Failed to connect to bus' >&2; exit 1;; esac
"""


@pytest.mark.parametrize("refuses", ["show-environment", "enable"])
def test_a_service_that_systemd_refuses_leaves_no_unit(
    cli: Cli, tmp_path: Path, refuses: str
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    fake = programs / "systemctl"
    fake.write_text(SYSTEMCTL.format(log=tmp_path / "log", refuses=f"--user*{refuses}"))
    fake.chmod(0o755)
    cli.environment |= {"PATH": f"{programs}:{os.defpath}", "XDG_CONFIG_HOME": str(tmp_path)}
    said = json.loads(cli.run("--json", "service", "install", code=1))
    assert said["error"]["code"] == "no_systemd" and refuses in (tmp_path / "log").read_text()
    assert not [*(tmp_path / "systemd").rglob("retinue-*")]
    assert not cli.json("service", "status")["installed"]


def test_a_service_is_installed_with_its_socket_in_place_of_a_running_steward(
    cli: Cli, tmp_path: Path
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    fake = programs / "systemctl"
    fake.write_text(SYSTEMCTL.format(log=tmp_path / "log", refuses="nothing"))
    fake.chmod(0o755)
    cli.environment |= {"PATH": f"{programs}:{os.defpath}", "XDG_CONFIG_HOME": str(tmp_path)}
    cli.task()
    pid = cli.json("steward", "status")["pid"]
    service = Path(cli.json("service", "install")["path"])
    assert is_over(pid)
    unit = service.with_suffix(".socket").read_text()
    assert f"ListenStream={cli.root}/steward.sock" in unit and "Type=notify" in service.read_text()
    enabled = (tmp_path / "log").read_text().splitlines()[-1]
    assert enabled.endswith(f"enable --now {service.stem}.socket {service.name}")
    assert cli.json("service", "remove")["removed"] and not service.exists()


def test_metrics_count_what_the_root_has(cli: Cli) -> None:
    task = cli.task()
    cli.run("subagent", "spawn", task, "--wait", "--id", "one", "--", "echo", "hi")
    shown = cli.run("metrics")
    assert 'retinue_tasks{state="open"} 1' in shown
    assert 'retinue_subagents{status="completed"} 1' in shown
    process = cli.start("metrics", "--listen", "127.0.0.1:0")
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    with urllib.request.urlopen(url, timeout=BOUND_S) as answer:
        assert 'retinue_tasks{state="open"} 1' in answer.read().decode()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=BOUND_S)
    cli.run("metrics", "--listen", "0.0.0.0:9464", code=2)


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_metrics_are_served_on_loopback_and_to_no_page_of_another_name(
    capfd: pytest.CaptureFixture[str], host: str, shown: str
) -> None:
    served = threading.Thread(
        target=serve_metrics, args=(host, 0, lambda: "figures 1\n"), daemon=True
    )
    served.start()
    printed: list[str] = []
    until(lambda: bool(printed.append(capfd.readouterr().out) or "".join(printed).strip()))
    url = "".join(printed).strip()
    assert url.startswith(f"http://{shown}:") and url.endswith("/metrics")
    with urllib.request.urlopen(url, timeout=BOUND_S) as answer:
        assert answer.read() == b"figures 1\n"
    foreign = urllib.request.Request(url, headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(foreign, timeout=BOUND_S)
    refused.value.close()
    assert refused.value.code == 403


def test_a_webhook_is_told_of_an_end_and_of_a_gate(cli: Cli, tmp_path: Path) -> None:
    with serve_hooks() as (url, got):
        folder = tmp_path / "config" / "retinue"
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(f"webhooks:\n  - url: {url}\n    on: [ended]\n")
        cli.environment |= {"XDG_CONFIG_HOME": str(tmp_path / "config")}
        task = cli.task()
        cli.run("subagent", "spawn", task, "--wait", "--id", "one", "--", "echo", "hi")
        path, message = got.get(timeout=BOUND_S)
    assert path == "/hook?key=1"
    assert (message["on"], message["task_id"], message["subagent_id"]) == ("ended", task, "one")


def test_a_webhook_that_does_not_answer_delays_nothing(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "config" / "retinue"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("webhooks: [{url: 'http://127.0.0.1:9/'}]\n")
    cli.environment |= {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    task = cli.task()
    cli.run("subagent", "spawn", task, "--wait", "--id", "one", "--", "echo", "hi")
    cli.run("steward", "stop")


@pytest.mark.parametrize(("status", "sent"), [(429, 2), (404, 1)])
def test_a_webhook_that_is_told_to_come_later_is_sent_again(status: int, sent: int) -> None:
    with serve_hooks(status, 200) as (url, got):
        hook = Webhook(url=url, types=frozenset({events.TASK_CLOSED}))
        sender = WebhookSender([hook], Path("/root"), lambda text: None)
        recorded = Recorded(
            seq=1,
            ts="2026-01-01T00:00:00Z",
            task=TaskId("t"),
            run=RunId("r"),
            step_idx=None,
            contract_sha256=None,
            event=Event(type=events.TASK_CLOSED, summary="closed"),
        )
        sender(TaskId("t"), [recorded])
        sender.close(BOUND_S)
        assert got.qsize() == sent


def test_an_address_that_cannot_be_reached_is_a_problem_and_not_an_exception() -> None:
    assert "range" in post("http://a:99999/", b"{}")
    assert "control characters" in post("http://a b/", b"{}")


def test_a_redirect_is_not_followed() -> None:
    with serve_hooks(302) as (url, got):
        assert post(url, b"{}") == "status 302"
        assert got.qsize() == 1


@pytest.mark.parametrize(
    "text",
    [
        "webhooks: {url: http://a/}",
        "webhooks: [{url: 'file:///etc/passwd'}]",
        "webhooks: [{url: 'http://a/', on: [everything]}]",
        "webhooks: [{url: 'http://a/', headers: {}}]",
        "webhooks: [{url: 'http://[::1'}]",
        "webhooks: [{url: 'http://a:port/'}]",
        "webhooks: [{url: 'http://a:99999/'}]",
        "webhooks: [{url: 'http://a b/'}]",
    ],
)
def test_a_wrong_webhook_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(BadInput):
        read_webhooks(path)
    assert set(KINDS) == {"ended", "gate", "node_lost"}


def test_the_level_of_the_log_is_set_by_a_variable(cli: Cli) -> None:
    cli.environment |= {"RETINUE_LOG": "warning"}
    cli.task()
    cli.run("steward", "stop")
    assert (cli.root / "steward.log").read_text() == ""
    cli.environment |= {"RETINUE_LOG": "debug"}
    cli.task()
    until(lambda: "run.started" in (cli.root / "steward.log").read_text())
