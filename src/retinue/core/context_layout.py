"""Layout of context paths below RETINUE_CONTEXT.

`paths/` holds paths inside the caller's folder, at the same relative place; `outside/` holds
all other paths, by name; `files/` holds copies of single files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from retinue.core.contract import Context

FILES, PATHS, OUTSIDE = "files", "paths", "outside"
# Where an isolated child finds its context. It lies outside of every project: inside a project that
# is itself part of the context, a search would find every file twice.
ISOLATED_PLACE = "/var/retinue/context"


def context_places(context: Context) -> list[tuple[str, str]]:
    """Return each context path with its place; a path inside another one has no own place."""
    base = PurePosixPath(context.base or "/")
    paths = list(dict.fromkeys(map(PurePosixPath, context.paths)))
    inside = [path for path in paths if path.is_relative_to(base)]
    outside = [path for path in paths if path not in inside]
    places = [
        (str(path), str(PurePosixPath(PATHS) / path.relative_to(base)))
        for path in _outermost(inside, context)
    ]
    taken: set[str] = set()
    for path in _outermost(outside, context):
        # The path "/" has no name. Paths with the same name are numbered in the order given.
        name = path.name or "root"
        names = (name, *(f"{name}-{number}" for number in range(2, len(paths) + 1)))
        own = next(each for each in names if each not in taken)
        taken.add(own)
        places.append((str(path), f"{OUTSIDE}/{own}"))
    return places


def original_path(context: Context, place: str) -> str:
    """Return the original path of a place below RETINUE_CONTEXT; empty if there is none."""
    # Places may be nested. The most specific one is right.
    asked = PurePosixPath(place)
    found = ""
    longest = -1
    for path, own in context_places(context):
        top = PurePosixPath(own)
        if asked.is_relative_to(top) and len(top.parts) > longest:
            found = str(PurePosixPath(path) / asked.relative_to(top))
            longest = len(top.parts)
    return found


def _outermost(paths: Sequence[PurePosixPath], context: Context) -> list[PurePosixPath]:
    """Return the paths that are not reached through another one."""
    return [
        path
        for path in paths
        if not any(other in path.parents and not _parted(other, path, context) for other in paths)
    ]


def _parted(outer: PurePosixPath, inner: PurePosixPath, context: Context) -> bool:
    """Return whether a hidden folder lies between them, so `inner` is not visible in `outer`."""
    hidden = map(PurePosixPath, context.hidden)
    return any(each in inner.parents and outer in (each, *each.parents) for each in hidden)
