"""Whom an isolated child can talk to: nobody, unless its contract gives it the network."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from support.roots import python, sh
from support.scenes import PYTHON, Attack, Scene, libraries, needs_python, package

pytestmark = needs_python

FAMILIES = ("netlink", "packet", "alg", "vsock", "xdp", "raw", "ping", "io_uring")


class Listeners:
    """Everybody on this machine who would answer a child, and whether anybody ever asked."""

    def __init__(self, folder: Path) -> None:
        self.heard: list[str] = []
        self._open = ExitStack()
        self.unix = str(folder / "listener.sock")
        self.abstract = f"\0retinue-{os.getpid()}-{folder.name}"
        self.tcp = self._listen("tcp", socket.AF_INET, ("", 0)).getsockname()[1]
        self._listen("unix", socket.AF_UNIX, self.unix)
        os.chmod(self.unix, 0o777)
        self._listen("abstract", socket.AF_UNIX, self.abstract)
        with suppress(OSError):  # a machine without version 6
            self._listen("tcp6", socket.AF_INET6, ("::1", self.tcp))
        self.udp = self._answer()

    def targets(self) -> dict[str, Any]:
        hosts = ["127.0.0.1", *filter(None, [own_address()])]
        named = {"tcp": self.tcp, "udp": self.udp, "unix": self.unix, "abstract": self.abstract}
        return named | {"hosts": hosts}

    def close(self) -> None:
        self._open.close()

    def _listen(self, name: str, family: int, address: Any) -> socket.socket:
        listener = self._open.enter_context(socket.socket(family, socket.SOCK_STREAM))
        listener.bind(address)
        listener.listen()
        self._open.callback(listener.shutdown, socket.SHUT_RDWR)  # wakes whoever waits on it

        def hear() -> None:
            connection, _ = listener.accept()
            self.heard.append(name)
            connection.close()

        self._serve(hear)
        return listener

    def _answer(self) -> int:
        receiver = self._open.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        receiver.bind(("", 0))

        def reply() -> None:
            _, sender = receiver.recvfrom(16)
            if sender is None:
                raise OSError("it was closed")
            self.heard.append("udp")
            receiver.sendto(b"hello", sender)

        self._serve(reply)
        return int(receiver.getsockname()[1])

    def _serve(self, once: Any) -> None:
        def loop() -> None:
            with suppress(OSError):  # it was closed
                while True:
                    once()

        threading.Thread(target=loop, daemon=True).start()


def own_address() -> str:
    """This machine's address on its network, if it is on one; nothing is sent to find out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])
    return ""


@pytest.fixture(scope="module")
def listeners(scene: Scene) -> Iterator[Listeners]:
    made = Listeners(scene.place)
    with socket.create_connection(("127.0.0.1", made.tcp), 5) as there:
        there.recv(1)
    assert made.heard == ["tcp"], "it listens, and hears"
    made.heard.clear()
    yield made
    made.close()


@pytest.fixture(scope="module", params=["off", "models"])
def silent(scene: Scene, listeners: Listeners, request: pytest.FixtureRequest) -> Attack:
    task = scene.task(f"    subagent_network: {request.param}\n")
    return scene.attack(task, "calling", targets=listeners.targets())


@pytest.mark.requirement("R78")
def test_without_network_no_address_is_reached(silent: Attack, listeners: Listeners) -> None:
    ways = ("tcp ", "mptcp ", "udp ", "metadata", "name servers", "unix, ")
    assert not silent.worked(*ways)
    assert listeners.heard == []


def test_without_network_no_other_kind_of_socket_is_to_be_had(silent: Attack) -> None:
    assert not silent.worked(*FAMILIES)
    assert silent.tries["a pair of sockets"]["ok"], "what stays within the child stays possible"


def test_a_loopback_of_its_own_is_what_a_child_gets_unless_told_otherwise(
    scene: Scene, listeners: Listeners
) -> None:
    attack = scene.attack(scene.task(), "calling", targets=listeners.targets())
    assert attack.error("tcp 127.0.0.1") == "ECONNREFUSED"
    assert listeners.heard == []


def test_with_models_only_its_own_loopback_is_there(scene: Scene) -> None:
    task = scene.task("    subagent_network: models\n")
    script = "import socket; s = socket.create_server(('127.0.0.1', 0)); "
    script += "socket.create_connection(s.getsockname()); print('met')"
    met, shown = scene.root.run(task, python(script), sh("cat /proc/net/dev"))
    assert met["answer"].strip() == "met"
    assert [line.split(":")[0].strip() for line in shown["answer"].splitlines()[2:]] == ["lo"]


@pytest.fixture(scope="module")
def online(scene: Scene, listeners: Listeners) -> Attack:
    listeners.heard.clear()
    task = scene.task("    subagent_network: on\n")
    return scene.attack(task, "calling", targets=listeners.targets())


def test_with_network_the_machine_is_reached(online: Attack, listeners: Listeners) -> None:
    assert online.value("tcp 127.0.0.1") == "connected"
    assert online.value("udp 127.0.0.1") == "hello"
    assert {"tcp", "udp"} <= set(listeners.heard) <= {"tcp", "tcp6", "udp"}


def test_with_network_the_rest_of_the_boundary_stands(online: Attack) -> None:
    raw = ("mptcp ", "packet", "alg", "vsock", "xdp", "raw", "io_uring")
    assert not online.worked(*raw, "unix, ")


# -- the steward


def test_a_child_does_not_reach_the_steward_of_its_own_root(scene: Scene) -> None:
    """Not by its socket, not by the program, not with the program's own source at hand."""
    lent = [package(), libraries()]
    task = scene.task(f"    subagent_context_roots: {lent}\n")
    before = scene.root.counts()
    root = scene.root.path
    client = f"PYTHONPATH={':'.join(lent)} {PYTHON} -m retinue --root {root}"
    dial = f"import socket; socket.socket(socket.AF_UNIX).connect('{root}/steward.sock')"
    script = f"""
    {client} task show {task} && echo shown
    {client} subagent spawn {task} -- /bin/echo more && echo spawned
    {PYTHON} -c "{dial}" && echo connected
    grep -c {root} /proc/net/unix && echo seen
    retinue --version && echo found
    echo done
    """
    given = {"context_paths": [*lent, "./"]}
    (result,) = scene.root.run(task, sh(script, **given), cwd=str(scene.project))
    assert result["answer"].split() == ["0", "done"], result
    said = Path(result["log_path"], "stderr.log").read_text()
    assert said.count("error[") == 2, "the program ran, and was the one to give up"
    after = scene.root.counts()
    assert after["sub_agents"] == before["sub_agents"] + 1
    assert after["tasks"] == before["tasks"]
    assert not [each for each in scene.root.events(task) if "delegation" in each["type"]]


@pytest.mark.xfail(strict=True, reason="Landlock cannot yet tell whose socket a path leads to")
def test_a_socket_within_a_context_is_out_of_reach(scene: Scene) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(scene.project / "s"))
        os.chown(scene.project / "s", scene.who.uid, -1)
        (scene.project / "s").chmod(0o777)
        listener.listen()
        dial = f"import socket; socket.socket(socket.AF_UNIX).connect('{scene.project}/s')"
        brief = sh(f'{PYTHON} -c "{dial}" && echo connected || echo refused', context_paths=["./"])
        try:
            (result,) = scene.root.run(scene.task(), brief, cwd=str(scene.project))
        finally:
            (scene.project / "s").unlink()
        assert result["answer"].strip() == "refused"
