"""The commands `retinue service` and `retinue metrics`, and `retinue steward run`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click

from retinue.cli import render
from retinue.cli.options import CliCommand, CliGroup
from retinue.cli.steward_session import CliSession
from retinue.core.errors import BadInput, RetinueError, StewardUnavailable
from retinue.core.ids import make_slug

# A steward in the foreground does not exit for lack of work.
NEVER_SECONDS = 10 * 365 * 86400
UNIT = """\
[Unit]
Description=Retinue steward of {root}

[Service]
ExecStart={program} -P -m retinue --root {root} steward run
# Keys for models, one NAME=value per line; readable by you alone.
EnvironmentFile=-%h/.config/retinue/environment
Restart=on-failure
# Subagents outlive a restart of the steward: the next one takes them over.
KillMode=process
# Lets the steward limit memory and processes of each subagent.
Delegate=yes

[Install]
WantedBy=default.target
"""


def run_in_foreground(session: CliSession) -> int:
    """Run the steward of the root until it is stopped; return its exit code.

    Raises:
        RetinueError: the steward cannot start, or another one runs.
    """
    from retinue.client.blocking_client import connect_if_running
    from retinue.formats import steward_protocol
    from retinue.trust import make_root

    root = session.find_folder()
    if (running := connect_if_running(root)) is not None:
        running.close()
        raise StewardUnavailable(
            f"a steward of {root} runs already",
            code="root_held",
            hint="'retinue steward stop' stops it",
        )
    words = [] if root.exists() else [steward_protocol.NEW_ROOT]
    make_root(root, os.environ)
    ours, theirs = os.pipe()
    environment = {"RETINUE_IDLE_SECONDS": str(NEVER_SECONDS), **os.environ}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "retinue.steward", str(root), str(theirs), *words],
        stdin=subprocess.DEVNULL,
        env=environment,
        pass_fds=[theirs],
    )
    os.close(theirs)
    # The terminal sends Ctrl-C to both processes; a service manager signals this one only.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGTERM))
    with os.fdopen(ours, "rb") as ready:
        said = ready.readline()
    _report_start(root, said)
    return process.wait()


def _report_start(root: Path, said: bytes) -> None:
    """Raises:
    RetinueError: the steward did not start.
    """
    import json

    from retinue.formats.steward_protocol import error_from_json

    message = json.loads(said) if said else {}
    if "error" in message:
        raise error_from_json(message["error"])
    if "ready" not in message:
        raise StewardUnavailable("the steward ended before it was ready")
    render.note(f"the steward of {root} is ready, process {message['pid']}; Ctrl-C stops it")


@click.group(cls=CliGroup, example="retinue service install")
def service() -> None:
    """Run the steward of a root as a systemd user service.

    It then starts with your session, or at boot after 'loginctl enable-linger', and resumes
    open runs.
    """


@service.command("install", example="retinue service install\nretinue service install --print")
@click.option("--print", "printed", is_flag=True, help="Only print the unit.")
@click.pass_obj
def install(session: CliSession, printed: bool) -> None:
    """Write the unit, enable it and start it."""
    root = session.find_folder()
    text = build_unit(root)
    if printed:
        session.answer({"unit": text, "path": str(find_unit(root))}, lambda it: it["unit"].rstrip())
        return
    path = find_unit(root)
    run_systemctl("--version")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    run_systemctl("daemon-reload")
    run_systemctl("enable", "--now", path.name)
    session.answer({"installed": True, "path": str(path)}, lambda it: f"installed {it['path']}")


@service.command("remove", example="retinue service remove")
@click.pass_obj
def remove(session: CliSession) -> None:
    """Stop the service and remove its unit; subagents continue."""
    path = find_unit(session.find_folder())
    if not path.exists():
        session.answer({"removed": False, "path": str(path)}, lambda it: "not installed")
        return
    run_systemctl("disable", "--now", path.name)
    path.unlink(missing_ok=True)
    run_systemctl("daemon-reload")
    session.answer({"removed": True, "path": str(path)}, lambda it: f"removed {it['path']}")


@service.command("status", example="retinue service status --json")
@click.pass_obj
def status(session: CliSession) -> None:
    """Show whether the service is installed and active. Always exits with 0."""
    path = find_unit(session.find_folder())
    document: dict[str, Any] = {"installed": path.exists(), "path": str(path), "active": "unknown"}
    try:
        document["active"] = run_systemctl("is-active", path.name, check=False)
    except RetinueError as error:
        document["problem"] = error.message
    session.answer(document, lambda it: render.format_facts(it.items()))


def find_unit(root: Path) -> Path:
    """Return the place of the unit of a root; the name is that of its project's folder."""
    import hashlib

    base = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(base) if base.startswith("/") else Path.home() / ".config"
    mark = hashlib.sha256(os.fsencode(root)).hexdigest()[:8]
    name = f"retinue-{make_slug(root.parent.name) or 'root'}-{mark}.service"
    return folder / "systemd" / "user" / name


