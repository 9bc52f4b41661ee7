"""Live copies of what a child on a node writes: its streams, its status, its logs.

The node sends each change as an encrypted piece. The steward writes it into its own folder of the
attempt, which lists, the page and recovery read. A piece may be lost with a connection: the steward
writes nothing behind a gap, and asks for what it lacks. When the attempt ends, its files replace
the copy.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from nats.aio.msg import Msg

from retinue.cluster import messages
from retinue.cluster.folder_watches import FolderWatches
from retinue.cluster.hub_connection import Callback, HubConnection, HubUnreachable
from retinue.cluster.messages import AttemptKey, InvalidMessage
from retinue.cluster.sealing import NotSealed, seal, unseal
from retinue.inotify import CHANGED, NO_LINKS, ONLY_FOLDERS
from retinue.workspaces.child_files import (
    LONGEST_PATH,
    TreeWalk,
    UnreadableFile,
    open_child_file,
)

PIECE = 128 * 1024
QUIET_S = 0.02  # changes within this time are sent together
STREAMS = ("runtime/stdout.log", "runtime/stderr.log")
LOGS = "full_logs"
MOST_FILES = 256
MOST_DEPTH = 3
LARGEST = 64 * 1024 * 1024  # of one file in the live copy
LARGEST_COPY = 256 * 1024 * 1024  # of all files in it
WATCHED = CHANGED | ONLY_FOLDERS | NO_LINKS
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def make_subject(key: AttemptKey) -> str:
    return f"live.{key.node}.{key.steward}.{key.nonce}"


class LiveSender:
    """The node's end: watches one attempt's folder."""

    def __init__(
        self,
        connection: HubConnection,
        key: AttemptKey,
        secret: bytes,
        folder: Path,
        watches: FolderWatches,
    ) -> None:
        self._connection = connection
        self._subject = make_subject(key)
        self._secret = secret
        self._folder = folder
        self._watches = watches
        # path -> inode and size of what was sent
        self._known: dict[str, tuple[int, int, int]] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._watched: dict[str, int] = {}  # folder -> number of its watch

    def start(self) -> None:
        self._changed.set()
        self._task = asyncio.create_task(self._run())

    def send_again(self, have: Mapping[str, int] | None = None) -> None:
        """Send what the steward lacks; small files, which may have been replaced, are sent whole.

        Args: have: how much of each file the steward has. Without it, the last byte of each large
            file is sent: if the steward sees a gap before it, it asks again with `have`.
        """
        for path, (inode, at, changed) in list(self._known.items()):
            got = at - 1 if have is None else have.get(path, 0)
            if at <= PIECE or got <= 0:
                del self._known[path]
            else:
                self._known[path] = (inode, min(got, at), changed)
        self._changed.set()

    async def close(self) -> None:
        for number in self._watched.values():
            self._watches.forget(number, self._changed.set)
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            self._watch_folders()
            for path in self._list_files():
                with suppress(OSError, UnreadableFile, HubUnreachable):
                    await self._send(path)
            await asyncio.sleep(QUIET_S)

    def _watch_folders(self) -> None:
        for name in ("runtime", *self._list_folders()):
            if name not in self._watched:
                # Without a watch the end brings the files.
                with suppress(OSError):
                    self._watched[name] = self._watches.watch(
                        str(self._folder / name), WATCHED, self._changed.set
                    )

    def _list_folders(self) -> list[str]:
        return [path for path, folder in self._walk() if folder][:MOST_FILES]

    def _list_files(self) -> list[str]:
        return [*STREAMS, *(path for path, folder in self._walk() if not folder)][:MOST_FILES]

    def _walk(self) -> list[tuple[str, bool]]:
        """Return the paths that the child made in its logs, each with whether it is a folder."""
        found = [(LOGS, True)]
        for folder in TreeWalk(self._folder, [LOGS], most=MOST_FILES, breadth_first=True):
            inside = set(folder.enter)
            found += [(folder.path + each.name, each.name in inside) for each in folder.entries]
            if folder.path.count("/") > MOST_DEPTH:
                folder.enter.clear()
        return found

    async def _send(self, path: str) -> None:
        """Send what was added to a file, or all of one that was replaced."""
        while (piece := self._read_piece(path)) is not None:
            at, data = piece
            head = {"path": path, "at": at, "from_start": at == 0}
            sealed = seal(self._secret, messages.encode(head, data))
            await self._connection.publish(self._subject, sealed)
            if len(data) < PIECE:
                return

    def _read_piece(self, path: str) -> tuple[int, bytes] | None:
        """Return the next piece of a file and its offset; None if nothing is new."""
        # Security: the child may have put a link in the place of a folder since it was listed.
        with open_child_file(self._folder, path) as (file, status):
            known = self._known.get(path)
            at = known[1] if known else 0
            if known is not None:
                # A file that was replaced, cut or rewritten is sent from its beginning.
                same = known[0] == status.st_ino and at <= status.st_size
                if not same or (at == status.st_size and known[2] != status.st_mtime_ns):
                    at = 0
                elif at == status.st_size:
                    return None
            if at >= LARGEST:
                return None
            data = os.pread(file, PIECE, at)
            self._known[path] = (status.st_ino, at + len(data), status.st_mtime_ns)
            return at, data


class LiveReceiver:
    """The steward's end: writes the pieces into its own folder of the attempt."""

    def __init__(
        self,
        connection: HubConnection,
        key: AttemptKey,
        secret: bytes,
        folder: Path,
        on_gap: Callable[[], None],
    ) -> None:
        """Args: on_gap: called when a piece was lost."""
        self._connection = connection
        self._subject = make_subject(key)
        self._secret = secret
        self._folder = folder
        self._on_gap = on_gap
        self._end: Callback | None = None
        self._sizes: dict[str, int] = {}  # of a copy without gaps, which must not fill the disk
        self._full = False

    async def start(self) -> None:
        self._end = await self._connection.subscribe(self._subject, self._take)

    async def close(self) -> None:
        if self._end is not None:
            await self._end()

    def take_up(self) -> None:
        """Go on with the copy of the output that an earlier steward made."""
        for path in STREAMS:
            with suppress(OSError):
                self._sizes[path] = os.lstat(self._folder / path).st_size

    def list_sizes(self) -> dict[str, int]:
        """Return how much there is of each file, without a gap."""
        return dict(self._sizes)

    async def _take(self, message: Msg) -> None:
        try:
            head, data = messages.decode(unseal(self._secret, message.data))
            path, at = str(head["path"]), int(head["at"])
        except (NotSealed, InvalidMessage, KeyError, ValueError, TypeError):
            return
        parts = path.split("/")
        plain = not any(part in ("", ".", "..") for part in parts) and len(parts) < 8
        # Each path that came is kept until the end.
        plain = plain and len(path) < LONGEST_PATH
        if not plain or not 0 <= at <= LARGEST or not (path in STREAMS or parts[0] == LOGS):
            return
        if len(self._sizes) >= MOST_FILES and path not in self._sizes:
            return
        before = self._sizes.get(path, 0)
        if at > before:
            if not self._full:
                self._on_gap()
            return
        after = at + len(data) if at == 0 else max(before, at + len(data))
        if sum(self._sizes.values()) - before + after > LARGEST_COPY:
            self._full = True
            return
        self._sizes[path] = after
        with suppress(OSError):
            _write_piece(self._folder, parts, at, data, replaced=bool(head.get("from_start")))


def _write_piece(folder: Path, parts: list[str], at: int, data: bytes, *, replaced: bool) -> None:
    """Write one piece, following no link on the way.

    A file that is sent anew gets a new inode, so that a reader sees the old or the new content.
    """
    here = os.open(folder, os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in parts[:-1]:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=here)
            flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            above, here = here, os.open(name, flags, dir_fd=here)
            os.close(above)
        name = parts[-1]
        place = f".{name}.live" if replaced else name
        descriptor = os.open(place, _WRITE, 0o600, dir_fd=here)
        try:
            if replaced:
                os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, data, at)
        finally:
            os.close(descriptor)
        if replaced:
            os.rename(place, name, src_dir_fd=here, dst_dir_fd=here)
    finally:
        os.close(here)
