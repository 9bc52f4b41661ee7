"""What an uncaught error shows."""

from __future__ import annotations

from traceback import format_exception_only

from retinue.core.errors import NotFound, StewardUnavailable


def test_an_uncaught_error_shows_its_code_and_hint() -> None:
    shown = format_exception_only(StewardUnavailable("it is held", code="root_held", hint="end it"))
    assert [line.rpartition(".")[2] for line in shown] == [
        "StewardUnavailable: it is held\n",
        "[root_held] end it\n",
    ]
    *_, last = format_exception_only(NotFound("no such thing"))
    assert last == f"[not_found] {NotFound.default_hint}\n"
