"""What tests with a steward of their own start from."""

from __future__ import annotations

from support.api import opened, own
from support.roots import fresh, root, task
from support.runtimes import kind, marker, order, runtime
from support.scenes import pytest_sessionfinish

__all__ = [
    "fresh",
    "kind",
    "marker",
    "opened",
    "order",
    "own",
    "pytest_sessionfinish",
    "root",
    "runtime",
    "task",
]
