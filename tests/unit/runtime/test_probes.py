"""Parsing of what a probe child reports of its own boundary."""

from __future__ import annotations

import pytest

from retinue.runtime import probes

INSIDE = """Name:\tcat
Uid:\t1000\t1000\t1000\t1000
CapInh:\t0000000000000000
CapPrm:\t0000000000000000
CapEff:\t0000000000000000
CapBnd:\t{bounding}
CapAmb:\t0000000000000000
NoNewPrivs:\t{privileges}
Seccomp:\t{seccomp}
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
    lo:    3193      29    0    0    0     0          0         0     3193      29    0    0
"""


def inside(bounding: str = "0" * 16, privileges: str = "1", seccomp: str = "2") -> probes.Seen:
    return probes.parse_isolation(
        INSIDE.format(bounding=bounding, privileges=privileges, seccomp=seccomp)
    )


def test_a_complete_boundary_is_recognized() -> None:
    seen = inside()
    assert (seen.uid, seen.capabilities, seen.interfaces) == (1000, 0, ("lo",))
    assert seen.complete


@pytest.mark.requirement("R273")
@pytest.mark.parametrize(
    "lack", [{"bounding": "000001ffffffffff"}, {"privileges": "0"}, {"seccomp": "0"}]
)
def test_a_boundary_with_a_gap_is_not_complete(lack: dict[str, str]) -> None:
    assert not inside(**lack).complete


def test_other_output_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks"):
        probes.parse_isolation("cat: /proc/self/status: No such file or directory\n")
