"""The same refusal at each door: its hint can be followed where it is read."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e.test_mcp import give, refusal
from support.cli import Cli, cli
from support.mcp import BOUND_S, CONFIG, ENVIRONMENT, SPAWN, client, own, task

__all__ = ["cli", "own"]

WAITS = "until [ -e go ]; do sleep 0.01; done"
ONE = CONFIG.replace("concurrent: 5", "concurrent: 1")
NO_BACKGROUND = CONFIG + "    background_subagents: {enabled: false}\n"


def python(folder: Path, script: str) -> str:
    """Return what a program prints that is connected to the folder's root."""
    body = "".join(f"        {line}\n" for line in script.splitlines())
    program = (
        "import asyncio, retinue\nfrom retinue import Brief\nfrom pathlib import Path\n"
        f"async def main():\n    async with retinue.connect() as r:\n{body}"
        "asyncio.run(main())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_full_task_names_the_way_to_wait_that_each_door_has(own: Path, cli: Cli) -> None:
    (own / "config.yaml").write_text(ONE)

    async def scene() -> None:
        async with asyncio.timeout(BOUND_S), client(own) as connected:
            await give(connected, SPAWN, tasks=[task(WAITS, "a")], background=True)
            said = await refusal(connected, SPAWN, tasks=[task(WAITS, "b")], background=True)
            assert "limit_exceeded" in said and "cancel one" in said
            assert "--queue" not in said and "queue=True" not in said
            (own / "tasks/mcp/agents/a/workspace/go").touch()

    asyncio.run(scene())
    full = cli.task(ONE)
    cli.run("subagent", "spawn", full, "--", "sleep", "60")
    refused = cli.json("subagent", "spawn", full, "--", "sleep", "60", code=5)["error"]
    assert "--queue" in refused["hint"]
    said = python(
        cli.folder,
        f"task = await r.create_task(title='t', config={ONE!r})\n"
        "await task.spawn([Brief(argv=['sleep', '60'], id='a')])\n"
        "try: await task.spawn([Brief(argv=['true'])])\n"
        "except retinue.LimitExceeded as error: print(error.hint)\n"
        "await task.cancel('a', kill=True)",
    )
    assert "queue=True" in said and "--queue" not in said


def test_work_in_the_background_is_refused_with_what_each_door_does_instead(
    own: Path, cli: Cli
) -> None:
    (own / "config.yaml").write_text(NO_BACKGROUND)

    async def scene() -> None:
        async with asyncio.timeout(BOUND_S), client(own) as connected:
            said = await refusal(connected, SPAWN, tasks=[task("true")], background=True)
            assert "leave background out" in said and "--wait" not in said

    asyncio.run(scene())
    refused = cli.json("subagent", "spawn", cli.task(NO_BACKGROUND), "--", "true", code=1)
    assert "--wait" in refused["error"]["hint"] and "run()" not in refused["error"]["hint"]


def test_the_hints_of_refused_calls_name_what_an_agent_can_do(own: Path) -> None:
    refused = [
        (SPAWN, {"tasks": [task("true", integration="merge")]}, "leave integration"),
        (SPAWN, {"tasks": [task("true", integration="copy")]}, "must be merge or none"),
        (SPAWN, {"tasks": [task("true", depends_on=["x"])]}, "no task of this call has"),
        (SPAWN, {"tasks": [task("true", on="gpu")]}, "leave on out"),
        (SPAWN, {"tasks": [task("true", on="host=")]}, "such as gpu"),
        ("continue_subagent", {"subagent_id": "x", "message": "go on"}, "list_subagents"),
    ]

    async def scene() -> None:
        async with asyncio.timeout(BOUND_S), client(own) as connected:
            await give(connected, SPAWN, tasks=[task("echo 1", "one")])
            for tool, arguments, words in refused:
                said = await refusal(connected, tool, **arguments)
                assert words in said, said
                assert "--" not in said and "'retinue " not in said, said

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("given", "words"),
    [("Path('c.yaml')", "No such file"), ("[]", "not a value of type list")],
)
def test_a_configuration_that_cannot_be_read_is_refused_in_plain_words(
    tmp_path: Path, given: str, words: str
) -> None:
    said = python(
        tmp_path,
        f"try: await r.create_task(title='t', config={given})\n"
        "except retinue.BadInput as error: print(error.message, error.hint)",
    )
    assert words in said
    assert "the Path of its file, or a dict" in said


@pytest.mark.parametrize(
    ("words", "package", "extra"),
    [
        (("ui", "--no-open"), "starlette", "web"),
        (("mcp", "--http"), "mcp", "mcp"),
        (("hub", "start"), "nats", "hub"),
        (("hub", "start"), "cryptography", "hub"),
        (("node", "start"), "nats", "nodes"),
        (("node", "join", "retinue://h:1/#x"), "nacl", "nodes"),
        (("cluster", "connect", "retinue://h:1/#x"), "nats", "nodes"),
    ],
)
def test_a_package_that_is_not_installed_has_one_code(
    cli: Cli, words: tuple[str, ...], package: str, extra: str
) -> None:
    without = f"import sys; sys.modules[{package!r}] = None; from retinue.cli import main"
    ran = subprocess.run(
        [sys.executable, "-c", f"{without}; sys.exit(main())", *words],
        cwd=cli.folder,
        env=cli.environment,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
    )
    assert ran.returncode == 2, ran.stderr
    assert ran.stderr.startswith("error[missing_package]: ") and f"'retinue[{extra}]'" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize("module", ["retinue", "retinue.cli.entry", "retinue.steward.app"])
def test_without_a_hub_nothing_of_nodes_is_imported(module: str) -> None:
    script = (
        f"import sys, {module}\n"
        "found = [name for name in sys.modules if name.startswith(('nats', 'nacl', 'nkeys'))\n"
        "    or name.startswith('retinue.cluster')]\n"
        "sys.exit(', '.join(found) or 0)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=BOUND_S)
    assert ran.returncode == 0, ran.stderr


def test_the_names_of_the_package_are_listed_and_completed() -> None:
    script = (
        "import retinue, rlcompleter\n"
        "assert dir(retinue) == sorted(retinue.__all__)\n"
        "completer = rlcompleter.Completer({'retinue': retinue})\n"
        "print([completer.complete('retinue.co', n) for n in range(2)])\n"
        "print(completer.complete('retinue.Bri', 0))\n"
    )
    ran: Any = subprocess.run(
        [sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines() == ["['retinue.connect(', None]", "retinue.Brief("]
