"""What tests with a steward of their own start from."""

from __future__ import annotations

from support.roots import fresh, root, task

__all__ = ["fresh", "root", "task"]
