"""Where children run: behind a boundary of their own, within their parent's, behind a launcher."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import IsolationUnavailable
from support.roots import Row, python, sh, until
from support.scenes import CONFIG, USERS, Scene, staged
from support.traces import processes_that_mention

INHERITED = "    subagent_runtime_mode: inherited\n"
FALLBACK = "    subagent_runtime_fallback_mode: inherited\n"
EXECUTING = ["/bin/sh", "-c", 'exec "$@"', "launcher"]
WAITING = ["/bin/sh", "-c", '"$@"; exit $?', "launcher"]
BARE = ["env", "-i"]
# A place where the kernel gives nobody a PID namespace.
NOWHERE = 'echo 0 > /proc/sys/user/max_pid_namespaces; exec "$@"'
WITHOUT = ["unshare", "--user", "--map-root-user", "sh", "-c", NOWHERE, "sh"]
CONTAINED = Path("/.dockerenv").exists() or Path("/run/.containerenv").exists()


def prefix(words: list[str], more: str = "") -> str:
    return f"    subagent_host_launch_prefix: {json.dumps(words)}\n{more}"


@pytest.fixture(scope="module")
def here() -> Iterator[Scene]:
    """A steward that can isolate."""
    with staged(USERS[0]) as scene:
        assert json.loads(scene.start())["ready"]
        yield scene


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Scene]:
    """A steward that cannot."""
    with staged(USERS[0]) as scene:
        assert json.loads(scene.start(wrapper=WITHOUT))["ready"]
        yield scene


def boundary(scene: Scene, task: str, name: str = "subagent-1") -> Row:
    """What the contract says is in force."""
    shown = scene.root.call("subagent.show", task=task, subagent=name)
    found: Row = shown["contract"]["boundary"]
    return found


# -- isolated, inherited


@pytest.mark.requirement("R151", "R263", "R261")
def test_isolated_is_the_default_and_hides_the_machine(here: Scene) -> None:
    task = here.task()
    (result,) = here.root.run(task, sh(f"cat {here.canary}/canary.txt; uname -n; pwd"))
    assert result["answer"].split() == ["retinue", result["workspace"]]
    assert boundary(here, task)["mode"] == "isolated"
    assert "warning" not in result


@pytest.mark.requirement("R264", "R261", "R262")
def test_inherited_shows_what_the_steward_sees_in_a_workspace_of_its_own(here: Scene) -> None:
    task = here.task(INHERITED)
    script = f"cat {here.canary}/canary.txt; echo; uname -n; id -u; pwd"
    one, other = here.root.run(task, sh(script), sh(script))
    secret, name, uid, folder = one["answer"].split()
    assert (secret, name) == (here.secrets["file"], os.uname().nodename)
    assert (int(uid), folder) == (here.who.uid, one["workspace"])
    assert one["workspace"] != other["workspace"]
    assert boundary(here, task)["mode"] == "inherited"
    assert "warning" not in one


def test_an_inherited_child_has_the_rights_of_its_steward(here: Scene) -> None:
    """What the pages on isolation say is not prevented; only the processes are its own."""
    script = (
        f"head -c 6 {here.root.path}/retinue.db; echo; echo made > {here.project}/src/made; "
        f"env | grep -c SECRET_KEY; ls /proc | grep -cx {here.root.pid}; id -u"
    )
    brief = sh(script, context_paths=["./src"])
    (result,) = here.root.run(here.task(INHERITED), brief, cwd=str(here.project))
    database, keys, processes, uid = result["answer"].split()
    assert (database, keys, processes, int(uid)) == ("SQLite", "0", "0", here.who.uid)
    assert (here.project / "src" / "made").read_text() == "made\n"
    assert (here.project / "src" / "made").stat().st_uid == here.who.uid


# -- isolation that is not to be had


@pytest.mark.requirement("R268", "R273")
def test_without_isolation_nothing_is_spawned_and_both_ways_out_are_named(elsewhere: Scene) -> None:
    root, task = elsewhere.root, elsewhere.task()
    before = root.state()
    brief = sh("touch ran")
    refused = root.refusal("subagent.spawn", task=task, tasks=[brief, brief])
    assert isinstance(refused, IsolationUnavailable)
    assert refused.code == "isolation_unavailable"
    assert "subagent_host_launch_prefix" in refused.hint
    assert "subagent_runtime_fallback_mode: inherited" in refused.hint
    assert root.state() == before


@pytest.mark.requirement("R268")
def test_the_command_line_ends_with_code_7(elsewhere: Scene) -> None:
    task = elsewhere.task()
    words = ["--json", "--root", str(elsewhere.root.path), "subagent", "spawn", task, "--", "true"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "retinue", *words],
        env={
            "PYTHONPATH": elsewhere.who.path,
            "PATH": os.defpath,
            "HOME": str(elsewhere.home),
        },
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 7
    said = json.loads(done.stdout)["error"]
    assert said["code"] == "isolation_unavailable"
    assert "subagent_runtime_fallback_mode" in said["hint"]


@pytest.mark.requirement("R265", "R269", "R273")
def test_a_fallback_warns_in_every_result(elsewhere: Scene) -> None:
    root, task = elsewhere.root, elsewhere.task(FALLBACK)
    briefs = [sh("echo done"), sh("exit 3"), sh("sleep 60", timeout_seconds=0.3), sh("exit 4")]
    briefs[3]["max_retries"] = 1
    (name,) = root.spawn(task, sh("sleep 60"))
    results = root.run(task, *briefs)
    results.append(root.call("subagent.cancel", task=task, subagent=name)["result"])
    statuses = [each["status"] for each in results]
    assert statuses == ["completed", "error", "timeout", "error", "cancelled"]
    assert {each["warning"].partition(":")[0] for each in results} == {"not isolated"}
    assert boundary(elsewhere, task)["mode"] == "inherited"
    stored = json.loads((root.folder(task, name) / "result.json").read_text())
    assert stored["warning"] == results[-1]["warning"]


@pytest.mark.requirement("R264", "R273")
def test_inherited_by_choice_works_there_without_a_warning(elsewhere: Scene) -> None:
    (result,) = elsewhere.root.run(elsewhere.task(INHERITED), sh("echo done"))
    assert (result["status"], result.get("warning")) == ("completed", None)


@pytest.mark.requirement("R266")
@pytest.mark.parametrize(("program", "lenient"), [("codex", CONTAINED), ("claude", False)])
def test_codex_in_a_container_inherits_and_others_are_refused(
    elsewhere: Scene, program: str, lenient: bool
) -> None:
    agents = f"agents: [{{id: lead, backend: {{type: command, argv: [{program}, exec]}}}}]\n"
    created = elsewhere.root.call(
        "task.create", title="t", config_text=CONFIG.format(limit=3) + agents
    )
    task = str(created["task_id"])
    if lenient:
        (result,) = elsewhere.root.run(task, sh("echo done"))
        assert result["warning"].startswith("not isolated: ")
    else:
        refused = elsewhere.root.refusal("subagent.spawn", task=task, tasks=[sh("echo done")])
        assert refused.code == "isolation_unavailable"


@pytest.mark.requirement("R273")
def test_doctor_reports_missing_isolation(elsewhere: Scene) -> None:
    report = elsewhere.root.call("doctor")
    (check,) = [each for each in report["checks"] if each["name"] == "isolation"]
    assert (report["ok"], check["ok"]) == (False, False)
    assert check["detail"] == report["isolation"]["reason"]
    assert "subagent_runtime_fallback_mode" in check["hint"]
    assert report["isolation"]["files"] == report["isolation"]["network"] == "none"


def test_doctor_reports_the_isolation_that_a_child_saw(here: Scene) -> None:
    report = here.root.call("doctor")
    found = report["isolation"]
    assert (found["available"], found["reason"]) == (True, None)
    assert found["processes"] == "pid-namespace"
    assert found["files"].startswith("mount namespace, Landlock ABI ")
    assert found["network"] == "network namespace with lo"
    assert found["system_calls"] == "seccomp filter, no new privileges"
    assert (found["capabilities"], found["network_default"]) == ("none", "models")
    assert found["limits"].startswith(("for each process only; no cgroup: ", "for each process, "))
    whose = "of its own" if here.who.uid == 0 else "the steward's own"
    assert found["user"].startswith("uid ")
    assert found["user"].endswith(whose)


# -- behind a launcher


@pytest.mark.requirement("R267", "R262")
@pytest.mark.parametrize("more", ["", INHERITED], ids=["isolated", "inherited"])
@pytest.mark.parametrize("words", [BARE, EXECUTING, WAITING], ids=["bare", "executing", "waiting"])
def test_a_command_runs_behind_its_launcher(here: Scene, words: list[str], more: str) -> None:
    task = here.task(prefix(words, more))
    good, bad, named = here.root.run(
        task, sh("uname -n; cat; echo $RETINUE_SUBAGENT_ID"), sh("exit 5"), sh("kill -SEGV $$")
    )
    inside = "retinue" if not more else os.uname().nodename
    assert good["answer"].split() == [inside, "subagent-1"]
    assert bad["error"] == "exited with code 5"
    assert named["error"] == "killed by SIGSEGV"
    assert boundary(here, task)["launch_prefix"] == words


@pytest.mark.requirement("R267")
def test_the_launcher_precedes_the_program_that_leads_to_the_command(here: Scene) -> None:
    record = here.place / f"record-{time.monotonic_ns()}"
    words = ["/bin/sh", "-c", f'echo "$@" > {record}; exec "$@"', "launcher"]
    here.root.run(here.task(prefix(words)), sh("echo done"))
    interpreter, *program = record.read_text().split()
    assert os.access(interpreter, os.X_OK)
    assert "serve_one()" in program


@pytest.mark.parametrize("more", ["", INHERITED], ids=["isolated", "inherited"])
@pytest.mark.parametrize("words", [EXECUTING, WAITING], ids=["executing", "waiting"])
@pytest.mark.parametrize("way", ["cancel", "kill", "deadline", "adopted"])
def test_its_end_reaches_through_the_launcher(
    here: Scene, words: list[str], more: str, way: str
) -> None:
    root, task = here.root, here.task(prefix(words, more))
    marker = f"86395.{os.getpid()}{time.monotonic_ns()}"
    tree = f"( setsid sleep {marker} & ); trap 'exit 7' INT; touch up; sleep {marker} & wait"
    limit = 0.8 if way == "deadline" else 30
    (name,) = root.spawn(task, sh(tree, timeout_seconds=limit))
    until((root.folder(task, name) / "workspace" / "up").exists)
    if way == "adopted":
        root.kill()
        assert json.loads(here.start())["ready"]
    if way == "deadline":
        until(lambda: root.rows(task)[name]["state"] == "closed")
        result = root.call("subagent.result", task=task, subagent=name)
        assert result["error"] == "reached its time limit"
    else:
        terms = {"kill": True} if way == "kill" else {}
        result = root.call("subagent.cancel", task=task, subagent=name, **terms)["result"]
        assert result["status"] == "cancelled"
    # Outside of a PID namespace, killed processes may end a moment after their init.
    until(lambda: not processes_that_mention(marker))
    # What a shell starts in the background does not hear the first of them.
    signals = {"kill": ["SIGKILL"], "deadline": None}.get(way, ["SIGINT", "SIGTERM"])
    ends = [each for each in root.events(task, name) if each["type"] == "agent.cancelled"]
    assert [each["payload"]["signals"] for each in ends] == ([] if signals is None else [signals])


@pytest.mark.requirement("R267", "R268")
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["/bin/false"], "started no child"),
        (["/bin/echo"], "started no child"),
        (WITHOUT, "subagent_host_launch_prefix"),
    ],
    ids=["fails", "answers something else", "leads nowhere"],
)
def test_a_launcher_that_leads_nowhere_is_named_with_its_setting(
    here: Scene, words: list[str], why: str
) -> None:
    before = len(processes_that_mention("forkserver.alone"))
    task = here.task(prefix(words))
    (result,) = here.root.run(task, sh("touch ran"))
    assert result["status"] == "error"
    assert why in result["error"]
    assert "subagent_host_launch_prefix" in result["error"]
    assert not Path(result["workspace"], "ran").exists()
    assert len(processes_that_mention("forkserver.alone")) == before


@pytest.mark.requirement("R268", "R273")
@pytest.mark.parametrize("name", ["/nonexistent/launcher", "no-such-launcher", "/etc/passwd"])
def test_a_missing_launcher_is_not_isolation(here: Scene, name: str) -> None:
    task = here.task(prefix([name, "x"]))
    before = here.root.state()
    refused = here.root.refusal("subagent.spawn", task=task, tasks=[sh("touch ran")])
    assert isinstance(refused, IsolationUnavailable) and name in refused.message
    assert "subagent_host_launch_prefix" in refused.hint
    assert "subagent_runtime_fallback_mode: inherited" in refused.hint
    assert here.root.state() == before


@pytest.mark.requirement("R265", "R269")
def test_without_its_launcher_a_child_falls_back_where_that_is_allowed(here: Scene) -> None:
    task = here.task(prefix(["/nonexistent/launcher"], FALLBACK))
    (result,) = here.root.run(task, sh("uname -n"))
    assert result["answer"].strip() == os.uname().nodename
    assert result["warning"].startswith("not isolated: the launcher '/nonexistent/launcher'")
    found = boundary(here, task)
    assert (found["mode"], found["launch_prefix"]) == ("inherited", [])


@pytest.mark.requirement("R264")
def test_behind_a_launcher_without_namespaces_an_inherited_child_runs(here: Scene) -> None:
    task = here.task(prefix(WITHOUT, INHERITED))
    marker = f"86394.{os.getpid()}{time.monotonic_ns()}"
    (result,) = here.root.run(task, sh(f"( setsid sleep {marker} & ); echo done"))
    assert result["answer"].strip() == "done"
    assert not processes_that_mention(marker)
    assert here.root.call("doctor")["isolation"]["processes"] == "pid-namespace"


# -- the same in every mode

OUTCOMES = [
    sh("echo done; echo more >&2"),
    sh("echo half; exit 3"),
    sh("true"),
    sh("sleep 60", timeout_seconds=0.4),
    sh('printf \'{"status":"blocked","questions":["why?"]}\' > "$RETINUE_FINAL"'),
    sh('printf kept > "$RETINUE_ANSWER"; sleep 60', timeout_seconds=1.0),
    python("import os; os.kill(os.getpid(), 9)"),
]


def told(scene: Scene, more: str) -> list[Any]:
    """Everything a parent is told of every outcome, without what differs from run to run."""
    task = scene.task(more)
    results = scene.root.run(task, *OUTCOMES)
    shown = []
    for result in results:
        name = result["subagent_id"]
        fixed = {key: result.get(key) for key in ("status", "success", "answer", "error")}
        types = scene.root.types(task, name)
        files = sorted(path.name for path in scene.root.folder(task, name).iterdir())
        shown.append((sorted(result), fixed, types, files, scene.root.rows(task)[name]["status"]))
    scene.root.sound()
    return shown


@pytest.mark.requirement("R270")
def test_a_parent_gets_the_same_result_in_every_mode(here: Scene) -> None:
    isolated = told(here, "")
    assert told(here, INHERITED) == isolated
    assert told(here, prefix(EXECUTING)) == isolated
    assert told(here, prefix(WAITING, INHERITED)) == isolated
