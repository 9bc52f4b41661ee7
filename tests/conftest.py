"""What every test folder shares: the `requirement` mark, and choosing tests by it."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile

import pytest
from hypothesis import HealthCheck, settings

# Roots that tests make are put on a list of their own, not on the user's. Processes that a test
# starts inherit it.
os.environ["XDG_STATE_HOME"] = _state = tempfile.mkdtemp(prefix="retinue-state-")
os.environ.pop("RETINUE_TRUST", None)
atexit.register(shutil.rmtree, _state, ignore_errors=True)

# How fast examples come on a busy machine is no property of what is tested.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# A shell starts background jobs with SIGINT ignored, and nohup ignores SIGHUP. The commands that
# tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--requirement",
        action="append",
        default=[],
        metavar="ID",
        help="run only the tests that prove this requirement; may be given again",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "requirement(*ids): the requirements a test proves")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = set(config.getoption("--requirement"))
    if not wanted:
        return
    chosen = [item for item in items if wanted & proved_by(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def proved_by(item: pytest.Item) -> set[str]:
    """The requirements named by a test's own marks and those of its class and module."""
    return {str(number) for mark in item.iter_markers("requirement") for number in mark.args}
