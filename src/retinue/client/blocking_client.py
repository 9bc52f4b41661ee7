"""Blocking client of the steward, which it starts if none is running.

It imports little: most shell commands end before an event loop would be ready.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from retinue.client.repeatable_calls import LOST, LossCounter, prepare_repeat
from retinue.client.steward_log import LOG, open_log
from retinue.core.errors import (
    PYTHON,
    BadInput,
    NotFound,
    Refused,
    RetinueError,
    StewardUnavailable,
    StorageFailed,
)
from retinue.formats import steward_protocol
from retinue.settings import FOLDER, has_tasks, require_usable, was_used
from retinue.sockets import read_peer
from retinue.trust import can_be_used, make_root

PACKAGE = Path(__file__).parent.parent
OUTDATED_HINT = (
    f"the steward was started before retinue was updated here: {steward_protocol.REPLACE_STEWARD}"
)


def make_refusal(error: Mapping[str, Any], connection: socket.socket) -> RetinueError:
    """Return the steward's error; if the steward may be outdated, the hint says so."""
    refusal = steward_protocol.error_from_json(error)
    if refusal.code == "unknown_verb" or refusal.message.startswith("unknown parameter "):
        return _replace_hint(refusal, steward_protocol.OTHER_VERSION_HINT)
    if (isinstance(refusal, BadInput) or refusal.code == "internal") and _is_older(connection):
        return refusal.with_more(OUTDATED_HINT)
    return refusal


def _replace_hint(refusal: RetinueError, hint: str) -> RetinueError:
    return type(refusal)(refusal.message, code=refusal.code, hint=hint)


