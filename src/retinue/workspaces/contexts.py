"""What a subagent is given to read: checked before it exists, laid out before it runs."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from retinue.domain.contract import Context
from retinue.domain.errors import BadInput
from retinue.files import make_folder, open_plain, storage_failures

MAX_FILE_BYTES = 64 * 1024 * 1024
OUTPUTS = ("workspace", "artifacts", "full_logs")  # of a subagent, which another one may read


@dataclass(frozen=True, kw_only=True)
class Giving:
    """Where a parent may give contexts from."""

    base: Path
    allowed: Sequence[Path]
    root: Path  # our own records: what is allowed around them says nothing of them

    def covers(self, place: Path) -> bool:
        allowed = self.allowed
        if place.is_relative_to(self.root):
            allowed = [each for each in allowed if each.is_relative_to(self.root)]
            if not _is_output(place.relative_to(self.root)):
                return False
        return any(place.is_relative_to(each) for each in allowed)


def _is_output(path: Path) -> bool:
    match path.parts:
        case ("tasks", _, "agents", _, kind, *_):
            return kind in OUTPUTS
        case ("tasks", _, "shared", *_):
            return True
    return False


def check_contexts(paths: Sequence[str], files: Sequence[str], giving: Giving) -> Context:
    """Contexts that exist, are plain, and lie where the parent may give them from.

    Raises:
        BadInput: names the first that does not.
    """
    places = [_resolve(path, giving, "context path") for path in paths]
    given = [_resolve(path, giving, "context file") for path in files]
    for place in given:
        status = place.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
            raise BadInput(
                f"context file {str(place)!a} is not a file of at most {MAX_FILE_BYTES} bytes",
                code="invalid_context",
                hint="give folders and large files as context paths",
            )
    names = [place.name for place in given]
    if len(set(names)) != len(names):
        raise BadInput("two context files have the same name", code="invalid_context")
    return Context(
        base=str(giving.base), paths=tuple(map(str, places)), files=tuple(map(str, given))
    )


def lay_out(context: Context, folder: Path) -> None:
    """`paths/` leads to what was given of the project, where it lies in it; `outside/` to the
    rest, by its names; `files/` holds copies that cannot be written.

    Where nothing was given, there is none of them.
    """
    make_folder(folder, mode=0o755)  # the child may be another user than we are
    if not context.paths and not context.files:
        return
    base = Path(context.base) if context.base else folder
    whole = _outermost(list(dict.fromkeys(map(Path, context.paths))), base)
    links = _links(whole, base)
    with storage_failures(folder):
        for name in ("files", "paths"):
            if Path(name) not in links:
                make_folder(folder / name, mode=0o755)
        for link, path in zip(links, whole, strict=True):
            for above in reversed(link.parents[:-1]):
                make_folder(folder / above, mode=0o755)
            if not os.path.lexists(folder / link):
                (folder / link).symlink_to(path)
        for path in map(Path, context.files):
            copy = folder / "files" / path.name
            if not copy.exists():
                _copy(path, copy)


def _copy(path: Path, copy: Path) -> None:
    """Raises:
    OSError: no plain file is there any more; since it was given, others may have written there.
    """
    with open(open_plain(path), "rb") as source, open(copy, "wb") as target:
        if os.readlink(f"/proc/self/fd/{source.fileno()}") != str(path):
            raise OSError(errno.ELOOP, "was replaced by a link", str(path))
        shutil.copyfileobj(source, target)
    copy.chmod(0o444)


def _outermost(paths: Sequence[Path], base: Path) -> list[Path]:
    """Without what is reached through another one."""
    inside = [path for path in paths if path.is_relative_to(base)]
    sides = (inside, [path for path in paths if path not in inside])
    return [
        path for side in sides for path in side if not any(other in path.parents for other in side)
    ]


def _links(paths: Sequence[Path], base: Path) -> list[Path]:
    """Where each is found below the context folder: no two in one place."""
    links: list[Path] = []
    for path in paths:
        if path.is_relative_to(base):
            links.append(Path("paths", path.relative_to(base)))
            continue
        name = path.name or "root"
        names = (name, *(f"{name}-{number}" for number in range(2, len(paths) + 1)))
        places = (Path("outside", each) for each in names)
        links.append(next(place for place in places if place not in links))
    return links


def _resolve(given: str, giving: Giving, what: str) -> Path:
    shown = ascii(given[:120])
    if not given or "\0" in given:
        raise BadInput(f"{what} {shown} is not a path", code="invalid_context")
    try:
        place = (giving.base / given).resolve(strict=True)
        mode = place.stat().st_mode
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "a loop of links"
        raise BadInput(
            f"{what} {shown} cannot be used: {reason}",
            code="missing_context",
            hint=f"paths are relative to {giving.base}; '~' and wildcards are not expanded",
        ) from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise BadInput(f"{what} {shown} is neither a file nor a folder", code="invalid_context")
    if not giving.covers(place):
        raise BadInput(
            f"{what} {shown} lies outside of what this parent may give",
            code="context_outside",
            hint=f"allowed: {', '.join(map(str, giving.allowed))}; more by subagent_context_roots; "
            f"of {giving.root} only shared/ of tasks, and {', '.join(OUTPUTS)} of subagents",
        )
    return place
