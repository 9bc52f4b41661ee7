"""git, run so that by default nothing decides what it does but the words it is given.

No configuration of a user or a system is read, no hook, monitor, filter, pager or prompt can be
reached, the environment is made from nothing; `owners.py` is the one exception, for the user's own
tree only. It is never started inside a tree of a child's, nor given a git folder that lies in one.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Awaitable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO, TypeVar

from retinue.domain.errors import RetinueError
from retinue.processes import exited

MAX_OUTPUT = 64 * 1024 * 1024
USUAL_SECONDS = 300.0
STOP_SECONDS = 2.0
NOWHERE = "/nonexistent"

SETTINGS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.splitIndex": "false",
    "core.symlinks": "true",
    "core.fileMode": "true",
    "core.protectHFS": "true",
    "core.protectNTFS": "true",
    "core.autocrlf": "false",
    "core.safecrlf": "false",
    "core.quotePath": "false",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "core.pager": "cat",
    "core.sshCommand": "/bin/false",
    "protocol.allow": "never",
    "submodule.recurse": "false",
    "diff.ignoreSubmodules": "all",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "commit.gpgSign": "false",
    "core.fsync": "committed",
    "core.fsyncMethod": "batch",
}
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": NOWHERE,
    "XDG_CONFIG_HOME": NOWHERE,
    "LC_ALL": "C",
    "TZ": "UTC",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "/bin/false",
    "GIT_EDITOR": "/bin/false",
}
# Files are made as another user, and read as we read them.
RIGHTS = "+dac_override,+dac_read_search"


First = TypeVar("First")
Second = TypeVar("Second")


class GitFailed(RetinueError):
    """git said no; the message is its own last line."""

    default_code = "git_failed"


@dataclass(frozen=True, kw_only=True)
class Output:
    code: int
    out: bytes

    @property
    def text(self) -> str:
        return os.fsdecode(self.out).strip()

    @property
    def lines(self) -> list[str]:
        return os.fsdecode(self.out).removesuffix("\n").split("\n")


@dataclass(frozen=True, kw_only=True)
class Where:
    """What one run of git is about: the git folder, and the tree and index if there are any."""

    git_dir: Path
    tree: Path | None = None
    index: Path | None = None
    uid: int | None = None  # whose the files become that it makes
    passing: bool = False  # whoever comes after a killed steward finds nobody at work in it


class Git:
    def __init__(
        self,
        *,
        settings: Mapping[str, str] = SETTINGS,
        environment: Mapping[str, str] = ENVIRONMENT,
    ) -> None:
        self._settings = settings
        self._environment = environment
        found = shutil.which("git", path=ENVIRONMENT["PATH"])
        self._program = found and os.path.realpath(found)
        self._as_other = shutil.which("setpriv", path=ENVIRONMENT["PATH"])

    @property
    def can_be_other(self) -> bool:
        """Whether files can be made as another user's from the start."""
        return self._as_other is not None and os.geteuid() == 0

    async def run(
        self,
        where: Where | Path,
        *words: str,
        stdin: bytes | int = b"",
        stdout: int | None = None,
        accept: Collection[int] = (0,),
        environment: Mapping[str, str] | None = None,
        seconds: float = USUAL_SECONDS,
    ) -> Output:
        """What git said; with a `Path`, git looks for its folder from there upwards.

        Raises:
            GitFailed: it is not here, took too long, said too much, or failed.
        """
        known = {**self._environment, **(environment or {})}
        if isinstance(where, Where) and where.index is not None:
            known["GIT_INDEX_FILE"] = str(where.index)
        with in_memory() as out, in_memory() as err, in_memory(stdin) as said:
            streams = (
                said.fileno() if isinstance(stdin, bytes) else stdin,
                out.fileno() if stdout is None else stdout,
                err.fileno(),
            )
            with _handle(where) as (shown, kept):
                try:
                    process = _start(self._argv(shown, words), known, streams, kept)
                except OSError as error:
                    raise GitFailed(f"git cannot be started: {error.strerror}") from error
                code = await _end(process, seconds, words[0])
            err.seek(0)
            if code not in accept:
                raise GitFailed(_last_line(err.read(65536)) or f"git {words[0]} ended with {code}")
            out.seek(0)
            data = out.read(MAX_OUTPUT + 1)
        if len(data) > MAX_OUTPUT:
            raise GitFailed(f"git {words[0]} said more than {MAX_OUTPUT} bytes")
        return Output(code=code, out=data)

    def _argv(self, where: Where | Path, words: tuple[str, ...]) -> list[str]:
        if self._program is None:
            raise GitFailed("git is not installed", hint="install git 2.38 or newer")
        argv = [self._program]
        if isinstance(where, Path):
            argv += ["-C", str(where)]
        else:
            argv += [f"--git-dir={where.git_dir}"]
            argv += [f"--work-tree={where.tree}"] if where.tree is not None else []
        for name, value in self._settings.items():
            argv += ["-c", f"{name}={value}"]
        argv += words
        if not isinstance(where, Where) or not where.passing or self._as_other is None:
            return argv
        other = [self._as_other, "--pdeathsig=KILL"]
        if where.uid is not None:
            other += [f"--reuid={where.uid}", f"--regid={where.uid}", "--clear-groups"]
            other += [f"--inh-caps={RIGHTS}", f"--ambient-caps={RIGHTS}"]
        return [*other, "--", *argv]


