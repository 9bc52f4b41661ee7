"""A hub, nodes as plain processes, and a connected root, all on the loopback of this machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from retinue.core.errors import StewardUnavailable
from support.roots import Root

BOUND_S = 40.0
LOST = (StewardUnavailable, OSError, ValueError)  # what a caller sees of a killed steward
LEASE_S = 3.0
TASK = "work"


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Link:
    """A way to the hub that can be cut: bytes and new connections then get stuck, as on a network
    that drops all packets, and go on when it is mended."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.seen: bytearray | None = None  # what passed it, once it is to be captured
        self._open = threading.Event()
        self._open.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        self._open.set()

    def close(self) -> None:
        self.mend()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self._open.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self._to))
        except OSError:
            near.close()
            return
        for each in (near, far):
            # Otherwise the kernel holds small pieces back for 40 ms, unlike a network.
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for pair in ((near, far), (far, near)):
            threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._open.wait()
                if self.seen is not None:
                    self.seen += data
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class Lab:
    """One hub, its nodes and one root. Everything that it starts ends with `close`."""

    def __init__(self, top: Path, lease_s: float = LEASE_S) -> None:
        self.top = top
        self.project = top / "project"
        self.root = self.project / ".retinue"
        self.project.mkdir(parents=True)
        self.marks = top / "marks"
        self.marks.mkdir()
        self.marks.chmod(0o777)
        self.lease_s = lease_s
        self.port = find_free_port()
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.links: dict[str, Link] = {}
        self.config = ""
        self.hosts = ""  # addresses of all servers of the hub, where there are several
        self.calls = Root(self.root)

    def environment(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("RETINUE_")}
        return {
            **kept,
            "RETINUE_HUB": str(self.top / "hub"),
            "RETINUE_IDLE_SECONDS": "30",
            **more,
        }

    def run(self, *words: str, check: bool = True, **more: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "retinue", *words],
            cwd=self.project,
            env=self.environment(**more),
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json").stdout)

    def call(self, verb: str, **params: Any) -> Any:
        """The answer of a verb, over one connection; a steward that is gone is started again."""
        for _ in range(3):
            try:
                return self.calls.call(verb, **params)
            except LOST:
                self.calls.release()
                self.run("task", "list")
        return self.calls.call(verb, **params)

    def open(self, config: str = "") -> Lab:
        """Make a root with a task and start the hub there."""
        words = ["task", "create", "--title", "T", "--id", TASK]
        if config:
            (self.top / "config.yaml").write_text(config)
            words += ["--config", str(self.top / "config.yaml")]
        self.run(*words)
        self.run("hub", "start", "--listen", f"127.0.0.1:{self.port}", "--lease", str(self.lease_s))
        return self

    def join(self, name: str, *words: str, slots: int = 8, **more: str) -> None:
        """Let a new node join over a link of its own, and wait until it serves."""
        link = self.links[name] = Link(self.port)
        invitation = self.run("hub", "invite", "--host", f"127.0.0.1:{link.port}").stdout.strip()
        self.start_node(
            name, "join", invitation, "--name", name, "--slots", str(slots), *words, **more
        )

    def restart(self, name: str, *words: str, slots: int = 8, **more: str) -> None:
        self.start_node(name, "start", "--slots", str(slots), *words, **more)

    def put_steward_behind(self, link: Link) -> None:
        """Let the next steward reach the hub over that link."""
        self.calls.release()
        self.run("steward", "stop")
        file = self.root / "cluster.json"
        document = json.loads(file.read_text())
        document["address"]["url"] = f"127.0.0.1:{link.port}"
        file.write_text(json.dumps(document))

    def restart_soon(self, name: str, slots: int) -> None:
        """Start a node's program again, without waiting until it serves."""
        self._begin(name, "start", "--slots", str(slots))

    def _begin(self, name: str, *words: str, **more: str) -> subprocess.Popen[bytes]:
        with open(self.top / f"{name}.log", "ab") as log:
            process = self.nodes[name] = subprocess.Popen(
                [sys.executable, "-m", "retinue", "node", *words, "--root", str(self.top / name)],
                cwd=self.top,
                env=self.environment(**more),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        return process

    def start_node(self, name: str, *words: str, **more: str) -> None:
        """Start a node's program, and wait until it serves."""
        process = self._begin(name, *words, **more)
        assert process.stdout is not None
        line = process.stdout.readline()
        if b"serves" not in line and not more.get("RETINUE_NODE_FAILPOINT"):
            raise AssertionError((self.top / f"{name}.log").read_text())

    def kill(self, name: str) -> None:
        """kill -9 of a node's program; its children go on."""
        process = self.nodes.pop(name)
        process.kill()
        process.wait()

    def kill_steward(self) -> None:
        pid = self.json("steward", "status")["pid"]
        if pid:
            os.kill(pid, signal.SIGKILL)

    def find_hub_process(self) -> int:
        return int((self.top / "hub" / "nats.pid").read_text())

    def spawn(self, name: str, script: str, *words: str, on: str = "x86_64") -> None:
        placed = ("--on", on) if on else ()
        self.run("subagent", "spawn", TASK, "--id", name, *placed, *words, "--", "sh", "-c", script)

    def result(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call("subagent.result", task=TASK, subagent=name)
        return found

    def show(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call("subagent.show", task=TASK, subagent=name)
        return found

    def list_nodes(self) -> dict[str, dict[str, Any]]:
        return {row["node"]: row for row in self.call("nodes.list")}

    def wait_closed(self, *names: str, seconds: float = BOUND_S) -> list[dict[str, Any]]:
        """Wait until these subagents are closed; return their rows."""

        def look() -> list[dict[str, Any]] | None:
            rows = [self.show(name) for name in names]
            return rows if all(row["state"] == "closed" for row in rows) else None

        found: list[dict[str, Any]] = wait_for(look, seconds)
        return found

    def folder(self, name: str) -> Path:
        return self.root / "tasks" / TASK / "agents" / name

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        log = self.root / "tasks" / TASK / "events.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        return [line for line in lines if line["type"].startswith(kind)]

    def close(self) -> None:
        self.calls.release()
        self.run("steward", "stop", "--cancel", check=False)
        for process in self.nodes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        self.run("hub", "stop", check=False)
        for link in self.links.values():
            link.close()


def wait_for(look: Callable[[], Any], seconds: float = BOUND_S) -> Any:
    """Return the first true value of `look`."""
    until = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.05)
    return found
