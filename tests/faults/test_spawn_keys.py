"""Keys by which a call to spawn can be repeated: each parent has its own."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from retinue.formats.contract_json import parse_briefs, request_sha256
from support.roots import Root, python
from support.scenes import Scene, needs_python

WORK = {"argv": ["/bin/sh", "-c", "echo made by $RETINUE_SUBAGENT_ID"], "context_paths": []}
ASK = """
import json, os, socket
link = socket.socket(socket.AF_UNIX)
link.settimeout(20)
link.connect(os.environ["RETINUE_STEWARD"])
lines = link.makefile("rwb")
said = []
for number in range({times}):
    params = {{"tasks": [{work!r}], "key": "k", "wait": True}}
    request = {{"v": 1, "id": number, "verb": "subagent.spawn", "params": params}}
    lines.write(json.dumps(request).encode() + b"\\n")
    lines.flush()
    said.append(json.loads(lines.readline()))
print(json.dumps([each["result"]["results"][0]["subagent_id"] for each in said]))
"""


def of_child(root: Root, task: str, times: int = 1, name: str = "above") -> list[str]:
    """Which subagents a child is given that spawns with the key, so many times."""
    script = ASK.format(times=times, work=WORK)
    (result,) = root.run(task, python(script, subagent_id=name, max_delegation_depth=1))
    assert result["success"], result
    names: list[str] = json.loads(result["answer"])
    return names


def of_user(root: Root, task: str, **options: Any) -> str:
    (result,) = root.run(task, WORK, key="k", **options)
    return str(result["subagent_id"])


@needs_python
def test_a_child_that_knows_the_users_key_is_not_given_the_users_result(scene: Scene) -> None:
    task = scene.task()
    users = of_user(scene.root, task)
    (childs,) = of_child(scene.root, task)
    assert childs != users
    shown = scene.root.call("subagent.show", task=task, subagent=childs)
    assert shown["contract"]["delegated_by"] == "above"


@needs_python
def test_a_child_that_uses_a_key_first_forges_nothing(scene: Scene) -> None:
    task = scene.task()
    (childs,) = of_child(scene.root, task)
    users = of_user(scene.root, task)
    assert users != childs
    assert of_user(scene.root, task) == users, "the user's own is found again"
    (others,) = of_child(scene.root, task, name="other")
    assert others not in (childs, users), "another child has keys of its own, too"


@needs_python
def test_a_child_that_repeats_its_own_call_gets_the_same_subagent(scene: Scene) -> None:
    first, second = of_child(scene.root, scene.task(), times=2)
    assert first == second


def test_the_same_words_from_another_folder_are_another_request(
    fresh: Root, tmp_path: Path
) -> None:
    task = fresh.create_task()
    folders = [tmp_path / "project" / name for name in ("one", "two")]
    for folder in folders:
        (folder / "data").mkdir(parents=True)
    brief = WORK | {"context_paths": ["data"]}
    (first,) = fresh.run(task, brief, key="k", cwd=str(folders[0]))
    (again,) = fresh.run(task, brief, key="k", cwd=str(folders[0]))
    assert again["subagent_id"] == first["subagent_id"]
    refused = fresh.refusal(
        "subagent.spawn", task=task, tasks=[brief], key="k", cwd=str(folders[1])
    )
    assert refused.code == "key_conflict"


def rewrite_keys(root: Root, change: str, **values: Any) -> None:
    """Make the stored keys read as an earlier version left them."""
    root.stop()
    with closing(sqlite3.connect(root.path / "retinue.db")) as database, database:
        assert database.execute(f"UPDATE spawn_keys SET {change}", values).rowcount == 1


def test_a_call_that_an_earlier_version_recorded_is_found(fresh: Root) -> None:
    task = fresh.create_task()
    first = of_user(fresh, task)
    rewrite_keys(fresh, "request_sha256 = :sha", sha=request_sha256(parse_briefs([WORK])))
    assert of_user(fresh, task) == first


@needs_python
def test_a_key_that_a_child_used_in_an_earlier_version_is_not_the_users(fresh: Root) -> None:
    task = fresh.create_task()
    (childs,) = of_child(fresh, task)
    old = request_sha256(parse_briefs([WORK]))
    rewrite_keys(fresh, "key = 'k', request_sha256 = :sha", sha=old)
    refused = fresh.refusal("subagent.spawn", task=task, tasks=[WORK], key="k", wait=True)
    assert refused.code == "key_conflict"
    (others,) = of_child(fresh, task, name="other")
    assert others != childs
    assert fresh.rows(task)[childs]["status"] == "completed"


@pytest.mark.parametrize("key", ["\x1fabove\x1fk", "\x1f", "\x1f\x1fk"])
def test_no_key_of_the_user_reads_as_one_of_a_child(fresh: Root, key: str) -> None:
    task = fresh.create_task()
    (childs,) = of_child(fresh, task)
    first = fresh.run(task, WORK, key=key)[0]["subagent_id"]
    again = fresh.run(task, WORK, key=key)[0]["subagent_id"]
    assert first == again != childs
