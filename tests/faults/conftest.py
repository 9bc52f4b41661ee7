"""What every test of a fault starts from."""

from __future__ import annotations

from support.roots import fresh, root, task
from support.scenes import pytest_sessionfinish, scene

__all__ = ["fresh", "pytest_sessionfinish", "root", "scene", "task"]
