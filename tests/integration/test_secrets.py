"""Secrets: given to the command as variables, and recorded nowhere."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue import BadInput, Refused, Retinue
from support.api import Opening, create, let_go, playing, sh

VALUE = "s3cr3t-value-of-the-test-7f1c"


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set before the steward starts, which reads its own environment."""
    monkeypatch.setenv("TEST_TOKEN", VALUE)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token.txt"
    path.write_text(f"{VALUE}\n")
    return path


def find_value(folder: Path) -> list[str]:
    """The files below a folder that contain the value."""
    found = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    return [str(path) for path in found if path.is_file() and VALUE.encode() in path.read_bytes()]


def list_command_lines() -> Iterator[bytes]:
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                yield (process / "cmdline").read_bytes()
            except OSError:
                continue


def test_a_secret_reaches_its_command_and_nothing_else(
    opened: Opening, own: Path, file: Path
) -> None:
    async def scene(r: Retinue) -> None:
        task = await create(r)
        script = (
            'printf "%s" "$TEST_TOKEN$OTHER$THIRD" | sha256sum; '
            "touch up; while ! [ -e go ]; do sleep 0.02; done"
        )
        secrets = ["TEST_TOKEN", "OTHER=env:TEST_TOKEN", f"THIRD=file:{file}"]
        (spawned,) = await task.spawn([sh(script, "it", secrets=secrets)])
        seen = [line for line in list_command_lines() if VALUE.encode() in line]
        assert seen == []
        let_go(spawned.workspace)
        assert (await task.wait_any(timeout=20)).status == "completed"
        digest = hashlib.sha256((VALUE * 3).encode()).hexdigest()
        assert (await task.result("it")).answer == f"{digest}  -"
        shown = await r.call("subagent.show", task=task.id, subagent="it")
        names = [each["name"] for each in shown["contract"]["secrets"]]
        assert names == ["TEST_TOKEN", "OTHER", "THIRD"]
        events = [event async for event in task.events()]
        assert VALUE not in str(events) + str(shown)

    playing(scene, opened)
    assert find_value(own) == []


def test_secrets_are_redacted_from_output_and_answer_on_request(opened: Opening, own: Path) -> None:
    # In two writes, so that the value is split between two reads.
    half = len(VALUE) // 2
    script = (
        f'printf "%.{half}s" "$T"; sleep 0.2; printf "%s\\n" "$T" | cut -c{half + 1}-; '
        'echo "to the log: $T" >&2; printf "answer with $T" > "$RETINUE_ANSWER"; exit $END'
    )

    logs: list[Path] = []

    async def scene(r: Retinue) -> None:
        task = await create(r)
        terms: dict[str, Any] = {"secrets": ["T=env:TEST_TOKEN"], "redact": True}
        ends = {"well": "0", "badly": "3"}
        batch = await task.run(
            [sh(script, name, env={"END": end}, **terms) for name, end in ends.items()]
        )
        well, badly = batch.results
        assert well.answer == "answer with [T redacted]"
        assert "[T redacted]" in badly.error_output
        logs.append(Path(well.log_path))

    playing(scene, opened)
    assert (logs[0] / "stdout.log").read_text() == "[T redacted]\n"
    assert (logs[0] / "stderr.log").read_text() == "to the log: [T redacted]\n"
    # What the command itself wrote for the steward stays as it is, in its own folder.
    assert {Path(path).name for path in find_value(own)} <= {"answer.txt"}
    assert all("full_logs" in path for path in find_value(own))


@pytest.mark.parametrize(
    ("secret", "code"),
    [
        ("NOT_SET_ANYWHERE", "no_secret"),
        ("A=file:/nonexistent/token", "no_secret"),
        ("A=file:/dev/zero", "no_secret"),
        ("A=plain-value", "invalid_secret"),
        ("LD_PRELOAD=env:TEST_TOKEN", "reserved_variable"),
        ("RETINUE_X=env:TEST_TOKEN", "reserved_variable"),
    ],
)
def test_a_secret_that_cannot_be_given_is_refused_at_the_spawn(
    opened: Opening, secret: str, code: str
) -> None:
    async def scene(r: Retinue) -> None:
        task = await create(r)
        with pytest.raises((BadInput, Refused)) as refused:
            await task.spawn([sh("true"), sh("true", secrets=[secret])])
        assert refused.value.code == code
        assert "plain-value" not in str(refused.value)
        assert await task.subagents() == []

    playing(scene, opened)


