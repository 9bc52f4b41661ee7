"""Every durable system call of a run: killed before it, or failed by the disk."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from faults.tracing import Play, await_free, count_calls, traced, usable
from retinue.formats.steward_protocol import error_from_json
from support.reader import Reader
from support.roots import ROUNDS, Root, holder
from support.traces import processes_that_mention

EVERY = 1 if ROUNDS else 29  # of some two hundred calls, which take seconds each
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not usable(), reason="strace may not trace here"),
]


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int]]:
    """Every durable system call of a run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("calls")
    root = Root(folder / ".retinue")
    with traced(root.path, "-o", str(folder / "log")):
        assert Play(root).run()
        root.stop()
    return count_calls(folder / "log")


def check_end(root: Root) -> None:
    """Without faults all comes to its end, as if there never had been any."""
    play = Play(root)
    assert play.run()
    Reader(root.path).check(finished=True)
    root.sound()
    assert processes_that_mention(str(root.path / "tasks")) == {}
    root.stop()


@pytest.mark.requirement("R112", "R124", "R132")
def test_a_steward_killed_at_any_durable_call_loses_nothing(
    tmp_path: Path, calls: list[tuple[str, int]]
) -> None:
    for call, number in calls[::EVERY]:
        root = Root(tmp_path / f"{call}-{number}" / ".retinue")
        root.path.parent.mkdir()
        inject = f"-einject={call}:signal=KILL:when={number}"
        with traced(root.path, "-o/dev/null", inject) as said:
            if "ready" in said:
                Play(root).run()
            root.stop()
        await_free(root.path)
        check_end(root)
        assert Play(root).ran() == [1, 1], f"{call} {number}"


@pytest.mark.parametrize("commit", [4, 5])
def test_a_refused_call_does_not_come_back_after_a_crash(tmp_path: Path, commit: int) -> None:
    """What could not be synced was written all the same, and must not be taken for committed."""
    root = Root(tmp_path / ".retinue")
    play = Play(root, tries=1)
    with traced(root.path, "-o/dev/null", f"-einject=fdatasync:error=EIO:when={commit}"):
        assert not play.run()
        steward = holder(root.path)
        assert steward is not None
        os.kill(steward, signal.SIGKILL)
    await_free(root.path)
    assert play.refused is not None
    play.check_refused(play.refused)
    check_end(root)


@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_what_the_disk_refuses_is_refused_by_name_and_nothing_of_it_exists(
    tmp_path: Path, calls: list[tuple[str, int]], error: str
) -> None:
    for call, number in calls if ROUNDS else calls[5 :: 2 * EVERY]:
        root = Root(tmp_path / f"{call}-{number}" / ".retinue")
        root.path.parent.mkdir()
        play = Play(root)
        inject = f"-einject={call}:error={error}:when={number}"
        with traced(root.path, "-o/dev/null", inject) as said:
            if "ready" in said:
                play.run()
            else:
                play.refusals.append(error_from_json(said["error"]))
            root.release()
            pid = holder(root.path)
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
        assert play.refused is None
        for refusal in play.refusals:
            assert refusal.code in ("storage_failed", "disk_full"), (call, number, refusal)
            assert str(root.path) in refusal.message
            assert "SQLITE_" in refusal.message or "errno" in refusal.message
        await_free(root.path)
        check_end(root)
        assert max(play.ran()) == 1, f"{call} {number}"
