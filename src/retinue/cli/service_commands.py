"""The commands `retinue service` and `retinue metrics`, and `retinue steward run`."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click

from retinue.cli import collect_garbage, render
from retinue.cli.options import CliCommand, CliGroup
from retinue.cli.steward_session import CliSession
from retinue.core.errors import BadInput, RetinueError, StewardUnavailable
from retinue.core.ids import make_slug

# Clients that connect while the service starts or restarts wait, instead of starting another
# steward with the environment of their shell.
SOCKET_UNIT = """\
[Unit]
Description=Socket of the Retinue steward of {root}

[Socket]
ListenStream={root}/{socket}
SocketMode=0600

[Install]
WantedBy=sockets.target
"""
# systemd itself gives a unit 90 s to start or to stop.
SYSTEMCTL_SECONDS = 100
LONGEST_ADDRESS = 107  # bytes of a path that a socket can be bound to
LISTEN_FDS_START = 3  # the first descriptor that systemd passes
OF_SYSTEMD = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "NOTIFY_SOCKET")
UNIT = """\
[Unit]
Description=Retinue steward of {root}

[Service]
Type=notify
ExecStart={program} -P -m retinue --root {root} steward run
# Keys for models, one NAME=value per line; readable by you alone.
EnvironmentFile=-%h/.config/retinue/environment
Restart=on-failure
RestartSec=1
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
    listener = _find_listener(root)
    # A connection to a socket that systemd holds would only reach this process.
    if listener is None and (running := connect_if_running(root)) is not None:
        running.close()
        raise StewardUnavailable(
            f"a steward of {root} runs already",
            code="root_held",
            hint="'retinue steward stop' stops it",
        )
    words = [steward_protocol.STAY]
    if not root.exists():
        words.append(steward_protocol.NEW_ROOT)
    if listener is not None:
        words += [steward_protocol.LISTENER, str(listener)]
    make_root(root, os.environ)
    ours, theirs = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "retinue.steward", str(root), str(theirs), *words],
        stdin=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name not in OF_SYSTEMD},
        pass_fds=[theirs] if listener is None else [theirs, listener],
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
    if address := os.environ.get("NOTIFY_SOCKET"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, suppress(OSError):
            # A name in the abstract namespace begins with a null byte, which systemd writes as @.
            manager.sendto(b"READY=1", "\0" + address[1:] if address[0] == "@" else address)


def _find_listener(root: Path) -> int | None:
    """Return the descriptor of the root's socket, if systemd passed it to this process.

    Raises:
        BadInput: systemd passed something else.
    """
    from retinue.formats.steward_protocol import SOCKET

    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    path = str(root / SOCKET)
    names = []
    for number in range(int(os.environ.get("LISTEN_FDS", "0"))):
        with socket.socket(fileno=os.dup(LISTEN_FDS_START + number)) as passed:
            names.append(passed.getsockname())
    if names != [path]:
        raise BadInput(
            f"the service manager passed other sockets than {path}",
            code="bad_listener",
            hint="'retinue service install' writes units that fit",
        )
    return LISTEN_FDS_START


@click.group(cls=CliGroup, example="retinue service install")
def service() -> None:
    """Run the steward of a root as a systemd user service.

    It then starts with your session, or at boot after 'loginctl enable-linger', and resumes
    open runs. systemd holds its socket, so that commands wait while it restarts.
    """


@service.command("install", example="retinue service install\nretinue service install --print")
@click.option("--print", "printed", is_flag=True, help="Only print the units.")
@click.pass_obj
def install(session: CliSession, printed: bool) -> None:
    """Write the units of the service and its socket, enable and start them.

    A steward that runs already is stopped first; its subagents continue.
    """
    from retinue.trust import make_root

    root = session.find_folder()
    units = build_units(root)
    document = {
        "units": {path.name: text for path, text in units.items()},
        "path": str(next(iter(units))),
    }
    if printed:
        session.answer(document, lambda it: "\n".join(map(_format_unit, it["units"].items())))
        return
    run_systemctl("show-environment")
    make_root(root, os.environ)
    _remove_units([path for path in units if path.exists()])
    _stop_steward(session, root)
    try:
        for path, text in units.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        run_systemctl("daemon-reload")
        # The socket first: the service gets it from there.
        run_systemctl("enable", "--now", *reversed([path.name for path in units]))
    except (RetinueError, OSError):
        with suppress(RetinueError):
            _remove_units(units)
        raise
    session.answer({"installed": True} | document, lambda it: f"installed {it['path']}")


def _format_unit(unit: tuple[str, str]) -> str:
    name, text = unit
    return f"# {name}\n{text}"


def _stop_steward(session: CliSession, root: Path) -> None:
    """Stop a steward that holds the root: the service could not start beside it."""
    from retinue.cli.temporary_root import stop
    from retinue.client.blocking_client import connect_if_running

    held = connect_if_running(root)
    if held is not None:
        with held:
            stop(held, lambda: session.call("steward.stop"))
        render.note("the running steward was stopped; its subagents continue")


def _remove_units(units: Iterable[Path]) -> bool:
    """Stop these units and remove their files; return whether there were any."""
    found = [path for path in units if path.exists()]
    if found:
        try:
            run_systemctl("disable", "--now", *(path.name for path in found))
        finally:
            for path in found:
                path.unlink(missing_ok=True)
        run_systemctl("daemon-reload")
    return bool(found)


@service.command("remove", example="retinue service remove")
@click.pass_obj
def remove(session: CliSession) -> None:
    """Stop the service and remove its units; subagents continue."""
    units = build_units(session.find_folder())
    removed = _remove_units(units)
    path = str(next(iter(units)))
    session.answer(
        {"removed": removed, "path": path},
        lambda it: f"removed {it['path']}" if it["removed"] else "not installed",
    )


@service.command("status", example="retinue service status --json")
@click.pass_obj
def status(session: CliSession) -> None:
    """Show whether the service is installed and active. Always exits with 0."""
    path = next(iter(build_units(session.find_folder())))
    document: dict[str, Any] = {"installed": path.exists(), "path": str(path), "active": "unknown"}
    try:
        document["active"] = run_systemctl("is-active", path.name, check=False)
    except RetinueError as error:
        document["problem"] = error.message
    session.answer(document, lambda it: render.format_facts(it.items()))


def build_units(root: Path) -> dict[Path, str]:
    """Return the place and text of the units, the service first; they are named as the project.

    Raises:
        BadInput: the path cannot be written into a unit.
    """
    import hashlib

    from retinue.formats.steward_protocol import SOCKET

    words = {"root": str(root), "program": sys.executable}
    for text in words.values():
        if any(character in text for character in "\n\r\"'\\ \t%$"):
            raise BadInput(
                f"{text} has characters that a unit cannot name",
                code="bad_root",
                hint="use a path without spaces, quotes, '%' and '$'",
            )
    base = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(base) if base.startswith("/") else Path.home() / ".config"
    mark = hashlib.sha256(os.fsencode(root)).hexdigest()[:8]
    name = f"retinue-{make_slug(root.parent.name) or 'root'}-{mark}"
    units = {folder / "systemd" / "user" / f"{name}.service": UNIT.format(**words)}
    # Where the path is too long, commands that come during a restart start a steward themselves.
    if len(os.fsencode(root / SOCKET)) <= LONGEST_ADDRESS:
        units[folder / "systemd" / "user" / f"{name}.socket"] = SOCKET_UNIT.format(
            root=root, socket=SOCKET
        )
    return units


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
    try:
        done = subprocess.run(
            [program, "--user", *words],
            capture_output=True,
            text=True,
            timeout=SYSTEMCTL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RetinueError(
            f"systemctl --user {words[0]} did not end within {SYSTEMCTL_SECONDS} s",
            code="no_systemd",
            hint="'systemctl --user list-jobs' shows what it waits for",
        ) from None
    if done.returncode and (check or not done.stdout.strip()):
        why = done.stderr.strip().splitlines()
        raise RetinueError(
            f"systemctl --user {words[0]}: {why[-1] if why else done.returncode}",
            code="no_systemd",
            hint="in a session without systemd, use 'retinue steward run'; if a unit failed, "
            "'journalctl --user' says why",
        )
    return done.stdout.strip()


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
    collect_garbage()
    serve_metrics(host, port, lambda: str(session.call("metrics")["text"]))


def _names_loopback(host: str) -> bool:
    """Return whether a Host header, with or without a port, names this machine's loopback."""
    name = host if host.endswith("]") or ":" not in host else host.rpartition(":")[0]
    return _is_loopback(name.strip("[]"))


def _is_loopback(name: str) -> bool:
    from ipaddress import ip_address

    try:
        return name.lower() == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


def _parse_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    name = host.strip("[]")
    number = int(port) if port.isascii() and port.isdecimal() and len(port) < 6 else -1
    if not _is_loopback(name) or not 0 <= number <= 65535:
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
            # A page whose name resolves to loopback must not read them: DNS rebinding.
            if not _names_loopback(self.headers.get("Host", "")):
                self.send_error(403)
                return
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

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    try:
        server = Server((host, port), Handler)
    except OSError as error:
        raise BadInput(
            f"{host}:{port} cannot be used: {error.strerror}",
            code="bad_address",
            hint="port 0 takes a free one, as in --listen 127.0.0.1:0",
        ) from None
    with server:
        shown = f"[{host}]" if ":" in host else host
        render.print_line(f"http://{shown}:{server.server_port}/metrics")
        render.flush()
        server.serve_forever()