def test_a_missing_variable_says_whose_environment_counts(own: Path) -> None:
    async def scene() -> None:
        async with retinue.connect(own) as r:
            task = await create(r)
            await task.spawn([sh("true", secrets=["NOT_SET_ANYWHERE"])])

    with pytest.raises(Refused) as refused:
        asyncio.run(scene())
    assert "not set in the steward" in refused.value.message
    assert "file:PATH" in refused.value.hint


def test_a_secret_that_is_gone_at_a_later_attempt_fails_that_attempt(
    opened: Opening, file: Path
) -> None:
    async def scene(r: Retinue) -> None:
        task = await create(r)
        script = "touch up; while ! [ -e go ]; do sleep 0.02; done; exit 1"
        brief = sh(script, "it", secrets=[f"T=file:{file}"], retries=1)
        (spawned,) = await task.spawn([brief])
        os.unlink(file)
        let_go(spawned.workspace)
        assert (await task.wait_any(timeout=20)).status == "failed"
        assert "the secret T cannot be read" in (await task.result("it")).error

    playing(scene, opened)


def plan_with(*secrets: str, **extra: Any) -> dict[str, Any]:
    command = ["sh", "-c", 'printf "%s" "$TEST_TOKEN$OTHER" | sha256sum; echo "$TEST_TOKEN"']
    step = {"id": "it", "command": command, "secrets": list(secrets), "redact": True}
    return {"goal": "Deploy", "steps": [step | extra]}


def test_a_plan_gets_the_secrets_that_are_handed_out(
    opened: Opening, own: Path, file: Path
) -> None:
    async def scene(r: Retinue) -> None:
        given = ["TEST_TOKEN", f"OTHER=file:{file}"]
        ended = await r.run_plan(plan_with("TEST_TOKEN", "OTHER"), secrets=given)
        digest = hashlib.sha256((VALUE * 2).encode()).hexdigest()
        (result,) = ended["results"]
        assert result["answer"] == f"{digest}  -\n[TEST_TOKEN redacted]"
        assert VALUE not in str(ended)

    playing(scene, opened)
    assert find_value(own) == []


def test_a_retry_reads_the_secrets_again(opened: Opening, file: Path) -> None:
    async def scene(r: Retinue) -> None:
        command = ["sh", "-c", 'test "${#OTHER}" -gt 20 && echo "$OTHER"']
        plan = plan_with("OTHER", command=command)
        await asyncio.to_thread(file.write_text, "rather-short")
        ended = await r.run_plan(plan, secrets=[f"OTHER=file:{file}"])
        assert ended["status"] == "failed"
        await asyncio.to_thread(file.write_text, VALUE)
        started = await r.call("run.retry", task=ended["task_id"], by="user")
        again = await r.call("run.wait", task=started["task_id"])
        assert again["results"][0]["answer"] == "[OTHER redacted]"

    playing(scene, opened)


@pytest.mark.parametrize(
    ("named", "given", "said"),
    [
        (["TEST_TOKEN"], [], "which is not handed out"),
        ([], ["TEST_TOKEN"], "no step of the plan names"),
        (["TEST_TOKEN=env:HOME"], ["TEST_TOKEN"], "a plan only names its secrets"),
        (["NOT_SET_ANYWHERE"], ["NOT_SET_ANYWHERE"], "is not set in the steward"),
    ],
)
def test_a_plan_is_refused_whole_over_its_secrets(
    opened: Opening, named: list[str], given: list[str], said: str
) -> None:
    async def scene(r: Retinue) -> None:
        with pytest.raises((BadInput, Refused), match=said):
            await r.run_plan(plan_with(*named, redact=bool(named)), secrets=given)
        assert await r.tasks() == []

    playing(scene, opened)
