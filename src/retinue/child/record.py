"""Values with named fields, without the library that makes them.

Each clone of a fork server maps what the server has imported, and takes it apart at its end.
`dataclasses` and `typing` bring a quarter of all there would be.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as a checker reads it, it is true

if TYPE_CHECKING:
    from typing import dataclass_transform
else:

    def dataclass_transform(**_):
        return lambda decorated: decorated


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Record:
    """For a checker a frozen dataclass; a field that is not given is its class's own."""

    def __init__(self, **given: object) -> None:
        vars(self).update(given)
