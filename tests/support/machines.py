"""Machines as network namespaces on one bridge, made and removed by the test."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from support.cluster import wait_for

SUBNET = "10.77.0"
PROGRAMS = ("unshare", "nsenter", "ip")


def can_make_machines() -> bool:
    """Return whether this user may make network namespaces here."""
    if not all(map(shutil.which, PROGRAMS)):
        return False
    return subprocess.run([*_unshare(), "true"], capture_output=True, check=False).returncode == 0


def _unshare() -> list[str]:
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--net"]


class Machines:
    """Several machines; the first is at 10.77.0.1 and has the bridge, the next at 10.77.0.2.

    A machine is a network namespace that a sleeping process holds; it ends with `close`, and all
    devices with it.
    """

    def __init__(self, *names: str) -> None:
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        first, *others = names
        self._hold(first, _unshare())
        self._do(first, "ip link set lo up; ip link add br0 type bridge; ip link set br0 up")
        self._do(first, f"ip addr add {SUBNET}.1/24 dev br0; ip route add default dev br0")
        for number, name in enumerate(others, 2):
            self._hold(name, [*self.enter(first), "unshare", "--net"])
            there = self._find_process(name)
            self._do(
                first,
                f"ip link add cable{number} type veth peer name eth0 netns {there}; "
                f"ip link set cable{number} master br0 up",
            )
            address = f"ip addr add {SUBNET}.{number}/24 dev eth0"
            self._do(name, f"ip link set lo up; {address}; ip link set eth0 up")

    def _hold(self, name: str, before: list[str]) -> None:
        """Start the process that holds the namespace, and wait until it is in there."""
        holder = subprocess.Popen([*before, "sleep", "600"])
        self._holders[name] = holder
        wait_for(lambda: Path(f"/proc/{holder.pid}/comm").read_text() == "sleep\n")

    def _find_process(self, name: str) -> int:
        return self._holders[name].pid

    def enter(self, name: str) -> list[str]:
        """Return the words before a command that is to run on a machine."""
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        return ["nsenter", "--target", str(self._find_process(name)), "--net", *user]

    def _do(self, name: str, script: str) -> None:
        done = subprocess.run(
            [*self.enter(name), "sh", "-ec", script], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{script}: {done.stderr}"

    def close(self) -> None:
        for holder in self._holders.values():
            holder.kill()
            holder.wait()