def _is_older(connection: socket.socket) -> bool:
    """Return whether a file of this package changed after the steward was started."""
    try:
        # Field 22 of /proc/PID/stat is the start time in ticks since boot.
        pid, _ = read_peer(connection)
        with open(f"/proc/{pid}/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        began = booted + ticks / os.sysconf("SC_CLK_TCK")
        return any(path.stat().st_ctime > began for path in PACKAGE.rglob("*.py"))
    except OSError:
        # The steward is gone, or hidden from this process, as inside a subagent.
        return False


START_SECONDS = 30.0
TRIES = 5
# Silence after which a second connection checks whether the steward answers at all
QUIET_SECONDS = 3.0
PROBE_SECONDS = 2.0
# Time for a steward to end
LEAVE_SECONDS = 5.0
# Argument for a process that only reads a root; the descriptor of its connection follows
READ = "--read"
# Verbs that create a root
MAKES_ROOT = ("task.create", "run.start", "run.begin", "run.attend_plan", "run.attend")


def require_root(root: Path, verb: str, *, creates: bool = False) -> None:
    """Check that the root exists or that the verb creates it; reading verbs create none.

    Args:
        creates: with these parameters the verb creates a task, and so the root.

    Raises:
        NotFound: there is no root.
    """
    if creates or verb in MAKES_ROOT or is_inside_subagent(root):
        return
    try:
        made = was_used(root)
        why = "is not a retinue root: no task was ever created in it"
    except FileNotFoundError:
        made, why = False, "does not exist: no task was ever created here"
    except OSError:
        # The attempt to connect reports the cause.
        return
    if not made:
        hint = "'retinue task create --title T' creates one; --root selects another"
        if (root / FOLDER).is_dir():
            hint = f"did you mean --root {root / FOLDER}?"
        raise NotFound(f"{root} {why}", code="unknown_root", hint=hint)


def is_inside_subagent(root: Path) -> bool:
    """Return whether this process runs inside a subagent of the root.

    Such a process sees the steward's socket and little else of the root.
    """
    return os.environ.get("RETINUE_STEWARD") == str(
        root / steward_protocol.DESK / steward_protocol.SOCKET
    )


def connect_if_running(root: Path) -> socket.socket | None:
    """Return a connection to the root's steward, or None if none is running.

    Raises:
        BadInput: the root, its socket or the listening process belongs to another user.
    """
    try:
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        raise BadInput(f"{root} belongs to another user", code="bad_root") from None
    except OSError:
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    # Inside a subagent the owner cannot be checked: its user id differs from the socket's.
    checked = not is_inside_subagent(root)
    try:
        # Children have a separate socket, which serves no other callers.
        place = (
            steward_protocol.SOCKET
            if checked
            else f"{steward_protocol.DESK}/{steward_protocol.SOCKET}"
        )
        if checked:
            _require_own(os.fstat(folder).st_uid)
        with suppress(FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            if checked:
                _require_own(os.stat(place, dir_fd=folder, follow_symlinks=False).st_uid)
            # Through the open folder: its path may be longer than a socket address, and cannot
            # be swapped after the check.
            connection.connect(f"/proc/self/fd/{folder}/{place}")
            if checked:
                _require_own(read_peer(connection)[1])
            return connection
    except PermissionError:
        connection.close()
        raise BadInput(
            f"{root} belongs to another user",
            code="bad_root",
            hint="set another one with --root or RETINUE_ROOT",
        ) from None
    finally:
        os.close(folder)
    connection.close()
    return None


def _require_own(uid: int) -> None:
    """Raises:
    PermissionError: the owner is neither this user nor root.
    """
    if uid not in (os.geteuid(), 0):
        raise PermissionError


def connect_or_start(root: Path) -> socket.socket:
    """Return a connection to the root's steward, starting one if necessary.

    For an untrusted root the other end is a read-only process that ends with the connection.

    Raises:
        RetinueError: no steward could be reached or started.
    """
    refusal = None
    # Several tries: the steward that was found may be ending, and another may be starting.
    for _ in range(TRIES):
        connection = connect_if_running(root)
        if connection is not None:
            return connection
        if is_inside_subagent(root):
            raise StewardUnavailable(
                "the steward of this subagent does not answer",
                hint="repeat the command: a lost steward is replaced by another",
            )
        if not can_be_used(root, os.environ):
            return _start_reader(root)
        refusal = start(root)
        if refusal is not None and refusal.code != "root_held":
            raise refusal
    raise StewardUnavailable(
        f"{refusal.message if refusal else root}, which does not answer",
        code="root_held",
        hint="end the program that holds it with retinue.open(); if that is a steward that is "
        "about to exit, repeat the command",
    )


def start(root: Path) -> RetinueError | None:
    """Start a steward and wait until it is ready; return the error if it is not."""
    # The steward writes one line to this pipe when it is ready or has failed.
    ours, theirs = _open_pipe()
    try:
        is_new = not root.exists()
        make_root(root, os.environ)
        with os.fdopen(open_log(root), "ab") as log:
            process = _launch(root, theirs, log, [steward_protocol.NEW_ROOT] if is_new else [])
        os.close(theirs)
        theirs = -1
        said = _read_ready_line(ours)
    except (BadInput, Refused, StorageFailed) as error:
        return error
    except OSError as error:
        where = error.filename or root
        return StewardUnavailable(
            f"no steward could be started: {where}: {error.strerror}",
            hint="set a folder that you can write to with --root or RETINUE_ROOT",
            hints={PYTHON: "pass a folder that you can write to as root"},
        )
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)
    if said is None:
        return StewardUnavailable(
            f"the steward, process {process.pid}, is not ready after {START_SECONDS:g} seconds",
            hint=f"it is still starting: repeat the command; {root / LOG} may have details",
        )
    if not said:
        return StewardUnavailable("the steward ended before it was ready", hint=f"see {root / LOG}")
    message = json.loads(said)
    return steward_protocol.error_from_json(message["error"]) if "error" in message else None


def _start_reader(root: Path) -> socket.socket:
    """Start a process that only reads an untrusted root; return a connection to it.

    Raises:
        RetinueError: the root cannot be read.
    """
    require_usable(root)
    mine, its = socket.socketpair()
    ours, theirs = _open_pipe()
    try:
        with its, open(os.devnull, "ab") as nowhere:
            _launch(root, theirs, nowhere, [READ, str(its.fileno())], its)
        os.close(theirs)
        theirs = -1
        said = _read_ready_line(ours)
    except OSError as error:
        mine.close()
        raise StewardUnavailable(f"{root} cannot be read: {error.strerror}") from None
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)
    message = json.loads(said) if said else {}
    if "ready" not in message:
        mine.close()
        if "error" in message:
            raise steward_protocol.error_from_json(message["error"])
        raise StewardUnavailable(f"{root} cannot be read: the process that reads it has ended")
    return mine


def _launch(
    root: Path,
    ready: int,
    output: BinaryIO,
    words: Sequence[str],
    connection: socket.socket | None = None,
) -> subprocess.Popen[bytes]:
    """Start a steward, or a process that serves one connection from an untrusted root."""
    passed = [ready] if connection is None else [ready, connection.fileno()]
    return subprocess.Popen(
        # -P: import nothing from the current folder.
        [sys.executable, "-P", "-m", "retinue.steward", str(root), str(ready), *words],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        cwd=root if connection is None else "/",
        pass_fds=passed,
        start_new_session=True,
    )


def _open_pipe() -> tuple[int, int]:
    """Return a pipe whose write end is above 2, since the new process replaces 0 to 2."""
    ours, low = os.pipe()
    try:
        return ours, fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(low)


def get_peer_pid(connection: socket.socket) -> int:
    """Return the process id of the steward at the other end."""
    return read_peer(connection)[0]


