"""What may break a rule of size or form, with the number it has reached and why.

Numbers only fall. An entry that is no longer needed fails its test until it is taken out.
"""

from __future__ import annotations

# path -> (lines, reason)
LONG_MODULES: dict[str, tuple[int, str]] = {}

# path::qualified name -> (lines, reason)
LONG_FUNCTIONS: dict[str, tuple[int, str]] = {
    "tests/unit/wire/test_result_wire.py::"
    "test_the_documented_mixed_results_come_out_as_documented": (49, "a document, word for word"),
}

# path::class -> (parameters, reason)
WIDE_CONSTRUCTORS: dict[str, tuple[int, str]] = {}

# path::class -> (public methods, reason)
WIDE_CLASSES: dict[str, tuple[int, str]] = {
    "src/retinue/api.py::Task": (11, "the verbs on one task, as people know them"),
    "src/retinue/ports.py::Records": (11, "one question each"),
    "src/retinue/store/records.py::SqliteRecords": (13, "one question each, three lines each"),
}

# path -> (lines, reason)
LONG_TEST_FILES: dict[str, tuple[int, str]] = {}

# path::qualified name -> reason; the places where every error is caught, four at most:
# the attempt's boundary, the child's main, the two doors.
BROAD_EXCEPTS: dict[str, str] = {
    "src/retinue/supervisor/supervisor.py::Supervisor._live": "the attempt: it has an end",
    "src/retinue/child/attempt.py::Attempt.run": "the child's main: it ends with a record",
    "src/retinue/child/command.py::_worked": "a team's main: its end says what went wrong",
    "src/retinue/steward/server.py::Connection._answer": "the steward's door: a verb is answered",
    "src/retinue/doors/cli/run.py::run": "the door: one line, no traceback",
}
BROAD_EXCEPTS_AT_MOST = 5
