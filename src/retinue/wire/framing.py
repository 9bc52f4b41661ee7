"""An answer as bytes: where its head ends, and which of what follows is its body."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

LARGEST_HEAD = 64 * 1024
LARGEST_LINE = 8 * 1024  # between the chunks of a body
BODILESS = (204, 304)
FRAMING = ("content-length", "transfer-encoding")

_STATUS = re.compile(r"HTTP/1\.([01]) ([1-9][0-9]{2})(?: (.*))?")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n]*?)[ \t]*")
_SIZES = {b"%x" % size: size for size in range(1, 4096)}  # as they are nearly always written


class Malformed(Exception):
    """These bytes are no answer; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """What precedes a body. Its text is the bytes as they came, each one a letter."""

    status: int
    reason: str
    headers: list[tuple[str, str]]
    version: str = "1"  # of HTTP/1

    def get(self, name: str) -> str:
        """The header of this name, which is given in small letters; empty where there is none."""
        return self._named.get(name, "")

    @cached_property
    def keeps(self) -> bool:
        """Whether the connection stays open for another request."""
        told = self.get("connection").lower()
        return "close" not in told and (self.version == "1" or "keep-alive" in told)

    @cached_property
    def chunked(self) -> bool:
        """Raises:
        Malformed: it is coded in a way that cannot be read.
        """
        coding = self.get("transfer-encoding")
        if coding and coding.lower() != "chunked":
            raise Malformed(f"its transfer encoding is {coding[:40]!r}")
        return bool(coding)

    @cached_property
    def length(self) -> int | None:
        """Of the body, where it is told beforehand.

        Raises:
            Malformed: what is told is no length.
        """
        told = self.get("content-length")
        if self.status in BODILESS:
            return 0
        if self.chunked or not told:
            return None
        if not (told.isascii() and told.isdigit() and len(told) < 19):
            raise Malformed("its length is no number")
        return int(told)

    @cached_property
    def _named(self) -> dict[str, str]:
        named: dict[str, str] = {}
        for name, value in self.headers:
            if named.setdefault(name.lower(), value) != value and name.lower() in FRAMING:
                raise Malformed(f"it says {name} twice")
        return named


def read_head(data: bytes) -> Head:
    """The head in these bytes, which end before its empty line.

    Raises:
        Malformed: it is none.
    """
    first, *lines = data.decode("latin-1").split("\r\n")
    begun = _STATUS.fullmatch(first)
    if begun is None:
        raise Malformed("it does not begin like an answer")
    headers = []
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None:
            raise Malformed("a header is none")
        headers.append((header[1], header[2]))
    return Head(status=int(begun[2]), reason=begun[3] or "", headers=headers, version=begun[1])


class Body:
    """Until the connection is closed, or as many bytes as were told."""

    def __init__(self, length: int | None) -> None:
        self.left = length
        self.whole = length == 0

    def feed(self, data: bytes) -> bytes:
        """What of these bytes belongs to the body.

        Raises:
            Malformed: they are not what was announced.
        """
        if self.left is not None:
            if len(data) > self.left:
                raise Malformed("something follows its end")
            self.left -= len(data)
            self.whole = not self.left
        return data

    def closed(self) -> bool:
        """Whether it is whole, now that no more bytes come."""
        return self.whole or self.left is None


class Chunks(Body):
    """In pieces, each of which says how long it is."""

    def __init__(self) -> None:
        super().__init__(0)
        self.whole = False
        self._held = b""  # of a line that is not whole
        self._after = False  # a chunk: its end of line comes first
        self._last = False  # the last chunk has come: trailers, which nobody reads, may follow

    def feed(self, data: bytes) -> bytes:
        if self._held:
            data, self._held = self._held + data, b""
        found: list[bytes] = []
        at, end = self._whole_chunks(data, found), len(data)
        while at < end and not self.whole:
            if self.left:
                piece = data[at : at + self.left]
                found.append(piece)
                at += len(piece)
                self.left -= len(piece)
                continue
            line_end = data.find(b"\r\n", at)
            if line_end < 0:
                break
            self._line(data[at:line_end])
            at = line_end + 2
            if not self._after and not self._last:
                at = self._whole_chunks(data, found, at)
        self._keep(data[at:])
        return found[0] if len(found) == 1 else b"".join(found)

    def _whole_chunks(self, data: bytes, found: list[bytes], at: int = 0) -> int:
        """Where the chunks end that are here whole, as nearly all are: the way that is fast."""
        if self.left or self._after or self._last:
            return at
        while (begin := data.find(b"\r\n", at) + 2) > 1:
            size = _SIZES.get(data[at : begin - 2])
            if not size or data[begin + size : begin + size + 2] != b"\r\n":
                break
            found.append(data[begin : begin + size])
            at = begin + size + 2
        return at

    def _keep(self, rest: bytes) -> None:
        if rest and self.whole:
            raise Malformed("something follows its end")
        if len(rest) > LARGEST_LINE:
            raise Malformed("a line between its chunks does not end")
        self._held = rest

    def closed(self) -> bool:
        return self.whole

    def _line(self, line: bytes) -> None:
        if self._after:
            if line:
                raise Malformed("a chunk is longer than it said")
            self._after = False
        elif self._last:
            self.whole = not line
        else:
            size = line if line.isalnum() else line.partition(b";")[0].rstrip(b" \t")
            try:
                self.left = int(size, 16) if size.isalnum() and len(size) <= 12 else -1
            except ValueError:
                self.left = -1
            if self.left < 0 or b"x" in size.lower():
                raise Malformed("a chunk does not say how long it is")
            self._after, self._last = self.left > 0, not self.left


def body_of(head: Head) -> Body:
    """Raises:
    Malformed: the head does not say how long it is in a way that can be read.
    """
    length = head.length
    return Chunks() if length is None and head.chunked else Body(length)
