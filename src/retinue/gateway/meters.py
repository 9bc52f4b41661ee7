"""What a model's answer says of its own cost, read as the bytes pass.

Nothing here waits or writes: bytes are fed in whatever pieces they came, and a
reading can be taken at any moment, also of an answer that was cut.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from retinue.gateway import wires
from retinue.wire.vendors import readings
from retinue.wire.vendors.readings import Reading

LARGEST_PIECE = 32 * 1024 * 1024  # of an answer that is read; what is longer only passes
LARGEST_SILENCE = 1024 * 1024  # of what is put off

Fold = Callable[[Reading, dict[str, Any]], Reading]
FOLDS: dict[str, Fold] = {
    wires.CHAT: readings.chat,
    wires.RESPONSES: readings.responses,
    wires.MESSAGES: readings.messages,
    wires.GENERATE: readings.generate,
}


class Meter:
    """Reads one answer. Of a stream, only events that speak of its cost are taken apart at once;
    the others are kept as they are, and looked at when nothing else tells what was written.
    """

    def __init__(
        self,
        kind: str,
        *,
        content_type: str = "",
        content_encoding: str = "",
        overhears: bool = False,
    ) -> None:
        self.reading = Reading()
        self.called: set[str] = set()  # tools, where that is listened for
        self._overhears = overhears and kind == wires.MESSAGES
        self._fold = FOLDS.get(kind)
        self._words = _WORDS.get(kind, ())
        self._streams = "event-stream" in content_type
        self._inflate = _inflater(content_encoding)
        self._held = bytearray()  # of an event, or of the whole, that is not complete
        self._silent: list[bytes] = []  # lines that say nothing of the cost
        self._silent_size = 0
        self._skipping = self._fold is None

    def feed(self, data: bytes) -> None:
        """The bytes have been read as far as they make sense; never raises."""
        if self._skipping:
            return
        if self._inflate is not None:
            try:
                data = self._inflate(data)
            except zlib.error:
                self._skipping = True
                return
        if self._streams and not self._held and data.endswith(b"\n"):
            self._read_lines(data)
            return
        self._held += data
        if self._streams and (end := max(self._held.rfind(b"\n"), self._held.rfind(b"\r"))) >= 0:
            self._read_lines(bytes(self._held[: end + 1]))
            del self._held[: end + 1]
        if len(self._held) > LARGEST_PIECE:
            self._skipping = True
            self._held.clear()

    def so_far(self) -> Reading:
        """All that can be told now, while more may come."""
        if not self.reading.whole:
            self._read_silent()
        return self.reading

    def finish(self) -> Reading:
        """All that can be told, now that no more bytes come."""
        if not self._skipping:
            rest, self._held = bytes(self._held), bytearray()
            self._overhear(rest)
            for document in _data(rest) if self._streams else _documents(rest):
                self._take(document)
        return self.so_far()

    def _take(self, document: dict[str, Any]) -> None:
        if self._fold is not None:
            try:
                self.reading = self._fold(self.reading, document)
            except (AttributeError, TypeError, ValueError, KeyError):
                return  # not the shape that this vendor documents

    def _read_lines(self, lines: bytes) -> None:
        """Whole lines have been read, or put off: most of them need never be."""
        self._overhear(lines)
        if not _speaks(lines):
            self._put_off(lines)
            return
        for line in lines.splitlines():
            if _speaks(line):
                for document in _data(line):
                    self._take(document)
            else:
                self._put_off(line)

    def _overhear(self, lines: bytes) -> None:
        if not self._overhears or b'"tool_use"' not in lines:
            return
        for line in lines.splitlines() if self._streams else [lines]:
            for document in _data(line) if self._streams else _documents(line):
                self.called |= readings.called(document)

    def _put_off(self, lines: bytes) -> None:
        self._silent.append(lines)
        self._silent_size += len(lines)
        if self._silent_size > LARGEST_SILENCE:
            self._read_silent()

    def _read_silent(self) -> None:
        """What was put off is needed: the letters that passed must be counted."""
        lines, self._silent, self._silent_size = b"\n".join(self._silent), [], 0
        at = -1 if self.reading.model else lines.find(b'"model')
        if at >= 0 and (model := _MODEL.search(lines, at)):
            self.reading = replace(self.reading, model=model[1].decode("utf-8", "replace"))
        # A name that is nowhere is missed faster than a pattern that begins with it.
        words = [said for name, said in self._words if name in lines]
        found = [text for said in words for text in said.findall(lines)]
        said = b"".join(found).decode("utf-8", "replace")
        letters = len(_ESCAPED.sub("?", said) if "\\" in said else said)
        self.reading = replace(self.reading, characters=self.reading.characters + letters)


def _said(name: bytes) -> tuple[bytes, re.Pattern[bytes]]:
    """A name, and what finds the text that follows it."""
    return name, re.compile(name + rb'"\s*:\s*"([^"\\]*(?:\\.[^"\\]*)*)"')


# How vendors call the words in the pieces of a stream; also as the end of a longer name.
_WORDS = {
    wires.CHAT: (_said(b"content"), _said(b"arguments"), _said(b"text")),
    wires.RESPONSES: (_said(b"delta"),),
    wires.MESSAGES: (_said(b"text"), _said(b"thinking"), _said(b"partial_json")),
    wires.GENERATE: (_said(b"text"),),
}
_MODEL = re.compile(rb'"model(?:Version)?"\s*:\s*"([^"\\]{1,200})"')
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")


def _speaks(lines: bytes) -> bool:
    """Whether there is a word of the cost in it, other than that there is none yet.

    It is asked for every piece that passes: words that end in a rare letter are found faster.
    """
    if b'"timing' in lines:
        return True
    if b'"usag' not in lines:
        return False
    none_yet = lines.count(b'"usage":null') + lines.count(b'"usage": null')
    return lines.count(b'"usage') != none_yet


def _data(line: bytes) -> Iterator[dict[str, Any]]:
    if line.startswith(b"data:"):
        yield from _documents(line[5:])


def _documents(data: bytes) -> Iterator[dict[str, Any]]:
    """Every whole object of a text: alone, or one after the other in a list that may be cut."""
    decoder, text, at = json.JSONDecoder(), data.decode("utf-8", "replace"), 0
    while at < len(text):
        if text[at] in " \t\r\n[],":
            at += 1
            continue
        try:
            document, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return
        if isinstance(document, dict):
            yield document


def _inflater(encoding: str) -> Callable[[bytes], bytes] | None:
    bits = {"gzip": 31, "x-gzip": 31, "deflate": zlib.MAX_WBITS}.get(encoding.lower())
    if bits is None:
        return None
    inflater = zlib.decompressobj(wbits=bits)

    def inflate(data: bytes) -> bytes:
        found = inflater.decompress(data, LARGEST_PIECE)
        if inflater.unconsumed_tail:
            raise zlib.error("more than is read")
        return found

    return inflate
