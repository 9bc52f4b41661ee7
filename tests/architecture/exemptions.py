"""Named exceptions to the import and error-handling rules, each with its reason.

An entry that is no longer needed fails its test until it is removed.
"""

from __future__ import annotations

# path::qualified name -> reason; what is imported inside a function, beside the command line's
LATE_IMPORTS: dict[str, str] = {
    **dict.fromkeys(
        [
            "src/retinue/formats/contract_json.py::parse_briefs",
            "src/retinue/formats/config_document.py::parse_config",
            "src/retinue/formats/config_document.py::parse_task_config",
            "src/retinue/formats/plan_document.py::load_stored_plan",
            "src/retinue/formats/plan_document.py::parse_plan",
            "src/retinue/formats/plan_document.py::plan_from_json",
            "src/retinue/formats/profile_document.py::parse_profile",
            "src/retinue/formats/yaml_document.py::load_yaml",
        ],
        "forms take longer to make than all else that a steward is not ready without",
    ),
    "src/retinue/gateway/gateway_service.py::ModelGateway.probe_providers": "it is open by then",
    "src/retinue/gateway/gateway_service.py::ModelGateway.find_local_servers": "it is open by then",
    "src/retinue/trust.py::read_birth_time_ns": "most commands find a steward, and never ask it",
    "src/retinue/steward/webhooks.py::post": "most roots have no webhooks",
    "src/retinue/steward/maintenance.py::install_model": "the command line alone asks for it",
    "src/retinue/steward/maintenance.py::rebuild_root": "the command line alone asks for it",
}

# path::qualified name -> reason; the places where every error is caught: the attempt's boundary,
# the mains of a child, the two doors.
BROAD_EXCEPTS: dict[str, str] = {
    "src/retinue/steward/scheduler.py::Supervisor._run_subagent": "the attempt: it has an end",
    "src/retinue/child/attempt_runner.py::AttemptRunner.run": "a child's main: its end is recorded",
    "src/retinue/child/execute.py::_run_team": "a team's main: its end says what went wrong",
    "src/retinue/steward/server.py::ClientConnection._answer": "the door: a verb is answered",
    "src/retinue/cluster/node_attempt.py::NodeAttempt.run": "the attempt on a node: it has an end",
    "src/retinue/cli/entry.py::run": "the door: one line, no traceback",
}

# path::qualified name -> reason; where the errors of what is under way side by side are values, so
# that all of it is over before one of them is raised.
GATHERED_ERRORS: dict[str, str] = {
    "src/retinue/team/team_main.py::_wait_for_tasks": "a task that breaks says so where it ends",
    "src/retinue/steward/scheduler.py::Supervisor.cancel_all": "raised, but for earlier ends",
    "src/retinue/workspaces/git/git_command.py::gather_both": "raised, the first of them",
}

# path -> reason; modules under 60 lines that one module of the same folder imports
SMALL_MODULES: dict[str, str] = {
    "src/retinue/formats/schemas/profile_schema.py": "imported late, because pydantic is slow",
}
