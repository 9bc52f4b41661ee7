"""Files of an attempt as one archive, between a steward and a node.

An archive that comes from a node is a claim like everything that a child wrote: it is unpacked
into a new folder, and a name that leads elsewhere, a device, a hard link or too much data is
refused. Overlay marks travel as they are: whiteouts as devices 0:0, opaque folders as a PAX header.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from retinue.files import PASSED, hold_descriptor, is_opaque, is_whiteout
from retinue.workspaces.child_files import FILE, TreeWalk, open_child_folder

OPAQUE = "RETINUE.opaque"
LARGEST_BYTES = 4 * 1024**3  # unpacked; more is refused
LARGEST_PACKED = 1024**3
MOST_ENTRIES = 2_000_000
PIECE = 1024 * 1024
_OUT_OF_RANGE = (ValueError, OverflowError, RecursionError)
_BAD_NAMES = (errno.ENOENT, errno.ENAMETOOLONG)  # a link to nothing, a name that no file can have
_NAMED = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class ArchiveRefused(ValueError):
    """The archive is damaged, hostile or too large; the message says how."""


class TooLarge(ArchiveRefused):
    """There is more to pack than an archive may hold."""


def pack(
    top: Path,
    names: Sequence[str],
    *,
    skip: Callable[[str], bool] = lambda _: False,
    left: list[str] | None = None,
    unlocking: bool = True,
    most: int = LARGEST_PACKED,
) -> bytes:
    """Return an archive of these names in a folder; names that do not exist are left out.

    A child may change what is packed meanwhile: no link is followed, and all is reached from the
    folder by descriptors.

    Args:
        top: a trusted folder.
        skip: whether to leave out a path, relative to the folder.
        left: receives what cannot be packed, such as pipes and unreadable files.
        unlocking: give the owner access to what the child locked, once it has ended.
        most: how many bytes the archive may have.

    Raises:
        TooLarge: there is more than that.
        OSError: the folder cannot be opened.
    """
    out = io.BytesIO()
    with (
        # Without a time, so that the same files give the same bytes.
        gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for found in _walk(top, names, skip, unlocking=unlocking):
            if not _add(archive, found, found.path, unlocking=unlocking) and left is not None:
                left.append(found.path)
            if out.tell() > most:
                raise TooLarge(f"there are more than {most >> 20} MB to send")
    return out.getvalue()


@dataclass(frozen=True, kw_only=True)
class _Found:
    """Something to pack. The descriptor is usable until the next one is found."""

    path: str  # from the top
    status: os.stat_result
    folder: int  # descriptor of the folder that holds it
    name: str  # in that folder

    def is_same(self, descriptor: int) -> bool:
        """Return whether a descriptor is of this file or folder, and not of a later one."""
        status = os.fstat(descriptor)
        return (status.st_dev, status.st_ino) == (self.status.st_dev, self.status.st_ino)


def _walk(
    top: Path, names: Sequence[str], skip: Callable[[str], bool], *, unlocking: bool
) -> Iterator[_Found]:
    """Yield what is to be packed, a folder before its content."""
    made: set[str] = set()
    # Links on the way to the top are the user's.
    with hold_descriptor(os.open(top, PASSED & ~os.O_NOFOLLOW)) as here:
        for name in names:
            if skip(name) or not _exists(here, name):
                continue
            # The folders that a name lies in come first.
            parts = name.split("/")
            for path in ("/".join(parts[:depth]) for depth in range(1, len(parts) + 1)):
                if path in made:
                    continue
                made.add(path)
                try:
                    with _open_above(here, path) as (folder, last):
                        status = os.stat(last, dir_fd=folder, follow_symlinks=False)
                        found = _Found(path=path, status=status, folder=folder, name=last)
                        yield found
                except OSError:
                    break
                if path == name and stat.S_ISDIR(status.st_mode):
                    yield from _walk_folder(here, found, skip, unlocking=unlocking)


@contextmanager
def _open_above(top: int, path: str) -> Iterator[tuple[int, str]]:
    """Yield the folder that holds a path, and its name there.

    Raises:
        OSError: a folder on the way does not exist, or is a link.
    """
    *above, last = path.split("/")
    # The top need not be readable.
    with open_child_folder(top, above) if above else nullcontext(top) as folder:
        yield folder, last


def _exists(top: int, path: str) -> bool:
    try:
        with _open_above(top, path) as (folder, last):
            os.stat(last, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True


def _walk_folder(
    top: int, start: _Found, skip: Callable[[str], bool], *, unlocking: bool
) -> Iterator[_Found]:
    """Yield what is in a folder and below it."""
    for listing in TreeWalk(top, [start.path], unlocking=unlocking):
        if listing.path == f"{start.path}/" and not start.is_same(listing.descriptor):
            return
        enter = set(listing.enter)
        listing.enter.clear()
        for entry in listing.entries:
            path = listing.path + entry.name
            if skip(path):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            yield _Found(path=path, status=status, folder=listing.descriptor, name=entry.name)
            if entry.name in enter:
                listing.enter.append(entry.name)


def _add(archive: tarfile.TarFile, found: _Found, path: str, *, unlocking: bool) -> bool:
    """Add one entry; return whether that was possible."""
    status = found.status
    entry = tarfile.TarInfo(path)
    entry.mode = stat.S_IMODE(status.st_mode) & 0o777
    entry.mtime = int(status.st_mtime)
    mode = status.st_mode
    try:
        if stat.S_ISDIR(mode):
            entry.type = tarfile.DIRTYPE
            if is_opaque(f"/proc/self/fd/{found.folder}/{found.name}"):
                entry.pax_headers = {OPAQUE: "y"}
        elif stat.S_ISLNK(mode):
            entry.type = tarfile.SYMTYPE
            entry.linkname = os.readlink(found.name, dir_fd=found.folder)
        elif is_whiteout(status):
            entry.type = tarfile.CHRTYPE
            entry.devmajor = entry.devminor = 0
        elif stat.S_ISREG(mode):
            with _open(found, unlocking=unlocking) as file:
                # The size is that of what is read: nothing else guarantees that they agree.
                data = file.read(LARGEST_PACKED + 1)
            if len(data) > LARGEST_PACKED:
                raise TooLarge(f"{path} is larger than {LARGEST_PACKED >> 20} MB")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
            return True
        else:
            return False
    except OSError:
        return False
    archive.addfile(entry)
    return True


@contextmanager
def _open(found: _Found, *, unlocking: bool) -> Iterator[IO[bytes]]:
    """Open a regular file.

    Raises:
        OSError: it cannot be read, or another one is in its place.
    """
    try:
        descriptor = os.open(found.name, FILE, dir_fd=found.folder)
    except PermissionError:
        if not unlocking:
            raise
        with hold_descriptor(os.open(found.name, _NAMED, dir_fd=found.folder)) as handle:
            if not found.is_same(handle):
                raise
            # By descriptor: a child cannot swap it for a link between check and change.
            os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(found.status.st_mode) | 0o400)
        descriptor = os.open(found.name, FILE, dir_fd=found.folder)
    with open(descriptor, "rb") as file:
        if not found.is_same(descriptor):
            raise FileNotFoundError(found.path)
        yield file


def unpack(data: bytes, top: Path, allowed: Sequence[str]) -> None:
    """Unpack an archive into an existing, empty folder that no other process writes.

    Args:
        allowed: the paths that may be in it, each with all that is below.

    Raises:
        ArchiveRefused: the archive is hostile or damaged; what is in the folder is useless.
        OSError: the disk refused.
    """
    folders = {""}
    total = 0
    try:
        with tarfile.open(fileobj=_Unpacked(data), mode="r:") as archive:  # type: ignore[call-overload]
            number = 0
            while (entry := archive.next()) is not None:
                # It keeps all of them, for look-ups by name.
                archive.members.clear()
                number += 1
                if number > MOST_ENTRIES:
                    raise ArchiveRefused(f"it has more than {MOST_ENTRIES} entries")
                path = _check(entry, folders, allowed)
                place = f"{top}/{path}"
                if entry.isdir():
                    os.mkdir(place, 0o700)
                    folders.add(path)
                    _finish_folder(entry, place)
                elif entry.ischr():
                    os.mknod(place, stat.S_IFCHR, 0)
                elif entry.issym():
                    os.symlink(entry.linkname, place)
                else:
                    total += entry.size
                    if total > LARGEST_BYTES:
                        raise ArchiveRefused(f"it unpacks to more than {LARGEST_BYTES >> 30} GB")
                    _write(archive, entry, place)
    except ArchiveRefused:
        raise
    # Times and sizes out of range, and headers that nest without end, are left to us by tarfile.
    except (tarfile.TarError, EOFError, zlib.error, FileExistsError, *_OUT_OF_RANGE) as error:
        raise ArchiveRefused(f"the archive is damaged: {error}") from error
    except OSError as error:
        # A damaged gzip stream is an OSError without a number.
        if error.errno is None or error.errno in _BAD_NAMES:
            raise ArchiveRefused(f"the archive is damaged: {error}") from error
        raise


class _Unpacked:
    """The content of a compressed archive, in reads of a bounded size.

    tarfile reads a header into memory at once, whatever length it claims. All else is read here in
    pieces, or refused before anything is skipped.
    """

    def __init__(self, data: bytes) -> None:
        self._file = gzip.GzipFile(fileobj=io.BytesIO(data))
        self.tell = self._file.tell
        self.seek = self._file.seek

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= PIECE:
            raise ArchiveRefused(f"a header in it is longer than {PIECE >> 20} MB")
        if self.tell() > 2 * LARGEST_BYTES:
            raise ArchiveRefused(f"it unpacks to more than {2 * LARGEST_BYTES >> 30} GB")
        return self._file.read(size)


def _check(entry: tarfile.TarInfo, folders: set[str], allowed: Sequence[str]) -> str:
    """Return the path of an entry.

    Raises:
        ArchiveRefused: it must not be unpacked.
    """
    path = entry.name
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in path:
        raise ArchiveRefused(f"a name leads elsewhere: {path[:80]!a}")
    if not any(
        path == name or path.startswith(f"{name}/") or name.startswith(f"{path}/")
        for name in allowed
    ):
        raise ArchiveRefused(f"a name that was not asked for: {path[:80]!a}")
    # Every folder on the way was made here: none of them is a link.
    if path.rpartition("/")[0] not in folders:
        raise ArchiveRefused(f"a name leads through something else: {path[:80]!a}")
    plain = (entry.isreg() and not entry.issparse()) or entry.isdir() or entry.issym()
    if not plain and not (entry.ischr() and entry.devmajor == entry.devminor == 0):
        raise ArchiveRefused(f"neither a file, a folder nor a link: {path[:80]!a}")
    return path


def _finish_folder(entry: tarfile.TarInfo, place: str) -> None:
    if entry.pax_headers.get(OPAQUE) == "y":
        os.setxattr(place, "user.overlay.opaque", b"y")
    # The owner keeps access: what is below is written next.
    os.chmod(place, entry.mode & 0o777 | 0o700)


def _write(archive: tarfile.TarFile, entry: tarfile.TarInfo, place: str) -> None:
    source = archive.extractfile(entry)
    if source is None:
        raise ArchiveRefused(f"no content: {entry.name[:80]!a}")
    descriptor = os.open(place, _CREATE, 0o600)
    with source, open(descriptor, "wb") as file:
        while piece := source.read(PIECE):
            file.write(piece)
        os.fchmod(descriptor, entry.mode & 0o777)
    os.utime(place, (entry.mtime, entry.mtime), follow_symlinks=False)


def pack_as(
    top: Path,
    name: str,
    shown: str,
    *,
    skip: Callable[[str], bool],
    identity: tuple[int, int] | None = None,
) -> bytes:
    """Return an archive of one file or folder, under another name.

    The same files give the same bytes: neither the archive nor its entries hold a time.

    Args:
        identity: its device and inode when it was lent.

    Raises:
        ArchiveRefused: another one is in its place, or there is more than an archive may hold.
        OSError: it does not exist.
    """
    status = os.lstat(top / name)
    # Security: a child that lends its own files may replace a folder on the way by a link.
    known = identity or (status.st_dev, status.st_ino)
    out = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for found in _walk(top, [name], skip, unlocking=False):
            if found.path == name and (found.status.st_dev, found.status.st_ino) != known:
                raise ArchiveRefused("it was replaced since it was lent")
            if out.tell() > LARGEST_PACKED:
                raise TooLarge(f"there are more than {LARGEST_PACKED >> 20} MB to send")
            _add(archive, found, shown + found.path[len(name) :], unlocking=False)
    return out.getvalue()


def digest(data: bytes, key: bytes) -> str:
    """Return a name for content that says nothing about it without the key."""
    return hashlib.blake2b(data, key=key, digest_size=16).hexdigest()
