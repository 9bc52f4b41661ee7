"""Reaching the steward of a root, and starting it where there is none.

Blocking, and light to import: a shell command is over before an event loop
would have been made.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from retinue.domain.errors import BadInput, NotFound, RetinueError, StewardUnavailable
from retinue.settings import FOLDER, is_made, require_usable
from retinue.sockets import peer
from retinue.steward.diary import LOG, open_log
from retinue.steward.versions import refusal
from retinue.wire import protocol

START_SECONDS = 30.0
TRIES = 5
QUIET_SECONDS = 3.0  # after which a steward is asked whether it answers anybody
PROBE_SECONDS = 2.0
MAKES_ROOT = ("task.create", "run.start", "run.begin", "run.attend_plan", "run.attend")  # verbs


def require_root(root: Path, verb: str) -> None:
    """Something was done in this root, or the verb is one that makes it: looking makes nothing.

    Raises:
        NotFound: there is none.
    """
    if verb in MAKES_ROOT or is_parents(root):
        return
    try:
        made, why = is_made(root), "is no root of retinue: no task was ever created in it"
    except FileNotFoundError:
        made, why = False, "does not exist: no task was ever created here"
    except OSError:
        return  # whoever dials says what is wrong with it
    if not made:
        hint = "'retinue task create --title T' makes one; --root names another"
        if (root / FOLDER).is_dir():
            hint = f"did you mean --root {root / FOLDER}?"
        raise NotFound(f"{root} {why}", code="unknown_root", hint=hint)


def is_parents(root: Path) -> bool:
    """Whether this process is within a subagent of that root: it is shown the way to the steward,
    and little else of the root.
    """
    return os.environ.get("RETINUE_STEWARD") == str(root / protocol.DESK / protocol.SOCKET)


def dial(root: Path) -> socket.socket | None:
    """A connection to the root's steward, or None when it has none."""
    try:
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        raise BadInput(f"{root} belongs to another user", code="bad_root") from None
    except OSError:
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        for place in (protocol.SOCKET, f"{protocol.DESK}/{protocol.SOCKET}"):
            with suppress(FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
                connection.connect(f"/proc/self/fd/{folder}/{place}")
                return connection
    except PermissionError:
        connection.close()
        raise BadInput(f"{root} belongs to another user", code="bad_root") from None
    finally:
        os.close(folder)
    connection.close()
    return None


def reach(root: Path) -> socket.socket:
    """A connection to the root's steward, which has been started if there was none.

    Raises:
        RetinueError: why it could not be.
    """
    held = None
    for _ in range(TRIES):
        connection = dial(root)
        if connection is not None:
            return connection
        if is_parents(root):
            raise StewardUnavailable(
                "the steward that this subagent works for does not answer",
                hint="repeat the command: where it was lost, another takes its place",
            )
        held = start(root)
        if held is not None and held.code != "root_held":
            raise held
    raise StewardUnavailable(
        f"{held.message if held else root}, which does not answer",
        code="root_held",
        hint="end the program that has it open with retinue.open(); where that is a steward which "
        "is just ending, ask again",
    )


def start(root: Path) -> RetinueError | None:
    """A steward of the root is ready, or the reason why this one is not."""
    ours, theirs = _pipe()
    try:
        require_usable(root)
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(open_log(root), "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "retinue.steward", str(root), str(theirs)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=root,
                pass_fds=[theirs],
                start_new_session=True,
            )
        os.close(theirs)
        theirs = -1
        said = _line(ours)
    except BadInput as error:
        return error
    except OSError as error:
        where = error.filename or root
        return StewardUnavailable(
            f"no steward could be started: {where}: {error.strerror}",
            hint="name a folder of your own with --root or RETINUE_ROOT",
        )
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)
    if said is None:
        return StewardUnavailable(
            f"the steward, process {process.pid}, is not ready after {START_SECONDS:g} seconds",
            hint=f"it goes on: repeat the command; {root / LOG} tells what it met",
        )
    if not said:
        return StewardUnavailable("the steward ended before it was ready", hint=f"see {root / LOG}")
    message = json.loads(said)
    return protocol.error_from_json(message["error"]) if "error" in message else None