def build_unit(root: Path) -> str:
    """Return the text of the unit.

    Raises:
        BadInput: the path cannot be written into a unit.
    """
    words = {"root": str(root), "program": sys.executable}
    for text in words.values():
        if any(character in text for character in "\n\r\"'\\ \t%$"):
            raise BadInput(
                f"{text} has characters that a unit cannot name",
                code="bad_root",
                hint="use a path without spaces, quotes, '%' and '$'",
            )
    return UNIT.format(**words)


def run_systemctl(*words: str, check: bool = True) -> str:
    """Run `systemctl --user` and return what it printed.

    Raises:
        RetinueError: there is no systemd for this user, or it refused.
    """
    program = shutil.which("systemctl")
    if program is None:
        raise RetinueError(
            "there is no systemd on this machine",
            code="no_systemd",
            hint="'retinue steward run' runs the steward in the foreground, for any other service "
            "manager; 'retinue service install --print' prints the unit",
        )
    done = subprocess.run(
        [program, "--user", *words], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode and check:
        why = done.stderr.strip().splitlines()
        raise RetinueError(
            f"systemctl --user {words[0]}: {why[-1] if why else done.returncode}",
            code="no_systemd",
            hint="without a user session of systemd, use 'retinue steward run'",
        )
    return done.stdout.strip() or done.stderr.strip()


@click.command(cls=CliCommand, example="retinue metrics\nretinue metrics --listen 127.0.0.1:9464")
@click.option("--listen", metavar="HOST:PORT", help="Serve them at /metrics; loopback only.")
@click.pass_obj
def metrics(session: CliSession, listen: str | None) -> None:
    """Print figures of the root in the text format of Prometheus.

    Tasks, subagents by status, child processes, events, tokens, cost, and the steward's own
    use of processor and memory.
    """
    if listen is None:
        document = session.call("metrics")
        session.answer(document, lambda it: it["text"].rstrip())
        return
    host, port = _parse_address(listen)
    serve_metrics(host, port, lambda: str(session.call("metrics")["text"]))


def _parse_address(text: str) -> tuple[str, int]:
    from ipaddress import ip_address

    host, _, port = text.rpartition(":")
    name = host.strip("[]")
    try:
        good = name == "localhost" or ip_address(name).is_loopback
        number = int(port)
    except ValueError:
        good, number = False, 0
    if not good or not 0 <= number <= 65535:
        raise BadInput(
            f"--listen {text[:80]!a} is not a loopback address with a port",
            code="bad_address",
            hint="such as 127.0.0.1:9464; port 0 takes a free one",
        )
    return name, number


def serve_metrics(host: str, port: int, read: Callable[[], str]) -> None:
    """Answer GET /metrics until interrupted."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404)
                return
            try:
                body = read().encode()
            except (RetinueError, OSError):
                self.send_error(503)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise BadInput(f"{host}:{port}: {error.strerror}", code="bad_address") from None
    with server:
        render.print_line(f"http://{host}:{server.server_port}/metrics")
        render.flush()
        server.serve_forever()
