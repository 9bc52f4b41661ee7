"""A runtime for each kind of containment, and an order for it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.commands import processes_with
from retinue.core.ids import SubagentId, TaskId
from retinue.core.task_config import Boundary
from retinue.ports import LaunchOrder
from retinue.runtime.process_runtime import ProcessRuntime

NAMESPACE = asyncio.run(ProcessRuntime().containment()) == "pid-namespace"
needs_namespace = pytest.mark.skipif(not NAMESPACE, reason="no PID namespaces here")


@pytest.fixture(params=["isolated", "pid-namespace", "subreaper"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param != "subreaper" and not NAMESPACE:
        pytest.skip("no PID namespaces here")
    return str(request.param)


@pytest.fixture
def runtime(kind: str) -> Iterator[ProcessRuntime]:
    runtime = ProcessRuntime(containment="subreaper" if kind == "subreaper" else "pid-namespace")
    asyncio.run(runtime.warm())
    yield runtime
    runtime.close()


@pytest.fixture
def marker() -> Iterator[str]:
    """An argument of `sleep` that no other process has; none that has it is left behind."""
    text = f"86399.{os.getpid()}{time.monotonic_ns()}"
    yield text
    assert not processes_with(text)


@pytest.fixture
def order(tmp_path: Path, request: pytest.FixtureRequest) -> LaunchOrder:
    chosen = request.getfixturevalue("kind") if "kind" in request.fixturenames else ""
    return order_in(tmp_path, mode="isolated" if chosen == "isolated" else "inherited")


def order_in(place: Path, mode: str = "inherited") -> LaunchOrder:
    workspace, folder = place / "workspace", place / "runtime"
    workspace.mkdir()
    folder.mkdir()
    return LaunchOrder(
        task=TaskId("t"),
        subagent=SubagentId("s"),
        attempt=1,
        argv=("/bin/true",),
        environment={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        workspace=workspace,
        runtime_folder=folder,
        timeout_ms=20_000,
        graces_ms=(5_000, 5_000),
        output_limit_bytes=100_000,
        boundary=Boundary(mode=mode),
    )
