"""Real coding agents of several vendors together: they vote, review and compete."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from clients.test_agent_interventions import first_process, processes_below
from clients.test_agent_subagents import CONFIG, SCHEMA, Voter, brief, create, root, shell
from support.agents import BINARIES
from support.conductor import FORMS, Conductor
from support.roots import Root
from support.upstream import serving

__all__ = ["root"]
EXAMPLE = Path(__file__).parents[2] / "examples" / "review"
TEAM = "agents:\n" + "".join(
    f"  - {{id: {name}, backend: {{type: {kind}}}}}\n"
    for name, kind in (("claude", "claude_code"), ("codex", "codex"), ("gemini", "gemini_cli"))
)
VERIFY = ["python3", "test_shop.py"]
RIGHT = """cat > shop.py <<'END'
def total(items):
    return sum(item["price"] * item["quantity"] for item in items)
END"""

pytestmark = pytest.mark.timeout(240)


class Speaker(Conductor):
    """A model whose last words depend on the request."""

    say: Callable[[str], str]

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        body = (await request.read()).decode()
        form = next((each for each in FORMS if each.matches(request.path)), None)
        text = self.say(body) if form is not None and request.method == "POST" else ""
        if not text or form is None:
            return await super().answer(request)
        document = json.loads(body)
        self.asked.append((request.path, document))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in form.says(text, document):
            await response.write(event)
        await response.write_eof()
        return response


def count_requests(model: Conductor) -> int:
    return len([path for path, _ in model.asked if "count" not in path])


def test_the_tokens_of_a_mixed_team_are_those_that_the_provider_counted(
    root: Root, record_property: Callable[[str, object], None]
) -> None:
    took: list[float] = []
    for _ in range(3):
        model = Voter([])
        with serving(model.answer) as model.port:
            text = TEAM + CONFIG.format(url=model.url).lstrip("\n")
            task = str(root.call("task.create", title="t", config_text=text)["task_id"])
            began = time.monotonic()
            (result,) = root.run(task, {"task": "go", "context_paths": [], "timeout_seconds": 90})
            took.append(time.monotonic() - began)
        assert result["status"] == "completed", result
        usage, requests = result["token_usage"], count_requests(model)
        assert usage["input_tokens"] == 10 * requests and usage["output_tokens"] == 5 * requests
    record_property("agent", "team of three")
    record_property("as a subagent", f"{statistics.median(took):.2f} s")
    record_property("requests", requests)
    record_property("tokens not counted", 0)  # asserted above


class CircleVoter(Voter):
    """Each member votes for the next, so that all have one vote."""

    def __init__(self) -> None:
        super().__init__([])
        self.chosen = set[int]()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        # Read here, so that nothing comes between the choice and the answer.
        votes = b"These are the present answers" in await request.read()
        after = {"messages": 2, "responses": 3}.get(request.path.rpartition("/")[2], 1)
        self.winner = f"subagent-1_agent_{after}"
        if votes:
            self.chosen.add(after)
        return await super().answer(request)


def test_of_equal_votes_the_first_member_wins(root: Root) -> None:
    model = CircleVoter()
    with serving(model.answer) as model.port:
        text = TEAM + CONFIG.format(url=model.url).lstrip("\n")
        task = str(root.call("task.create", title="t", config_text=text)["task_id"])
        (result,) = root.run(task, {"task": "go", "context_paths": [], "timeout_seconds": 90})
    assert result["status"] == "completed", result
    assert model.chosen == {1, 2, 3}
    assert result["agent"]["name"] == "claude", result


def test_a_team_goes_on_without_an_agent_that_is_not_installed(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("claude", "codex", "node"):
        (programs / name).symlink_to(BINARIES / name)
    usual = [each for each in os.environ["PATH"].split(":") if each != str(BINARIES)]
    monkeypatch.setenv("PATH", ":".join([str(programs), *usual]))
    assert shutil.which("gemini") is None
    model = Voter([])
    with serving(model.answer) as model.port:
        text = TEAM + CONFIG.format(url=model.url).lstrip("\n")
        task = str(root.call("task.create", title="t", config_text=text)["task_id"])
        (result,) = root.run(task, {"task": "go", "context_paths": [], "timeout_seconds": 90})
    assert result["status"] == "completed", result
    assert "takes no part: Gemini CLI is not installed" in result["warning"], result


class HeldVoter(Voter):
    """Never answers Gemini's request for a vote."""

    winner = "s_agent_2"

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        votes = b"These are the present answers" in await request.read()
        if votes and "enerateContent" in request.path:
            self.holding.set()
            await asyncio.Event().wait()
        return await super().answer(request)


