"""A plan that changes a tree in every way, to be carried out here and on nodes."""

from __future__ import annotations

import json

from support.cluster import Lab
from support.repositories import CONFIG, ISOLATED, Repository, carry_out, plan, reasons, step

NODES = "    subagent_runtime: nodes\n"
CONFIGS = {"isolated": ISOLATED, "inherited": CONFIG}
MAKE = """
rm -r d1 d2/f0; rm -r d3; echo 'a file now' > d3; rm d4/f1; mkdir d4/f1; echo x > d4/f1/deep
rm -r d5; mkdir d5; echo 'all new' > d5/only; mv d6 moved; chmod +x d7/f0; echo more >> d8/f1
printf '\\\\0binary' > d8/f2; mkdir -p new/a/b; echo x > 'new/a/b/with blanks'; echo made
"""
FOLLOW = """
test ! -e d1 && test -f d3 && test -f moved/f0 && test -x d7/f0 && test ! -e d5/f0 || exit 7
rm moved/f1; echo again >> d3; rm d5/only; echo x > d5/f0; git log --format=%s | head -1
"""
VERIFY = "test ! -e d1 && test -f 'new/a/b/with blanks' && test ! -e moved/f1 && test -f d5/f0"


def make_repository(lab: Lab, folders: int, files: int) -> Repository:
    """A repository in the project of a lab."""
    names = [f"d{folder}/f{file}" for folder in range(folders) for file in range(files)]
    return Repository(lab.project, {name: f"{name}\n" * 20 for name in names})


def run_plan(lab: Lab, repository: Repository, mode: str, *, on_nodes: bool) -> str:
    """The tree that the plan leads to."""
    terms = {"timeout_seconds": 120} | ({"on": "x86_64"} if on_nodes else {})
    make = step("make", MAKE, **terms)
    follow = step("follow", FOLLOW, depends_on=["make"], verify=["sh", "-c", VERIFY], **terms)
    end = carry_out(lab.calls, plan(make, follow), config=CONFIGS[mode])
    assert reasons(end) == {"make": "merged", "follow": "merged"}, json.dumps(end, indent=1)
    for name in ("make", "follow"):
        shown = lab.call("subagent.show", task=end["task_id"], subagent=name)
        nodes = [each.get("node") for each in shown["attempts"]]
        assert all(nodes) is on_nodes, nodes
    return repository.git("rev-parse", f"{end['branch']}^{{tree}}")
