"""Static files of the web page, read once and served from memory by name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.responses import HTMLResponse, Response

TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True)
class StaticFile:
    body: bytes
    kind: str
    tag: str


class StaticFiles:
    def __init__(self) -> None:
        top = files("retinue.web").joinpath("static")
        self._files = {name: _read_file(name, data) for name, data in _walk(top)}
        self.shell = _read_text(top, "shell.html")
        self._welcome = _read_text(top, "welcome.html")
        self.missing = _read_text(top, "missing.html")
        self._locked = _read_text(top, "locked.html")

    def render_welcome(self, csrf_token: str) -> str:
        """Return the page behind the link, which stores the CSRF token for the other pages."""
        return self._welcome.replace("{csrf}", csrf_token)

    def render_locked(self, *, used: bool = False, token: bool = False) -> str:
        """Return the page for a browser without a session."""
        why = "This link was used before." if used else "This browser has no session here."
        return self._locked.replace("{why}", why).replace("{token}", "yes" if token else "no")

    def answer(self, name: str, headers: Mapping[str, str]) -> Response:
        # A lookup in a table of known names: no request can reach another file.
        file = self._files.get(name)
        if file is None:
            return HTMLResponse(self.missing, status_code=404)
        kept = {"etag": file.tag, "cache-control": "no-cache"}
        if headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=kept)
        return Response(file.body, headers={**kept, "content-type": file.kind})


def _walk(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(tuple(TYPES)):
            yield prefix + entry.name, entry.read_bytes()


def _read_file(name: str, data: bytes) -> StaticFile:
    tag = f'"{hashlib.sha256(data).hexdigest()[:20]}"'
    return StaticFile(data, TYPES[name[name.rindex(".") :]], tag)


def _read_text(top: Traversable, name: str) -> str:
    return top.joinpath(name).read_text(encoding="utf-8")