def test_a_team_goes_on_without_an_agent_that_is_killed_while_it_votes(root: Root) -> None:
    model = HeldVoter([])
    with serving(model.answer) as model.port:
        text = TEAM + CONFIG.format(url=model.url).lstrip("\n")
        task = str(root.call("task.create", title="t", config_text=text)["task_id"])
        work = {"task": "go", "context_paths": [], "timeout_seconds": 90, "subagent_id": "s"}
        root.spawn(task, work)
        assert model.holding.wait(60)
        for each in processes_below(first_process(root, task))[1:]:
            if b"gemini" in Path(f"/proc/{each}/cmdline").read_bytes():
                os.kill(each, signal.SIGKILL)
        result = root.call("subagent.attend", task=task, subagent="s")
    assert result["status"] == "completed", result
    assert result["agent"]["name"] == "codex", result
    assert "s_agent_3 took no further part: " in result["warning"], result


@pytest.mark.parametrize("agent", ["claude", "codex", "gemini", "opencode"])
@pytest.mark.parametrize("wrong", [0, 1])
def test_an_answer_that_fits_its_schema_at_last_is_valid(
    root: Root, agent: str, wrong: int
) -> None:
    model = Speaker([])
    told = 0

    def say(body: str) -> str:
        nonlocal told
        if "say a number" not in body:
            return ""
        told += 1
        return "seven" if told <= wrong else '{"n": 7}'

    model.say = say
    with serving(model.answer) as model.port:
        task = create(root, model.url)
        (result,) = root.run(task, brief(agent, "say a number", answer_schema=SCHEMA))
    assert result["status"] == "completed", result
    assert result["structured_answer"] == {"n": 7}, result


@pytest.fixture
def shop(root: Root) -> Path:
    """The repository of the example, beside its plan."""
    project = root.path.parent
    subprocess.run([EXAMPLE / "make.sh"], cwd=project, check=True, capture_output=True)
    return project / "shop"


def review(root: Root, shop: Path, verdict: dict[str, Any]) -> Any:
    model = Speaker([shell("claude", RIGHT)])
    model.say = lambda body: json.dumps(verdict) if "strict reviewer" in body else ""
    with serving(model.answer) as model.port:
        started = root.call(
            "run.start",
            plan_text=(EXAMPLE / "plan.yaml").read_text(),
            plan_folder=str(shop.parent),
            cwd=str(shop.parent),
            config_text=CONFIG.format(url=model.url),
            by="user",
        )
        return root.call("run.wait", task=started["task_id"])


def show(shop: Path, branch: str, file: str) -> str:
    words = ["git", "-C", str(shop), "show", f"{branch}:{file}"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def test_a_change_of_claude_is_merged_after_codex_approved_it(root: Root, shop: Path) -> None:
    end = review(root, shop, {"approve": True, "reason": "small", "problems": []})
    assert end["outcome"] == "succeeded", end
    assert "quantity" in show(shop, end["branch"], "shop.py")


def test_a_change_of_claude_that_codex_rejects_is_not_merged(root: Root, shop: Path) -> None:
    end = review(root, shop, {"approve": False, "reason": "TOO-CLEVER", "problems": ["x"]})
    assert (end["outcome"], end["branch"]) == ("failed", None), end
    fix = next(each for each in end["results"] if each["subagent_id"] == "fix")
    assert "TOO-CLEVER" in json.dumps(fix), fix
    assert "quantity" in Path(fix["integration"]["patch"]).read_text()


def test_of_two_vendors_the_one_that_passes_is_merged(root: Root, shop: Path) -> None:
    # The tool of codex has another name than that of claude, so each gets its own words.
    class Both(Conductor):
        async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
            claude = request.path.endswith("/messages")
            self.script = [
                shell("claude", RIGHT) if claude else shell("codex", "echo 'x = 1' > shop.py")
            ]
            return await super().answer(request)

    model = Both([])
    with serving(model.answer) as model.port:
        started = root.call(
            "run.begin",
            prompt="Fix total() in shop.py",
            agents=["claude", "codex"],
            verify=VERIFY,
            cwd=str(shop),
            config_text=CONFIG.format(url=model.url),
            by="user",
        )
        end = root.call("run.wait", task=started["task_id"])
    assert end["outcome"] == "succeeded", end
    (choice,) = end["choices"].values()
    assert choice["passed"] == ["candidate-1"] and choice["winner"] == "candidate-1", choice
    assert choice["candidates"] == {"candidate-1": "claude", "candidate-2": "codex"}
    assert "quantity" in show(shop, end["branch"], "shop.py")
