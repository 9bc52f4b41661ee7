"""Simulated power loss: what was not synced is dropped or torn, and a new steward goes on.

A run is recorded by strace: every call of every process that changes files below a folder. A disk
is then made for a moment between two of these calls, as a journalling file system leaves it that
is in no hurry: names are as of the last sync of anything, the content of a file is as of its own
last sync. A torn disk has a part of the first unsynced write in addition, of each file.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

TRACED = (
    "openat,creat,write,pwrite64,writev,ftruncate,copy_file_range,sendfile,fsync,fdatasync,sync_file_range,"
    "rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,link,linkat,symlink,symlinkat,"
    "chmod,fchmod,fchmodat"
)
LONGEST = 16 * 1024 * 1024  # of a traced write
SECTOR = 512
_CALL = re.compile(r"(?P<at>\d+\.\d+) (?P<name>\w+)\((?P<said>.*)\) += (?P<got>-?\d+)")
_TEXT = re.compile(r'(?P<number>\d+|AT_FDCWD)<(?P<path>[^>]*)>|"(?P<text>[^"]*)"')
_HEX = re.compile(r"\\x([0-9a-f]{2})")


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call that changed files, or synced them."""

    at: float  # wall time
    name: str
    paths: tuple[str, ...]  # of the descriptor, or as named
    data: bytes = b""
    numbers: tuple[int, ...] = ()  # the last numbers of the call
    flags: str = ""


@dataclass
class Inode:
    """A file or folder: what it is, and what of it is on the disk."""

    mode: int
    link: str = ""
    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    unsynced: list[tuple[int, bytes]] = field(default_factory=list)
    at: int = 0  # where the next write without an offset goes


def trace_words(log: Path) -> list[str]:
    """Return the words in front of a command that record what it does."""
    options = ["-f", "-ff", "-qq", "-y", "-xx", "-ttt", "-s", str(LONGEST), "-e", "signal=none"]
    return ["strace", *options, "-e", f"trace={TRACED}", "-o", str(log)]


def read_calls(folder: Path, top: Path) -> list[Call]:
    """Return the recorded calls below `top`, by time."""
    calls = [call for log in folder.iterdir() for call in _read_log(log, str(top))]
    return sorted(calls, key=lambda call: call.at)


def _read_log(log: Path, top: str) -> Iterator[Call]:
    for line in log.read_text().splitlines():
        found = _CALL.match(line)
        if found is None or int(found["got"]) < 0:
            continue
        said = found["said"]
        if found["name"] == "openat" and "O_RDONLY" in said:
            continue
        paths: list[str] = []
        data = b""
        folder = ""
        for part in _TEXT.finditer(said):
            if part["number"] is not None:
                folder = _to_bytes(part["path"]).decode("utf-8", "surrogateescape")
                if found["name"] in BY_DESCRIPTOR:
                    paths.append(folder)
            elif found["name"] in WRITES:
                data += _to_bytes(part["text"])
            else:
                named = _to_bytes(part["text"]).decode("utf-8", "surrogateescape")
                is_target = found["name"].startswith("symlink") and not paths
                paths.append(named if is_target else os.path.normpath(os.path.join(folder, named)))
        if any(path == top or path.startswith(f"{top}/") for path in paths):
            numbers = tuple(int(n, 8 if n.startswith("0") else 10) for n in _numbers(said))
            yield Call(
                at=float(found["at"]),
                name=found["name"],
                paths=tuple(paths),
                data=data[: int(found["got"])] if found["name"] in WRITES else data,
                numbers=numbers,
                flags=said,
            )


WRITES = ("write", "pwrite64", "writev")
SYNCS = ("fsync", "fdatasync")
BY_DESCRIPTOR = (
    *WRITES, *SYNCS, "sync_file_range", "ftruncate", "fchmod", "copy_file_range", "sendfile",
)  # fmt: skip


def _numbers(said: str) -> list[str]:
    outside = _TEXT.sub("", said)
    return re.findall(r"(?<![\w|])\d+(?![\w|])", outside)


def _to_bytes(text: str) -> bytes:
    return bytes.fromhex("".join(_HEX.findall(text)))


