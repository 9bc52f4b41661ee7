"""What files and the environment decide, read once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from retinue.domain.errors import BadInput

FOLDER = ".retinue"
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "USER", "LOGNAME", "SHELL")


@dataclass(frozen=True, kw_only=True)
class Settings:
    root: Path
    child_environment: Mapping[str, str]  # built from nothing: no secret of ours is in it
    failpoint: str = ""
    idle_seconds: float = 60.0

    @property
    def project(self) -> Path:
        """The folder that holds the root: what a parent works in."""
        return self.root.parent


def find_root(given: str | None, cwd: Path, environment: Mapping[str, str]) -> Path:
    """The root that was named, else the nearest one upwards, else one to be made here."""
    named = given or environment.get("RETINUE_ROOT")
    if named:
        return Path(os.path.normpath(cwd / named))
    for folder in (cwd, *cwd.parents):
        if (folder / FOLDER).is_dir():
            return folder / FOLDER
    return cwd / FOLDER


def read_settings(root: Path, environment: Mapping[str, str]) -> Settings:
    """Raises:
    BadInput: a variable does not hold what it should.
    """
    passed = {name: environment[name] for name in PASSED_ON if name in environment}
    passed.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
    idle = environment.get("RETINUE_IDLE_SECONDS", "60")
    try:
        idle_seconds = float(idle)
    except ValueError:
        raise BadInput(f"RETINUE_IDLE_SECONDS {idle!a} is not a number") from None
    return Settings(
        root=root,
        child_environment=passed,
        failpoint=environment.get("RETINUE_FAILPOINT", ""),
        idle_seconds=idle_seconds,
    )
