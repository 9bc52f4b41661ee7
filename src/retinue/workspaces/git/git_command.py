"""Runner of git in a controlled environment.

By default only the arguments decide what git does. It reads no configuration of the user or the
system, reaches no hook, monitor, filter, pager or prompt, and gets a fresh environment.
`make_owners_git` is the one exception, for the user's own tree. git is never started inside a
child's tree and never given a git folder in one: `repository_location.py` checks before git runs.
No transport is allowed, since a repository's `protocol.ext.allow` or a lazy fetch could run a
command named in its configuration.
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

from retinue.core.errors import RetinueError
from retinue.processes import wait_exit

# Output is read into memory; larger results go to a file that the caller passes as stdout.
MAX_OUTPUT = 64 * 1024 * 1024
USUAL_SECONDS = 300.0
STOP_SECONDS = 2.0
# For how long the lock of a ref may be held; a living git holds it for milliseconds.
LOCK_TURNS = 20
LOCK_TURN_SECONDS = 0.05
NOWHERE = "/nonexistent"

TRANSPORTS = ("ext", "file", "git", "ssh", "http", "https", "ftp", "ftps")

# Passed with -c on every call, so they override every configuration file.
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
    "core.gitProxy": "/bin/false",
    "core.alternateRefsCommand": "/bin/false",
    "protocol.allow": "never",
    # A repository's own key for one protocol would override the general key.
    **{f"protocol.{name}.allow": "never" for name in TRANSPORTS},
    "safe.bareRepository": "explicit",
    "gpg.program": "/bin/false",
    **{f"gpg.{form}.program": "/bin/false" for form in ("openpgp", "x509", "ssh")},
    "gpg.ssh.defaultKeyCommand": "",
    "log.showSignature": "false",
    "tag.gpgSign": "false",
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
    "GIT_SEQUENCE_EDITOR": "/bin/false",
    "GIT_ALLOW_PROTOCOL": "none",  # overrides every protocol.*.allow
    "GIT_NO_LAZY_FETCH": "1",
}
# git creates files as another user, but may read everything that the steward can read.
RIGHTS = "+dac_override,+dac_read_search"


First = TypeVar("First")
Second = TypeVar("Second")


class GitFailed(RetinueError):
    """Failure of a git command; the message is git's first error line."""

    default_code = "git_failed"


@dataclass(frozen=True, kw_only=True)
class GitOutput:
    code: int
    out: bytes

    @property
    def text(self) -> str:
        return os.fsdecode(self.out).strip()

    @property
    def lines(self) -> list[str]:
        return os.fsdecode(self.out).removesuffix("\n").split("\n")


@dataclass(frozen=True, kw_only=True)
class GitTarget:
    """Git folder that a command works on, with its working tree and index if any."""

    git_dir: Path
    tree: Path | None = None
    index: Path | None = None
    uid: int | None = None  # who owns the files that git creates; needs `dies_with_steward`
    dies_with_steward: bool = False  # so that the next steward can start over


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
        self._setpriv = shutil.which("setpriv", path=ENVIRONMENT["PATH"])

    @property
    def can_switch_user(self) -> bool:
        """Return whether git can create files as another user."""
        return self._setpriv is not None and os.geteuid() == 0

    async def run(
        self,
        where: GitTarget | Path,
        *words: str,
        stdin: bytes | int = b"",
        stdout: int | None = None,
        accept: Collection[int] = (0,),
        environment: Mapping[str, str] | None = None,
        seconds: float = USUAL_SECONDS,
    ) -> GitOutput:
        """Run a git command and return its output.

        Args:
            where: a `Path` lets git search for its folder from there upwards.
            stdin: the input, or a descriptor to read it from.
            accept: exit codes that are not an error.

        Raises:
            GitFailed: git is missing, took too long, printed too much, or failed.
        """
        known = {**self._environment, **(environment or {})}
        if isinstance(where, GitTarget) and where.index is not None:
            known["GIT_INDEX_FILE"] = str(where.index)
        # Memory files instead of pipes: git never blocks on a reader.
        with open_memory_file() as out, open_memory_file() as err, open_memory_file(stdin) as said:
            streams = (
                said.fileno() if isinstance(stdin, bytes) else stdin,
                out.fileno() if stdout is None else stdout,
                err.fileno(),
            )
            with _handle(where) as (shown, kept):
                try:
                    process = _start(self._build_argv(shown, words), known, streams, kept)
                except OSError as error:
                    raise GitFailed(f"git cannot be started: {error.strerror}") from error
                code = await _end(process, seconds, words[0])
            err.seek(0)
            if code not in accept:
                raise GitFailed(
                    _find_error_line(err.read(65536))
                    or f"git {words[0]} failed with exit code {code}"
                )
            out.seek(0)
            data = out.read(MAX_OUTPUT + 1)
        if len(data) > MAX_OUTPUT:
            raise GitFailed(f"git {words[0]} printed more than {MAX_OUTPUT} bytes")
        return GitOutput(code=code, out=data)

    def _build_argv(self, where: GitTarget | Path, words: tuple[str, ...]) -> list[str]:
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
        if not isinstance(where, GitTarget) or not where.dies_with_steward or self._setpriv is None:
            return argv
        prefix = [self._setpriv, "--pdeathsig=KILL"]
        if where.uid is not None:
            prefix += [f"--reuid={where.uid}", f"--regid={where.uid}", "--clear-groups"]
            prefix += [f"--inh-caps={RIGHTS}", f"--ambient-caps={RIGHTS}"]
        return [*prefix, "--", *argv]