def _pipe() -> tuple[int, int]:
    """Its ends; the second is no standard stream, which the one that it is passed to has."""
    ours, low = os.pipe()
    try:
        return ours, fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(low)


def process_of(connection: socket.socket) -> int:
    """The steward at the other end."""
    return peer(connection)[0]


class Client:
    """One connection: requests one after the other."""

    def __init__(self, root: Path, tell: Callable[[str], None] = lambda text: None) -> None:
        """Args: tell: who hears of a steward that answers nobody, while it is waited for."""
        self._root, self._tell = root, tell
        self._connect()
        self._hung_up = False
        self._number = 0

    def call(self, verb: str, **params: Any) -> Any:
        """The verb's answer.

        Raises:
            RetinueError: what the steward said.
        """
        *_, last = self._messages(verb, params)
        return last.get("result")

    def stream(self, verb: str, **params: Any) -> Iterator[Any]:
        """The verb's items, as they come."""
        for message in self._messages(verb, params):
            if "item" in message:
                yield message["item"]

    def forget(self) -> None:
        """The steward knows that its last answer never came to anybody."""
        asked = {"request": self._number, "leave": True}
        with suppress(OSError):
            self._number += 1
            self._connection.sendall(protocol.request(self._number, protocol.FORGET, asked))

    def hang_up(self) -> None:
        """Whoever waits here, in another thread, waits no longer, and nobody else is asked."""
        self._hung_up = True
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._lines.close()
        self._connection.close()

    def _messages(self, verb: str, params: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        self._number += 1
        request = protocol.request(self._number, verb, params)
        line = self._answer(request)
        with suppress(ConnectionError):
            while line:
                message = protocol.decode(line)
                if "error" in message:
                    raise refusal(message["error"], self._connection)
                yield message
                if "item" not in message:
                    return
                line = self._lines.readline()
        raise StewardUnavailable(
            "the steward ended while it was asked",
            code="steward_lost",
            hint="the next command starts another, which takes up what was under way: "
            "look what became of it, then repeat what was not done",
        )

    def _answer(self, request: bytes) -> bytes:
        """Its first line, or nothing where the steward ended. If that was before it had read all
        of the request, nothing was done, and the next one is asked: what could not be sent, or a
        reset, tells.
        """
        for _ in range(TRIES):
            if self._hung_up:
                break
            sent = False
            try:
                with suppress(BrokenPipeError):  # why it takes no more, it may have said before
                    self._connection.sendall(request)
                    sent = True
                self._expect()
                if (line := self._lines.readline()) or sent:
                    return line
            except ConnectionResetError:
                pass
            self.close()
            self._connect()
        return b""

    def _connect(self) -> None:
        self._connection = reach(self._root)
        self._lines = self._connection.makefile("rb")

    def _expect(self) -> None:
        """An answer is there, or will take its time; else whoever waits knows whose it is."""
        answer = select.poll()
        answer.register(self._connection, select.POLLIN)
        if not answer.poll(QUIET_SECONDS * 1000) and not _answers(self._root):
            pid = process_of(self._connection)
            self._tell(
                f"the steward, process {pid}, does not answer, and is waited for; "
                f"if somebody stopped it, 'kill -CONT {pid}' lets it go on"
            )


def _answers(root: Path) -> bool:
    """Whether the steward answers anybody now, or is gone, which its clients see themselves."""
    connection = dial(root)
    if connection is None:
        return True
    with connection:
        connection.settimeout(PROBE_SECONDS)
        try:
            connection.sendall(protocol.request(1, "steward.status", {}))
            connection.recv(1)
        except TimeoutError:
            return False
        except OSError:
            return True
    return True


def _line(descriptor: int) -> bytes | None:
    """What the starting steward says: nothing when it has died, None when it takes too long."""
    readable, _, _ = select.select([descriptor], [], [], START_SECONDS)
    return os.read(descriptor, 65536) if readable else None
