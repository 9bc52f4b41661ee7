"""What may break a rule of size or form, with the number it has reached and why.

Numbers only fall. An entry that is no longer needed fails its test until it is taken out.
"""

from __future__ import annotations

# path -> (lines, reason)
LONG_MODULES: dict[str, tuple[int, str]] = {}

# path::qualified name -> (lines, reason)
LONG_FUNCTIONS: dict[str, tuple[int, str]] = {}

# path::class -> (parameters, reason)
WIDE_CONSTRUCTORS: dict[str, tuple[int, str]] = {}

# path::class -> (public methods, reason)
WIDE_CLASSES: dict[str, tuple[int, str]] = {}

# path -> (lines, reason)
LONG_TEST_FILES: dict[str, tuple[int, str]] = {}

# path::qualified name -> reason; the places where every error is caught, three at most:
# the attempt's boundary, the child's main, the door.
BROAD_EXCEPTS: dict[str, str] = {}
BROAD_EXCEPTS_AT_MOST = 3
