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

# path::qualified name -> reason; what is imported inside a function, beside the command line's
LATE_IMPORTS: dict[str, str] = {
    **dict.fromkeys(
        [
            "src/retinue/wire/brief.py::parse_briefs",
            "src/retinue/wire/config.py::parse_config",
            "src/retinue/wire/config.py::parse_task_config",
            "src/retinue/wire/plan.py::kept_plan",
            "src/retinue/wire/plan.py::parse_plan",
            "src/retinue/wire/plan.py::plan_from_json",
            "src/retinue/wire/profile.py::parse_profile",
            "src/retinue/wire/yaml.py::load_yaml",
        ],
        "forms take longer to make than all else that a steward is not ready without",
    ),
    "src/retinue/gateway/entrance.py::Entrance.survey": "the gateway is open when it is asked",
    "src/retinue/upkeep.py::install_model": "the command line alone asks for it",
    "src/retinue/upkeep.py::rebuild_root": "the command line alone asks for it",
}

# path::qualified name -> reason; the places where every error is caught: the attempt's boundary,
# the mains of a child, the two doors.
BROAD_EXCEPTS: dict[str, str] = {
    "src/retinue/supervisor/supervisor.py::Supervisor._live": "the attempt: it has an end",
    "src/retinue/child/attempt.py::Attempt.run": "the child's main: it ends with a record",
    "src/retinue/child/command.py::_worked": "a team's main: its end says what went wrong",
    "src/retinue/steward/connection.py::Connection._answer": "the door: a verb is answered",
    "src/retinue/doors/cli/run.py::run": "the door: one line, no traceback",
}
BROAD_EXCEPTS_AT_MOST = 5

# path::qualified name -> reason; where the errors of what is under way side by side are values, so
# that all of it is over before one of them is raised.
GATHERED_ERRORS: dict[str, str] = {
    "src/retinue/executors/team.py::_ended": "a part that breaks says so where it ends",
    "src/retinue/service/spawning.py::Spawning._abandon": "raised, but for ends that came before",
    "src/retinue/service/tasks.py::TaskVerbs.cancel": "raised, but for ends that came before",
    "src/retinue/workspaces/git.py::both": "raised, the first of them",
}
