"""What was imported lasts like `None` does: whoever is cloned can use it without copying it.

Python counts the references to every object, if it is only read, too, and each page on which a
clone changes a count is copied for it. Since 3.12 (PEP 683) there are objects that are not counted.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from itertools import chain
from types import CodeType, FunctionType, ModuleType

UNCOUNTED = 1 << 31  # what is no count begins here


def make_lasting() -> int:
    """Whatever there is now is not counted any more, nor ever freed; how many objects that are.

    0 where this interpreter counts all of them.
    """
    if sys.implementation.name != "cpython":
        return 0
    count_at = ctypes.c_uint32.from_address
    nones = count_at(id(None)).value
    if nones < UNCOUNTED:
        return 0
    places = _places()
    for place in places:
        count_at(place).value = nones
    return len(places)


def _places() -> set[int]:
    """Where those are that the garbage collector knows, that they refer to, and that code uses."""
    known = gc.get_objects()
    # A module may refer to what it has freed and keeps for later.
    referring = [one for one in known if type(one) is not ModuleType]
    found = set(map(id, chain(known, gc.get_referents(*referring))))
    codes = [one.__code__ for one in known if type(one) is FunctionType]
    while codes:
        constants = [one for code in codes for one in code.co_consts]
        found.update(map(id, chain(codes, constants)))
        codes = [one for one in constants if type(one) is CodeType]
    return found
