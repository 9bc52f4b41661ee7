"""The process that teams are cloned from: all is imported and has run once, nothing is running."""

from __future__ import annotations

import random
from collections.abc import Mapping

from retinue.child import forkserver
from retinue.executors import team
from retinue.executors.rehearsal import backend, rehearse


def main() -> None:
    rehearse()
    forkserver.main(work)


def alone() -> None:
    forkserver.alone(work)


def work(environment: Mapping[str, str]) -> int:
    random.seed()  # what the hooks of a fork would have done, had the server any
    team.run(environment, backend)