async def gather_both(one: Awaitable[First], other: Awaitable[Second]) -> tuple[First, Second]:
    """Run two independent awaitables to their end and return both results.

    Raises:
        RetinueError: the error of the first one that failed.
    """
    first, second = await asyncio.gather(one, other, return_exceptions=True)
    if isinstance(first, BaseException):
        raise first
    if isinstance(second, BaseException):
        raise second
    return first, second


def make_exclude_patterns(path: str) -> list[str]:
    """Return pathspecs that leave out the path and everything below it.

    The bracket around the first character makes it a wildcard: git rejects an ignored path that is
    named literally.
    """
    first = path[0]
    rest = re.sub(r"([*?\[\]\\])", r"\\\1", path[1:])
    pattern = f":(exclude)[\\{first}]{rest}"
    return [pattern, f"{pattern}/*"]


def open_memory_file(content: bytes | int = b"") -> BinaryIO:
    """Open a file in memory, which is gone once closed."""
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
        # A Ctrl-C in the steward's terminal must not reach git.
        start_new_session=True,
        umask=0o022,  # the user, or the user of a child, must be able to read the files
    )


@contextmanager
def _handle(where: GitTarget | Path) -> Iterator[tuple[GitTarget | Path, tuple[int, ...]]]:
    """Replace the git folder's path by a descriptor when git runs as another user.

    That user may not be allowed to traverse the path. access(2), which git calls, ignores the
    extra capabilities.
    """
    if not isinstance(where, GitTarget) or where.uid is None:
        yield where, ()
        return
    folder = os.open(where.git_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield replace(where, git_dir=Path(f"/proc/self/fd/{folder}")), (folder,)
    finally:
        os.close(folder)


async def _end(process: subprocess.Popen[bytes], seconds: float, name: str) -> int:
    """Wait for the exit code; git is stopped and reaped even on timeout or cancellation."""
    try:
        async with asyncio.timeout(seconds):
            await wait_exit(process.pid)
    except TimeoutError:
        raise GitFailed(f"git {name} took more than {seconds:g} s") from None
    except OSError as error:
        raise GitFailed(f"git cannot be watched: {error.strerror}") from error
    finally:
        _stop(process)
    return process.returncode


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop git if it still runs, and reap it; on SIGTERM git removes its lock files."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
            return
        process.kill()
    process.wait()


def _find_error_line(said: bytes) -> str:
    lines = [line for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    telling = [at for at, line in enumerate(lines) if line.startswith(("fatal:", "error:"))]
    first, *rest = lines[telling[0] if telling else 0 :] or [""]
    if first.endswith(":"):  # the file names follow on indented lines
        first = f"{first} {', '.join(map(str.strip, takewhile(_is_indented, rest)))}"
    shown = "".join(c if c.isprintable() else " " for c in first)
    return shown.removeprefix("fatal: ").removeprefix("error: ")[:300]


def _is_indented(line: str) -> bool:
    return line.startswith(("\t", " "))


async def update_ref(git: Git, where: GitTarget, *words: str, ref: str) -> None:
    """Move a ref that only Retinue moves, past a lock that an interrupted git left on it.

    Args:
        words: options of `update-ref`, the ref and its commits.

    Raises:
        GitFailed: git refused.
    """
    try:
        await git.run(where, "update-ref", *words)
        return
    except GitFailed:
        lock = f"{where.git_dir}/{ref}.lock"
        if not os.path.exists(lock):  # noqa: ASYNC240
            raise
    for _ in range(LOCK_TURNS):
        await asyncio.sleep(LOCK_TURN_SECONDS)
        if not os.path.exists(lock):  # noqa: ASYNC240
            break
    else:
        os.unlink(lock)
    await git.run(where, "update-ref", *words)
