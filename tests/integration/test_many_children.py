"""Many children under one runtime: each with its own end, and nothing held afterwards."""

from __future__ import annotations

import asyncio
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from integration.commands import BOUND_S, holdings, other_steward, shell, until
from retinue.core.result import Ending
from retinue.ports import LaunchOrder
from retinue.runtime import fork_server_client
from retinue.runtime.process_runtime import ProcessRuntime
from support.runtimes import needs_namespace


def holds_no_more_than(before: tuple[int, int, int]) -> bool:
    return all(now <= then for now, then in zip(holdings(), before, strict=True))


@pytest.fixture(autouse=True)
def soon_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inits that were made ahead wait for a moment only."""
    monkeypatch.setattr(fork_server_client, "KEPT_S", 0.1)


class TestMany:
    def test_any_number_may_await_the_end_and_give_up(
        self, runtime: ProcessRuntime, order: LaunchOrder
    ) -> None:
        async def whole() -> list[Ending]:
            async with asyncio.timeout(BOUND_S):
                before = holdings()
                child = await runtime.launch(shell(order, "while [ ! -e go ]; do sleep 0.01; done"))
                await child.release()
                waiting = [asyncio.create_task(child.wait_ended()) for _ in range(4)]
                await asyncio.sleep(0)
                waiting[0].cancel()
                waiting[1].cancel()
                await asyncio.wait(waiting[:2])
                (order.workspace / "go").touch()
                endings = [*await asyncio.gather(*waiting[2:]), await child.wait_ended()]
                await until(lambda: holds_no_more_than(before))
                return endings

        first, second, third = asyncio.run(whole())
        assert first.clean
        assert first == second == third

    @pytest.mark.slow
    def test_300_children_one_after_the_other_leave_nothing_held(
        self, runtime: ProcessRuntime, order: LaunchOrder
    ) -> None:
        async def whole() -> None:
            before = holdings()
            for _ in range(300):
                child = await runtime.launch(order)
                await child.release()
                assert (await child.wait_ended()).clean
            await until(lambda: holds_no_more_than(before))

        asyncio.run(whole())

    def test_50_children_at_once_end_each_with_its_own_code(
        self, runtime: ProcessRuntime, order: LaunchOrder
    ) -> None:
        async def one(number: int) -> int | None:
            folder = order.runtime_folder / str(number)
            folder.mkdir()
            child = await runtime.launch(shell(order, f"exit {number}", runtime_folder=folder))
            await child.release()
            return (await child.wait_ended()).exit_code

        async def whole() -> None:
            before = holdings()
            async with asyncio.timeout(BOUND_S):
                codes = await asyncio.gather(*(one(number) for number in range(50)))
            assert codes == list(range(50))
            await until(lambda: holds_no_more_than(before))

        asyncio.run(whole())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")
def test_an_ordinary_user_gets_the_same_containment(order: LaunchOrder) -> None:
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    with tempfile.TemporaryDirectory() as home:  # pytest's own folders are closed to others
        os.chown(home, 65534, 65534)
        order = replace(order, workspace=Path(home), runtime_folder=Path(home))
        steward = other_steward(shell(order, "id -u; id -g; echo $$; exit 3"), "end", *nobody)
        said, _ = steward.communicate(timeout=BOUND_S)
        assert said.splitlines()[1] == "pid-namespace exited with code 3"
        assert Path(home, "stdout.log").read_text().split() == ["65534", "65534", "2"]
        assert Path(home, "exit.json").stat().st_uid == 65534


@needs_namespace
@pytest.mark.skipif(not Path("/usr/bin/unshare").exists(), reason="needs unshare(1)")
def test_without_namespaces_the_first_launch_turns_to_a_subreaper(order: LaunchOrder) -> None:
    forbid = 'echo 0 > /proc/sys/user/max_pid_namespaces; exec "$@"'
    prefix = ("unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh")
    said, _ = other_steward(shell(order, "exit 3"), "end", *prefix).communicate(timeout=BOUND_S)
    assert said.splitlines()[1] == "subreaper exited with code 3"


@needs_namespace
@pytest.mark.skipif(not Path("/usr/bin/unshare").exists(), reason="needs unshare(1)")
def test_the_end_of_a_command_that_filled_the_disk_is_recorded(order: LaunchOrder) -> None:
    folder = order.runtime_folder
    small = f'mount -t tmpfs -o size=64k none {folder}; exec "$@"'
    prefix = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", small, "sh")
    ordered = shell(order, f"head -c 999999 /dev/zero > {folder}/fill; exit 3")
    said, _ = other_steward(ordered, "end", *prefix).communicate(timeout=BOUND_S)
    assert said.splitlines()[1] == "pid-namespace exited with code 3"
