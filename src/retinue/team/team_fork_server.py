"""Fork server for teams: everything is imported and warmed up before the first fork."""

from __future__ import annotations

import random
from collections.abc import Mapping

from retinue.child import fork_server
from retinue.team import team_main
from retinue.team.team_warmup import make_member_backend, warm_up


def main() -> None:
    warm_up()
    fork_server.main(work)


def serve_one() -> None:
    fork_server.serve_one(work)


def work(environment: Mapping[str, str]) -> int:
    # The fork server forks without Python's fork hooks, one of which seeds this module.
    random.seed()
    team_main.run(environment, make_member_backend)