class Disk:
    """What is on the disk while the recorded calls are carried out again."""

    def __init__(self, top: Path) -> None:
        """Take what is in a folder now as synced."""
        self._top = str(top)
        self._names: dict[str, Inode] = {}
        for path in [top, *sorted(top.rglob("*"))]:
            status = path.lstat()
            inode = Inode(mode=status.st_mode)
            if stat.S_ISLNK(status.st_mode):
                inode.link = os.readlink(path)
            elif stat.S_ISREG(status.st_mode):
                inode.data = bytearray(path.read_bytes())
                inode.synced = bytes(inode.data)
            elif not stat.S_ISDIR(status.st_mode):
                continue
            self._names[str(path)] = inode
        self._synced_names = dict(self._names)
        # A disk may still have this in its cache: the next sync of anything flushes it.
        self._written_out: list[tuple[Inode, bytes]] = []
        self.unknown: set[str] = set()  # files whose content was not recorded

    def apply(self, call: Call) -> None:
        path = call.paths[-1] if call.paths else ""
        first = call.paths[0]
        match call.name:
            case "openat" | "creat":
                self._open(path, call)
            case "write" | "pwrite64" | "writev":
                self._write(first, call)
            case "copy_file_range" | "sendfile":
                self.unknown.add(call.paths[0])
            case "ftruncate":
                if (inode := self._names.get(first)) is not None:
                    size = call.numbers[-1]
                    del inode.data[size:]
                    inode.data.extend(bytes(size - len(inode.data)))
            case "fsync" | "fdatasync":
                self._sync(first)
            case "sync_file_range":
                if (inode := self._names.get(first)) is not None:
                    self._written_out.append((inode, bytes(inode.data)))
            case "rename" | "renameat" | "renameat2":
                self._rename(first, path)
            case "unlink" | "unlinkat" | "rmdir":
                self._names.pop(path, None)
            case "mkdir" | "mkdirat":
                mode = call.numbers[-1] if call.numbers else 0o700
                self._names[path] = Inode(mode=stat.S_IFDIR | mode & 0o7777)
            case "link" | "linkat":
                if first in self._names:
                    self._names[path] = self._names[first]
            case "symlink" | "symlinkat":
                self._names[path] = Inode(mode=stat.S_IFLNK | 0o777, link=first)
            case "chmod" | "fchmod" | "fchmodat":
                if (inode := self._names.get(path)) is not None and call.numbers:
                    inode.mode = stat.S_IFMT(inode.mode) | call.numbers[-1] & 0o7777

    def _sync(self, path: str) -> None:
        """Sync a file, and with it all names and what was written out before."""
        if (inode := self._names.get(path)) is not None:
            self._written_out.append((inode, bytes(inode.data)))
        for inode, data in self._written_out:
            inode.synced = data
            inode.unsynced.clear()
        self._written_out.clear()
        self._synced_names = dict(self._names)

    def _open(self, path: str, call: Call) -> None:
        inode = self._names.get(path)
        if inode is None:
            if "O_CREAT" not in call.flags and call.name != "creat":
                return
            mode = call.numbers[-1] if call.numbers else 0o600
            self._names[path] = inode = Inode(mode=stat.S_IFREG | mode & 0o7777)
        if "O_TRUNC" in call.flags:
            inode.data.clear()
        inode.at = -1 if "O_APPEND" in call.flags else 0

    def _write(self, path: str, call: Call) -> None:
        inode = self._names.get(path)
        if inode is None:
            return
        if call.name == "pwrite64":
            at = call.numbers[-1]
        elif inode.at < 0:
            at = len(inode.data)
        else:
            at = inode.at
            inode.at += len(call.data)
        inode.data.extend(bytes(max(0, at - len(inode.data))))
        inode.data[at : at + len(call.data)] = call.data
        inode.unsynced.append((at, call.data))

    def _rename(self, old: str, new: str) -> None:
        moved = {path: each for path, each in self._names.items() if _is_within(path, old)}
        for path in [path for path in self._names if _is_within(path, new)]:
            del self._names[path]
        for path, inode in moved.items():
            del self._names[path]
            self._names[new + path[len(old) :]] = inode

    def lay_out(self, *, torn: bool) -> None:
        """Replace the content of the folder by what a power loss leaves now."""
        for each in Path(self._top).iterdir():
            if each.is_dir() and not each.is_symlink() and each.name != ".retinue":
                shutil.rmtree(each)
            elif each.name != ".retinue":
                each.unlink()
        # The identity of a root is that of its folder.
        root = Path(self._top, ".retinue")
        for each in root.iterdir() if root.is_dir() else ():
            shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
        names = self._synced_names
        if str(root) not in names:
            shutil.rmtree(root, ignore_errors=True)
        for path in sorted(names):
            inode = names[path]
            if stat.S_ISDIR(inode.mode):
                Path(path).mkdir(exist_ok=True)
            elif stat.S_ISLNK(inode.mode):
                os.symlink(inode.link, path)
            else:
                Path(path).write_bytes(_tear(inode) if torn else inode.synced)
        for path in sorted(names, reverse=True):
            if not stat.S_ISLNK(names[path].mode):
                os.chmod(path, stat.S_IMODE(names[path].mode))


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _tear(inode: Inode) -> bytes:
    """Return the synced content with the first sectors of the first unsynced write."""
    data = bytearray(inode.synced)
    for at, written in inode.unsynced[:1]:
        kept = written[: max(1, len(written) // 2 // SECTOR * SECTOR or len(written) // 2)]
        data.extend(bytes(max(0, at - len(data))))
        data[at : at + len(kept)] = kept
    return bytes(data)


def list_moments(calls: list[Call]) -> list[int]:
    """Return the numbers of calls before which a loss differs from one before the last of them."""
    marks: dict[int, None] = defaultdict(lambda: None)
    for number, call in enumerate(calls):
        if call.name in SYNCS:
            marks[number] = None  # just before: the most is unsynced
            marks[number + 1] = None  # just after
    marks[len(calls)] = None
    return sorted(marks)


def usable() -> bool:
    """Return whether strace may record here."""
    try:
        done = subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], capture_output=True)
    except OSError:
        return False
    return done.returncode == 0
