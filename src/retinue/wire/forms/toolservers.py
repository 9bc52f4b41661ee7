"""MCP servers as people configure them for a backend."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from retinue.domain.ids import is_id
from retinue.domain.policy import milliseconds
from retinue.domain.toolserver import BETWEEN, LONGEST_SERVER, ToolServer, fits_header
from retinue.wire.forms.refusal import disagreement, expected
from retinue.wire.forms.values import Address, Duration, Variable, Word

_HEADER = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


def _server_name(value: object) -> object:
    fits = isinstance(value, str) and is_id(value) and len(value) <= LONGEST_SERVER
    if not fits or BETWEEN in str(value) or str(value).endswith("_"):
        raise expected(
            f"a name of at most {LONGEST_SERVER} letters, digits, '-' or '_', no '__', no '_' last"
        )
    return value


def _text(value: object) -> object:
    if not isinstance(value, str) or "\0" in value:
        raise expected("a text")
    return value


def _header(value: object) -> object:
    if not isinstance(value, str) or not value or not _HEADER.issuperset(value):
        raise expected("the name of a header")
    return value


def _header_value(value: object) -> object:
    if not isinstance(value, str) or not fits_header(value):
        raise expected("printable ASCII text on one line")
    return value


_Text = Annotated[str, BeforeValidator(_text)]
_Header = Annotated[str, BeforeValidator(_header)]
_HeaderValue = Annotated[str, BeforeValidator(_header_value)]


class McpServer(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Annotated[str, BeforeValidator(_server_name)]
    type: Literal["stdio", "streamable-http"] = "stdio"
    command: Word | None = None
    args: list[_Text] = []
    env: dict[Variable, _Text] = {}
    paths: list[Word] = []
    url: Address | None = None
    headers: dict[_Header, _HeaderValue] = {}
    allowed_tools: list[Word] | None = None
    exclude_tools: list[Word] = []
    timeout_seconds: Duration = 60.0

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> McpServer:
        runs = self.type == "stdio"
        for key, needed in (("command", runs), ("url", not runs)):
            if (getattr(self, key) is not None) != needed:
                owner = "stdio" if key == "command" else "streamable-http"
                raise disagreement(key, f"belongs to type {owner}, which cannot do without it")
        for key in ("headers",) if runs else ("args", "env", "paths"):
            if getattr(self, key):
                raise disagreement(key, f"has no meaning for type {self.type}")
        return self

    def server(self) -> ToolServer:
        """The same, as the domain needs it."""
        return ToolServer(
            name=self.name,
            argv=(self.command, *self.args) if self.command else (),
            environment=tuple(self.env.items()),
            paths=tuple(self.paths),
            url=self.url or "",
            headers=tuple(self.headers.items()),
            allowed_tools=None if self.allowed_tools is None else tuple(self.allowed_tools),
            exclude_tools=tuple(self.exclude_tools),
            timeout_ms=milliseconds(self.timeout_seconds),
        )


def listed(value: object) -> object:
    """Servers in a list; as a mapping, each has its key for a name."""
    if not isinstance(value, dict):
        return [] if value is None else value
    return [
        {"name": name, **each} if isinstance(each, dict) and "name" not in each else each
        for name, each in value.items()
    ]


McpServers = Annotated[list[McpServer], BeforeValidator(listed)]
