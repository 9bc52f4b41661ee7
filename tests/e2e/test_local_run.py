"""Without any key: the model that runs here, from the command line to files on the disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from retinue.core.default_models import KEY_VARIABLES
from support.cli import Cli
from support.localmodel import own_models
from support.page import served
from support.teams import require_sound

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

BOUND_S = 240
THREE = """
agents:
  - {id: one, backend: {type: local}}
  - {id: two, backend: {type: local}}
  - {id: three, backend: {type: local}}
orchestrator:
  coordination: {subagent_default_timeout: 200}
"""


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    folder = tmp_path_factory.mktemp("local")
    (folder / "project").mkdir()
    with own_models(folder / "models", idle_seconds=30):
        cli = Cli(folder / "project")
        for variable in KEY_VARIABLES:
            cli.environment.pop(variable, None)
        yield cli
        cli.run("steward", "stop", "--cancel")


def shown(cli: Cli, *words: str) -> str:
    process = cli.start(*words)
    out, err = process.communicate(timeout=BOUND_S)
    assert process.returncode == 0, (out, err)
    return out


def test_a_brief_without_any_configuration_is_answered_by_the_local_model(cli: Cli) -> None:
    task = str(cli.json("task", "create", "--title", "A task")["task_id"])
    words = ("subagent", "spawn", task, "--wait", "--id", "rivers", "Write a note about rivers")
    out = shown(cli, *words)
    assert "completed" in out and "135 million parameters" in out
    result = cli.json("subagent", "result", task, "rivers")
    assert result["answer"].strip() and result["token_usage"]["output_tokens"] > 0
    assert Path(result["workspace"], "note.md").read_text().strip()


def test_three_of_them_answer_vote_and_present(cli: Cli) -> None:
    (cli.folder / "three.yaml").write_text(THREE)
    created = cli.json("task", "create", "--title", "Three", "--config", "three.yaml")
    words = ("subagent", "spawn", created["task_id"], "--id", "trio", "Write a note about hills")
    out = shown(cli, "--json", *words, "--wait")
    (result,) = json.loads(out)["results"]
    assert result["status"] == "completed" and result["answer"].strip(), result
    logs = cli.root / "tasks" / created["task_id"] / "agents" / "trio" / "full_logs"
    status = require_sound(json.loads((logs / "status.json").read_text()))
    assert sum(status.results.votes.values()) == 3 and status.results.winner in status.agents


@pytest.mark.requirement("R147")
def test_the_demonstration_delegates_to_two_that_make_files(cli: Cli) -> None:
    prompt = "Write a short note about rivers and one about mountains"
    out = shown(cli, "--json", "run", "--config", "@demo", prompt)
    end = json.loads(out)
    assert end["status"] == "completed" and end["answer"].strip(), end
    assert [each["status"] for each in end["results"]] == ["completed", "completed"]
    for each in end["results"]:
        assert Path(each["workspace"], "note.md").read_text().strip()
    assert "135 million parameters" in end["root"]["warning"]
    # The embedded model cannot judge: a rule puts the answer together from the parts' files.
    notes = [Path(each["workspace"], "note.md").read_text().strip() for each in end["results"]]
    assert end["answer_by"] == "rule" and all(note in end["answer"] for note in notes)
    with served(cli.root) as ui:  # the page says so, too
        ui.enter()
        overview = ui.get(f"/api/tasks/{end['task_id']}/overview").json
    assert (overview["answer"], overview["answer_by"]) == (end["answer"], "rule")
    assert [part["files"] for part in end["parts"]] == [["note.md"], ["note.md"]]
    assert [part["first_line"] for part in end["parts"]] == [
        note.splitlines()[0].strip()[:200] for note in notes
    ]


def test_a_run_on_the_local_model_says_what_was_delegated_and_what_to_do_next(cli: Cli) -> None:
    out = shown(cli, "run", "--config", "@demo", "Write a note about lakes and one about hills")
    assert out.count("  asked: ") == 2 and out.count("  files: note.md") == 2
    assert "put together from the parts by a rule" in out
    assert "see it all with: retinue ui" in out and "for real work: set a key" in out
