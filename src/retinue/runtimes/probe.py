"""What a child that was isolated on trial saw of its own boundary."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.child import landlock

COMMAND = ("/bin/cat", "/proc/self/status", "/proc/self/net/dev")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The kernel's word from inside, not what was asked for from outside."""

    uid: int
    capabilities: int
    no_new_privileges: bool
    filtered: bool  # its system calls
    interfaces: tuple[str, ...]
    landlock_version: int

    @property
    def complete(self) -> bool:
        return self.filtered and self.no_new_privileges and not self.capabilities


def read(output: str) -> Seen:
    """Raises:
    ValueError: this is not what the command prints.
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
            interfaces=tuple(name for name, rest in facts.items() if rest.count(" ") >= 15),
            landlock_version=landlock.version(),
        )
    except (KeyError, IndexError) as fault:
        raise ValueError(f"the trial's output lacks {fault}") from None
