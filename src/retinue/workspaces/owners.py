"""git for the user's own working tree: its files are read and written as they have it configured.

Line endings, filters such as those of LFS, and what is ignored everywhere are theirs to say.
Hooks and monitors are not run for it all the same.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from retinue.workspaces.git import ENVIRONMENT, SETTINGS, Git

THEIR_SETTINGS = {
    "core.symlinks",
    "core.fileMode",
    "core.autocrlf",
    "core.safecrlf",
    "core.attributesFile",
    "core.excludesFile",
}
THEIR_VARIABLES = {
    "HOME",
    "XDG_CONFIG_HOME",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_NOSYSTEM",
    "GIT_ATTR_NOSYSTEM",
}


def owners_git(variables: Mapping[str, str]) -> Git:
    """git that reads their configuration, and finds their filters where they have them."""
    ours = {name: value for name, value in ENVIRONMENT.items() if name not in THEIR_VARIABLES}
    theirs = {name: value for name, value in variables.items() if name in THEIR_VARIABLES}
    search = [*variables.get("PATH", "").split(os.pathsep), ENVIRONMENT["PATH"]]
    path = os.pathsep.join(each for each in search if each.startswith("/"))
    return Git(
        settings={name: value for name, value in SETTINGS.items() if name not in THEIR_SETTINGS},
        environment={**ours, **theirs, "PATH": path},
    )
