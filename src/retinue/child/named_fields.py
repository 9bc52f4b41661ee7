"""Records with named fields, without `dataclasses`.

Each clone maps all memory of the fork server, and unmaps it when it exits. `dataclasses` and
`typing` would be a quarter of that memory.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it as true

if TYPE_CHECKING:
    from typing import dataclass_transform
else:

    def dataclass_transform(**_):
        return lambda decorated: decorated


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Record:
    """A frozen dataclass for type checkers; a missing field has its class attribute as default."""

    def __init__(self, **given: object) -> None:
        vars(self).update(given)
