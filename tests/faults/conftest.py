"""What every test of a fault starts from."""

from __future__ import annotations

from support.roots import fresh, root, task

__all__ = ["fresh", "root", "task"]
