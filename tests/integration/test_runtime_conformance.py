"""The built-in runtime passes the suite that its strangers must pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import pytest

from retinue.core.task_config import INHERITED, ISOLATED, Boundary
from retinue.ports import LaunchOrder, Runtime
from retinue.runtime.process_runtime import Containment, ProcessRuntime
from support.conformance import LocalRuntimeConformance

Runtimes = Callable[[Containment], ProcessRuntime]


@pytest.fixture(scope="module")
def runtimes() -> Iterator[Runtimes]:
    """One of each kind for all of them: to warm one up takes longer than a test."""
    made: dict[Containment, ProcessRuntime] = {}

    def of(containment: Containment) -> ProcessRuntime:
        if containment not in made:
            made[containment] = ProcessRuntime(containment=containment)
        return made[containment]

    yield of
    for runtime in made.values():
        runtime.close()


class ProcessConformance(LocalRuntimeConformance):
    mode = INHERITED
    containment: Containment = "pid-namespace"

    @pytest.fixture
    def runtime(self, runtimes: Runtimes) -> ProcessRuntime:
        runtime = runtimes(self.containment)
        if self.mode == ISOLATED and (missing := asyncio.run(runtime.isolation_missing())):
            pytest.skip(missing)
        if self.containment == "pid-namespace" and not has_namespaces():
            pytest.skip("no PID namespaces here")
        return runtime

    def adapt(self, order: LaunchOrder) -> LaunchOrder:
        return replace(order, boundary=Boundary(mode=self.mode))

    def successor(self, runtime: Runtime) -> Runtime:
        assert isinstance(runtime, ProcessRuntime)
        runtime.close()
        return ProcessRuntime(containment=self.containment)


class TestIsolated(ProcessConformance):
    mode = ISOLATED


class TestInANamespace(ProcessConformance):
    pass


class TestWithoutNamespaces(ProcessConformance):
    containment: Containment = "subreaper"


@cache
def has_namespaces() -> bool:
    runtime = ProcessRuntime()
    try:
        return asyncio.run(runtime.containment()) == "pid-namespace"
    finally:
        runtime.close()
