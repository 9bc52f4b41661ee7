"""A child without a sandbox finds its context by a mount, by a copy, or at least by a link."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from retinue.child import context_mounts
from retinue.ports import LaunchOrder
from retinue.runtime.process_runtime import ProcessRuntime
from support.runtimes import needs_namespace, order_in


@pytest.fixture
def order(tmp_path: Path) -> LaunchOrder:
    """Of a command that looks for two paths, one of which lies in what is hidden of the other."""
    project = tmp_path / "project"
    for name in ("lib/a.txt", "lib/.retinue/gateway.key", "lib/.retinue/out/b.txt", "c.txt"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(name)
    (project / "lib" / "link").symlink_to("a.txt")
    context = tmp_path / "context"
    (context / "paths" / "lib").mkdir(parents=True)
    (context / "paths" / "c.txt").touch()
    paths = ("lib", "lib/.retinue/out", "c.txt")
    script = 'cd "$1"; find . ! -type d | sort; echo x > paths/lib/new; echo y > paths/c.txt; true'
    return replace(
        order_in(tmp_path),
        argv=("/bin/sh", "-c", script, "sh", str(context)),
        views=tuple((f"{context}/paths/{path}", f"{project}/{path}") for path in paths),
        hidden=(project / "lib" / ".retinue",),
    )


def found(runtime: ProcessRuntime, order: LaunchOrder) -> list[str]:
    async def run() -> None:
        child = await runtime.launch(order)
        await child.release()
        await child.wait_ended()

    asyncio.run(run())
    runtime.close()
    return (order.runtime_folder / "stdout.log").read_text().split()


EVERYTHING = ["./paths/c.txt", "./paths/lib/.retinue/out/b.txt", "./paths/lib/a.txt"]


@needs_namespace
def test_paths_are_mounted_and_cannot_be_written(order: LaunchOrder, tmp_path: Path) -> None:
    seen = found(ProcessRuntime(containment="pid-namespace"), order)
    assert seen == [*EVERYTHING, "./paths/lib/link"]
    assert not (tmp_path / "project" / "lib" / "new").exists()
    assert (tmp_path / "project" / "c.txt").read_text() == "c.txt"
    assert list((tmp_path / "context" / "paths" / "lib").iterdir()) == []


def test_where_nothing_can_be_mounted_copies_are_found(order: LaunchOrder, tmp_path: Path) -> None:
    for _ in range(2):  # the next attempt finds them afresh
        seen = found(ProcessRuntime(containment="subreaper"), order)
        assert seen == [*EVERYTHING, "./paths/lib/link"]
        assert not (tmp_path / "project" / "lib" / "new").exists()
        assert (tmp_path / "project" / "c.txt").read_text() == "c.txt"


def test_a_path_too_large_to_copy_is_linked(
    order: LaunchOrder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_mounts, "MOST_BYTES", 8)
    context_mounts.copy_or_link(order.views, list(map(str, order.hidden)))
    paths = tmp_path / "context" / "paths"
    assert (paths / "c.txt").read_text() == "c.txt" and not (paths / "c.txt").is_symlink()
    assert (paths / "lib").readlink() == tmp_path / "project" / "lib"