class Client:
    """Connection to a steward, with one request at a time."""

    def __init__(
        self,
        root: Path,
        tell: Callable[[str], None] = lambda text: None,
        *,
        reconnects: bool = False,
    ) -> None:
        """Args:
        tell: receives notes about a steward that does not answer or was lost.
        reconnects: whether a request is repeated with the next steward if one is lost.
        """
        self._root = root
        self.tell = tell
        self._reconnects = reconnects
        self._connect()
        self._is_shut_down = False
        self._number = 0

    def call(self, verb: str, **params: Any) -> Any:
        """Call a verb and return its result.

        Raises:
            RetinueError: the steward refused the request or was lost.
        """
        losses = LossCounter()
        began = time.monotonic()
        while True:
            try:
                *_, last = self._iter_messages(verb, params)
                return last.get("result")
            except StewardUnavailable as error:
                again = prepare_repeat(verb, params, time.monotonic() - began)
                if error.code != LOST or again is None:
                    raise
                if not self._reconnects or self._is_shut_down:
                    raise
                losses.add(time.monotonic())
                params = again
                self.reconnect()

    def reconnect(self) -> None:
        """Connect to the next steward, starting one if necessary.

        Raises:
            RetinueError: no steward could be reached.
        """
        self.tell("the steward ended during the request: continuing with the next one")
        self.close()
        self._connect()

    def stream(self, verb: str, **params: Any) -> Iterator[Any]:
        """Yield the items of a verb; after a lost steward, events continue where they ended."""
        losses = LossCounter()
        while True:
            try:
                for message in self._iter_messages(verb, params):
                    if "item" in message:
                        yield message["item"]
                        if verb == "task.events":
                            params["since"] = message["item"]["seq"]
                return
            except StewardUnavailable as error:
                follows = verb == "task.events" and self._reconnects and not self._is_shut_down
                if error.code != LOST or not follows:
                    raise
                losses.add(time.monotonic())
                self.reconnect()

    def forget(self) -> None:
        """Tell the steward that its last response was lost, so that it delivers it again."""
        asked = {"request": self._number, "leave": True}
        with suppress(OSError):
            self._number += 1
            self._connection.sendall(
                steward_protocol.encode_request(self._number, steward_protocol.FORGET, asked)
            )

    def shut_down(self) -> None:
        """End the wait of another thread on this connection, and do not reconnect."""
        self._is_shut_down = True
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def leave_unused(self) -> None:
        """Disconnect from a root without tasks, and wait until its steward has removed it."""
        if has_tasks(self._root):
            return
        # The steward closes its end after it has removed the root; the wait is bounded.
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
            self._connection.settimeout(LEAVE_SECONDS)
            while self._connection.recv(65536):
                pass

    def close(self) -> None:
        self._lines.close()
        self._connection.close()

    def _iter_messages(self, verb: str, params: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        self._number += 1
        request = steward_protocol.encode_request(self._number, verb, params)
        line = self._send_request(request)
        with suppress(ConnectionError):
            while line:
                message = steward_protocol.decode(line)
                if "error" in message:
                    raise make_refusal(message["error"], self._connection)
                yield message
                if "item" not in message:
                    return
                line = self._lines.readline()
        raise StewardUnavailable(
            "the steward ended during the request",
            code=LOST,
            hint="the next command starts a new steward, which takes over the subagents: "
            "check the state, then repeat the command if it had no effect",
        )

    def _send_request(self, request: bytes) -> bytes:
        """Send the request and return the first line of the response; empty if the steward ended.

        If the steward ended before it had read the whole request, nothing was done, and the
        request is sent to the next one. An incomplete send or a reset shows that.
        """
        for _ in range(TRIES):
            if self._is_shut_down:
                break
            sent = False
            try:
                # After a broken pipe, a refusal that the steward sent before may still be unread.
                with suppress(BrokenPipeError):
                    self._connection.sendall(request)
                    sent = True
                self._wait_for_answer()
                if (line := self._lines.readline()) or sent:
                    return line
            except ConnectionResetError:
                pass
            self.close()
            self._connect()
        return b""

    def _connect(self) -> None:
        self._connection = connect_or_start(self._root)
        self._lines = self._connection.makefile("rb")

    def _wait_for_answer(self) -> None:
        """Wait a while for the response; if the steward does not answer at all, say so."""
        answer = select.poll()
        answer.register(self._connection, select.POLLIN)
        if not answer.poll(QUIET_SECONDS * 1000) and not _is_answering(self._root):
            pid = get_peer_pid(self._connection)
            self.tell(
                f"waiting for the steward, process {pid}, which does not answer; "
                f"if it was stopped, 'kill -CONT {pid}' resumes it"
            )


def _is_answering(root: Path) -> bool:
    """Return whether a new connection gets an answer; True also if the steward is gone."""
    try:
        connection = connect_if_running(root)
    except RetinueError:
        # The root has changed, but the pending request still has its connection.
        return True
    if connection is None:
        return True
    with connection:
        connection.settimeout(PROBE_SECONDS)
        try:
            connection.sendall(steward_protocol.encode_request(1, "steward.status", {}))
            connection.recv(1)
        except TimeoutError:
            return False
        except OSError:
            return True
    return True


def _read_ready_line(descriptor: int) -> bytes | None:
    """Return the line of a starting steward; empty if it died, None if it takes too long."""
    readable, _, _ = select.select([descriptor], [], [], START_SECONDS)
    return os.read(descriptor, 65536) if readable else None
