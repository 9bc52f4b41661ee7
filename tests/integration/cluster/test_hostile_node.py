"""What a node returns is a claim: a hostile one fails its subagent, and reaches nothing else."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.cluster.conftest import CONFIG
from retinue.cluster import messages
from retinue.cluster.sealing import make_key, seal
from support.cluster import TASK, Lab
from support.hostile_node import Act, HostileNode, Taken
from support.roots import Row, command

SECRET = "a word that only the steward's user may read"
FOLDERS = ("{0}", "{0}/workspace", "{0}/full_logs", "{0}/runtime")


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> bytes:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size, made.mode = kind, link, size, 0o755
    return made.tobuf()


def archive(agent: str, *entries: bytes) -> bytes:
    """An archive with the folders of an agent and what is added."""
    folders = [entry(each.format(agent), tarfile.DIRTYPE) for each in FOLDERS]
    return gzip.compress(b"".join((*folders, *entries, bytes(1024))), 1)


def file(name: str, text: bytes) -> bytes:
    return entry(name, size=len(text)) + text + bytes(-len(text) % 512)


def sends(make: Callable[[str], bytes]) -> Act:
    """Return these entries with the end; they are made for the folder of the agent."""

    async def act(taken: Taken) -> bytes:
        return taken.end(archive(taken.agent, make(taken.agent)))

    return act


async def with_another_key(taken: Taken) -> bytes:
    head = {"v": 1, "kind": "exited"}
    return seal(make_key(), messages.encode(head, archive(taken.agent)))


async def with_a_wrong_hash(taken: Taken) -> bytes:
    ref = await taken.put(archive(taken.agent))
    return taken.end(blob=ref | {"sha256": "0" * 64})


async def with_files_of_another_member(taken: Taken) -> bytes:
    ref = await taken.put(archive(taken.agent))
    return taken.end(blob=ref | {"name": f"{taken.key.steward}.in{taken.key.nonce}"})


async def with_a_reference_to_nothing(taken: Taken) -> bytes:
    return taken.end(blob={"name": ["../.."], "size": -1})


async def with_a_head_without_end(taken: Taken) -> bytes:
    text = b"[" * 200_000
    return seal(taken.secret, len(text).to_bytes(4, "little") + text)


async def with_no_archive(taken: Taken) -> bytes:
    return taken.end(b"\x1f\x8b nothing")


async def without_files(taken: Taken) -> bytes:
    return taken.end(kind="exited", exit_code=0)


async def never_runs(taken: Taken) -> None:
    return None


EXITED = b'{"kind":"exited","exit_code":0,"attempt":1}'
OUT = Path("/tmp/retinue-hostile-out")
# What the node does, and the words of the error by which its subagent fails.
ACTS: dict[str, tuple[Act, str]] = {
    "parent folders": (sends(lambda agent: file(f"{agent}/../../out", b"x")), "leads elsewhere"),
    "an absolute name": (sends(lambda _: file(str(OUT), b"x")), "leads elsewhere"),
    "a device": (
        sends(lambda agent: entry(f"{agent}/workspace/d", tarfile.BLKTYPE)),
        "neither a file",
    ),
    "a hard link": (
        sends(lambda agent: entry(f"{agent}/workspace/h", tarfile.LNKTYPE, "/etc/passwd")),
        "neither a file",
    ),
    "a way through a link": (
        sends(
            lambda agent: (
                entry(f"{agent}/workspace/l", tarfile.SYMTYPE, "/tmp")
                + file(f"{agent}/workspace/l/{OUT.name}", b"x")
            )
        ),
        "through something else",
    ),
    "another agent": (sends(lambda _: entry("other", tarfile.DIRTYPE)), "not asked for"),
    "its contract": (sends(lambda agent: file(f"{agent}/contract.json", b"{}")), "not asked for"),
    "a bomb": (sends(lambda agent: entry(f"{agent}/workspace/b", size=10 << 30)), "more than 4 GB"),
    "a bomb in a header": (
        sends(lambda agent: entry(f"{agent}/x", tarfile.XHDTYPE, size=7 << 30)),
        "a header in it",
    ),
    "no archive": (with_no_archive, "damaged"),
    "another key": (with_another_key, "does not belong to it"),
    "a wrong hash": (with_a_wrong_hash, "not the one that was announced"),
    "another member's files": (with_files_of_another_member, "a file of another member"),
    "a reference to nothing": (with_a_reference_to_nothing, "refused"),
    "a head without end": (with_a_head_without_end, "does not belong to it"),
    "no files": (without_files, "disappeared without a record"),
    "never runs": (never_runs, "never ran it"),
}


@pytest.fixture(scope="module")
def acts() -> dict[str, Act]:
    """What the node does for a subagent whose command ends with that word."""
    return {name: act for name, (act, _) in ACTS.items()}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, acts: dict[str, Act]) -> Iterator[Lab]:
    made = Lab(tmp_path_factory.mktemp("hostile"))
    try:
        made.open(CONFIG)
        node = HostileNode(made.run("hub", "invite").stdout.strip(), "evil", acts, made.lease_s)
        try:
            yield made
        finally:
            node.close()
    finally:
        made.close()


def run_there(lab: Lab, *words: str) -> list[Row]:
    """Run a subagent for each word on the hostile node; return their results."""
    return lab.calls.run(TASK, *(command("true", each, on=["host=evil"]) for each in words))


def list_tree(top: Path) -> set[str]:
    """Return every path in a folder, without those of single subagents."""
    agents = top / ".retinue/tasks" / TASK / "agents"
    return {str(path) for path in top.rglob("*") if agents not in path.parents}


def test_what_a_hostile_node_returns_fails_with_a_reason_and_stays_inside(lab: Lab) -> None:
    before = list_tree(lab.project)
    results = dict(zip(ACTS, run_there(lab, *ACTS), strict=True))
    wrong = {
        words: results[words]
        for words, (_, reason) in ACTS.items()
        if results[words]["status"] != "error" or reason not in results[words]["error"]
    }
    assert not wrong
    assert not OUT.exists()
    for each in results.values():
        folder = Path(each["workspace"])
        assert not list(folder.iterdir())
        assert not (folder.parent / ".from-node").exists()
    made = {path for path in list_tree(lab.project) - before if "/tasks/" in path}
    assert {path.rpartition("/")[2] for path in made} <= {"events.jsonl", "metrics_summary.json"}
    assert lab.run("verify", TASK).returncode == 0


def test_a_link_in_the_place_of_its_output_shows_nothing_of_the_steward(
    lab: Lab, acts: dict[str, Act]
) -> None:
    secret = lab.top / "secret"
    secret.write_text(SECRET)
    acts["links"] = sends(
        lambda agent: b"".join(
            (
                entry(f"{agent}/runtime/stdout.log", tarfile.SYMTYPE, str(secret)),
                entry(f"{agent}/runtime/stderr.log", tarfile.SYMTYPE, str(secret)),
                entry(f"{agent}/full_logs/answer.txt", tarfile.SYMTYPE, str(secret)),
                entry(f"{agent}/workspace/inside", tarfile.SYMTYPE, str(secret)),
                file(f"{agent}/runtime/exit.json", EXITED),
            )
        )
    )
    (result,) = run_there(lab, "links")
    assert SECRET not in json.dumps(result)
    folder = Path(result["workspace"]).parent
    assert (folder / "workspace/inside").is_symlink()
    assert not (folder / "runtime/stdout.log").is_symlink()
    assert (folder / "runtime/exit.json").read_bytes() == EXITED
