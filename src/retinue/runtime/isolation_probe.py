"""Probe of isolation: what an isolated child sees of its own boundary."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.child import landlock
from retinue.runtime.cgroups import PREFIX

COMMAND = ("/bin/cat", "/proc/self/status", "/proc/self/net/dev", "/proc/self/cgroup")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The boundary as the kernel reports it inside, not as it was requested outside."""

    uid: int
    capabilities: int
    no_new_privileges: bool
    filtered: bool  # system calls, by seccomp
    interfaces: tuple[str, ...]
    landlock_version: int
    in_own_cgroup: bool = False

    @property
    def complete(self) -> bool:
        return self.filtered and self.no_new_privileges and not self.capabilities


def read(output: str) -> Seen:
    """Parse the output of COMMAND.

    Raises:
        ValueError: a field is missing.
    """
    facts: dict[str, str] = {}
    for line in output.splitlines():
        name, _, rest = line.partition(":")
        facts[name.strip()] = rest.strip()
    try:
        held = [int(facts[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")]
        return Seen(
            uid=int(facts["Uid"].split()[1]),
            capabilities=held[0] | held[1] | held[2] | held[3] | held[4],
            no_new_privileges=facts["NoNewPrivs"] == "1",
            filtered=facts["Seccomp"] == "2",
            # Lines of /proc/net/dev are those with 16 numbers after the name.
            interfaces=tuple(name for name, rest in facts.items() if rest.count(" ") >= 15),
            landlock_version=landlock.read_abi_version(),
            in_own_cgroup=f"/{PREFIX}" in facts.get("0", ""),
        )
    except (KeyError, IndexError) as fault:
        raise ValueError(f"the output of the probe child lacks {fault}") from None