async def both(one: Awaitable[First], other: Awaitable[Second]) -> tuple[First, Second]:
    """What came of two things that do not need each other; both are over, whatever happens.

    Raises:
        RetinueError: the first that failed.
    """
    first, second = await asyncio.gather(one, other, return_exceptions=True)
    if isinstance(first, BaseException):
        raise first
    if isinstance(second, BaseException):
        raise second
    return first, second


def excluding(path: str) -> list[str]:
    """What tells git to leave out the path and all below it.

    With a wildcard in front, since git refuses to have a path named to it that is ignored anyhow.
    """
    first, rest = path[0], re.sub(r"([*?\[\]\\])", r"\\\1", path[1:])
    pattern = f":(exclude)[\\{first}]{rest}"
    return [pattern, f"{pattern}/*"]


def in_memory(content: bytes | int = b"") -> BinaryIO:
    """A file that is nowhere on disk and gone once it is closed."""
    file = os.fdopen(os.memfd_create("git"), "w+b")
    if isinstance(content, bytes):
        file.write(content)
        file.seek(0)
    return file


def _start(
    argv: list[str],
    environment: Mapping[str, str],
    streams: tuple[int, int, int],
    kept: tuple[int, ...],
) -> subprocess.Popen[bytes]:
    stdin, stdout, stderr = streams
    return subprocess.Popen(
        argv,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=environment,
        cwd="/",
        pass_fds=kept,
        start_new_session=True,
        umask=0o022,  # what it makes is for others to read: its user, or a child
    )


@contextmanager
def _handle(where: Where | Path) -> Iterator[tuple[Where | Path, tuple[int, ...]]]:
    """The git folder by a handle, for another user that cannot get there by its name.

    What git asks with access(2) is answered for that user alone, whatever rights go with it.
    """
    if not isinstance(where, Where) or where.uid is None:
        yield where, ()
        return
    folder = os.open(where.git_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield replace(where, git_dir=Path(f"/proc/self/fd/{folder}")), (folder,)
    finally:
        os.close(folder)


async def _end(process: subprocess.Popen[bytes], seconds: float, name: str) -> int:
    """Its exit code; it is gone and reaped, whatever happens to whoever waits."""
    try:
        async with asyncio.timeout(seconds):
            await exited(process.pid)
    except TimeoutError:
        raise GitFailed(f"git {name} took more than {seconds:g} s") from None
    except OSError as error:
        raise GitFailed(f"git cannot be watched: {error.strerror}") from error
    finally:
        _stop(process)
    return process.returncode


def _stop(process: subprocess.Popen[bytes]) -> None:
    """It is gone and reaped. Asked to end, git takes its locks with it."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
            return
        process.kill()
    process.wait()


def _last_line(said: bytes) -> str:
    lines = [line for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    telling = [at for at, line in enumerate(lines) if line.startswith(("fatal:", "error:"))]
    first, *rest = lines[telling[0] if telling else 0 :] or [""]
    if first.endswith(":"):  # what it is about follows
        first = f"{first} {', '.join(map(str.strip, takewhile(_is_indented, rest)))}"
    shown = "".join(c if c.isprintable() else " " for c in first)
    return shown.removeprefix("fatal: ").removeprefix("error: ")[:300]


def _is_indented(line: str) -> bool:
    return line.startswith(("\t", " "))
