"""Plans whose steps run on nodes are joined, checked and refused as if they had run here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.cluster import Lab
from support.node_plans import CONFIGS, NODES, make_repository, run_plan
from support.repositories import Repository, plan, reasons, start, step

BARE = (
    "mkdir -p own/o/refs own/o/objects; cd own/o; touch refs/x objects/x; "
    "echo 'ref: refs/heads/x' > HEAD"
)
KEY = 'k=OPEN; echo "-----BEGIN ${k}SSH PRIVATE KEY-----" > id'  # whole only in the file
REFUSED = {
    "a file that another owns": ("echo x > outside", "does not own: outside"),
    "a file of another removed": ("rm d0/f0", "does not own: d0/f0"),
    "a link": ("ln -s /etc/passwd own", "a symbolic link"),
    "a link in a folder's place": ("mkdir own; ln -s /etc own/etc", "a symbolic link"),
    "a repository": ("mkdir own; git -C own init -q; echo > own/f", "a git folder of its own"),
    "a git file": ("mkdir own; echo 'gitdir: /tmp/x' > own/.git", "a git folder of its own"),
    "a hidden git folder": ("mkdir -p own/.GIT; echo > own/.GIT/config", "a git folder of its own"),
    "a bare repository": (BARE, "a bare repository of its own"),
    "a secret": (f"mkdir own; cd own; {KEY}", "own/id (private key on line 1)"),
    "a large file": ("truncate -s 60M own", "more than 50 MB"),
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    made = Lab(tmp_path_factory.mktemp("plans"))
    try:
        made.open()
        made.join("w1")
        made.join("w2")
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def repository(lab: Lab) -> Repository:
    return make_repository(lab, folders=10, files=3)


@pytest.mark.parametrize("mode", CONFIGS)
def test_a_plan_on_nodes_leads_to_the_same_tree_as_here(
    lab: Lab, repository: Repository, mode: str
) -> None:
    before = repository.untouched()
    trees = [run_plan(lab, repository, mode, on_nodes=each) for each in (False, True)]
    assert trees[0] == trees[1] != repository.git("rev-parse", "HEAD^{tree}")
    assert repository.untouched() == before


@pytest.mark.parametrize("mode", CONFIGS)
def test_what_may_not_be_brought_is_refused_here_whatever_node_made_it(
    lab: Lab, repository: Repository, mode: str
) -> None:
    before = repository.untouched()
    config = CONFIGS[mode] + NODES
    tasks = {
        words: start(lab.calls, plan(step("bad", f"{script}; echo x", owns=["own"])), config)
        for words, (script, _) in REFUSED.items()
    }
    ends = {words: lab.call("run.wait", task=task) for words, task in tasks.items()}
    wrong = {
        words: end["results"][0]
        for words, end in ends.items()
        if reasons(end) != {"bad": "policy_violation"}
        or REFUSED[words][1] not in end["results"][0]["error"]
    }
    assert not wrong
    assert repository.untouched() == before
    shown = [lab.call("subagent.show", task=task, subagent="bad") for task in tasks.values()]
    assert {each["attempts"][0]["node"] for each in shown} == {"w1", "w2"}


def test_ignored_files_beyond_a_limit_stay_on_the_node_and_are_named(
    lab: Lab, repository: Repository
) -> None:
    # Random bytes, which no compression makes smaller.
    script = (
        "echo '*.bin' > .gitignore; head -c 70000000 /dev/urandom > large.bin; "
        "echo x > small.bin; echo made > new; echo x"
    )
    document = plan(step("large", script, owns=[".gitignore", "new"]))
    task = start(lab.calls, document, CONFIGS["isolated"] + NODES)
    end = lab.call("run.wait", task=task)

    assert reasons(end) == {"large": "merged"}, end
    assert "not sent by its node: 'large/workspace/large.bin'" in end["results"][0]["warning"]
    workspace = lab.root / "tasks" / task / "agents" / "large" / "workspace"
    assert (workspace / "small.bin").exists()
    assert not (workspace / "large.bin").exists()
