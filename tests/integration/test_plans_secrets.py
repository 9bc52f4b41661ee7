"""What is not to be joined: secrets, what an inspecting command refuses, files that are too large.

No token here is whole, so that nobody who scans this repository takes one for real.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from retinue.workspaces.secret_values import KINDS, find_first_secret
from support import repositories
from support.repositories import ISOLATED, Repository, carry_out, plan, reasons, step
from support.roots import Root

repository, root = repositories.repository, repositories.root
KEY = "-----BEGIN OPENSSH " + "PRIVATE KEY-----"
EXAMPLES = {
    "private key": KEY,
    "AWS key": "AKIA" + "Z2" * 8,
    "GitHub token": "ghp_" + "a1" * 18,
    "GitLab token": "glpat-" + "a1" * 10,
    "Slack token": "xoxb-" + "12345-" * 5,
    "Google key": "AIza" + "abcde" * 7,
    "Anthropic key": "sk-ant-" + "api03-" * 6,
    "OpenAI key": "sk-proj-" + "a1" * 24,
    "Stripe key": "sk_live_" + "a1" * 12,
    "npm token": "npm_" + "a1" * 18,
    "PyPI token": "pypi-AgEI" + "a1" * 30,
    "Hugging Face token": "hf_" + "a1" * 17,
}


def test_every_kind_of_secret_is_found_and_its_line_named() -> None:
    assert set(EXAMPLES) == {kind.replace("_", " ") for kind in KINDS}
    for kind, secret in EXAMPLES.items():
        data = b"\xff\x00first\nkey = '" + secret.encode() + b"'\n"
        assert find_first_secret(data) == f"{kind} on line 2"
        assert find_first_secret(data, before=secret.encode()) == ""


@pytest.mark.parametrize(
    "text",
    [
        b"see sk-learn and risk-proj- and sk-123",
        b"-----BEGIN PUBLIC KEY-----",
        b"-----BEGIN CERTIFICATE-----",
        b"task-" + b"a-rather-long-name-of-a-branch-that-nobody-likes",
        b"sha256-" + b"a1" * 32,
    ],
)
def test_text_that_only_resembles_a_secret_is_not_reported(text: bytes) -> None:
    assert find_first_secret(text) == ""


def test_a_secret_is_neither_joined_nor_disclosed(repository: Repository, root: Root) -> None:
    key = KEY.replace("OPENSSH", "${k}SSH")  # whole only in the file
    write = f'k=OPEN; mkdir d; (echo x; echo "{key}") > d/id; echo ok > b; echo done'
    steps = [
        step("merged", write, owns=["d", "b"]),
        step("copied", write, integration="copy"),
        step("fine", "echo ok > c; echo done", owns=["c"]),
    ]
    end = carry_out(root, plan(*steps, on_failure="continue"), config=ISOLATED)
    expected = {"merged": "policy_violation", "copied": "policy_violation", "fine": "merged"}
    assert reasons(end) == expected
    for result in end["results"][:2]:
        assert "d/id (private key on line 2)" in result["error"]
        assert result["integration"]["conflicted_files"] == ["d/id"]
        assert "OPENSSH" not in json.dumps(end)
    assert (Path(end["results"][0]["integration"]["workspace"]) / "d" / "id").exists()
    assert set(repository.files(end["branch"])) == {"a.txt", "c"}
    told = (root.task_folder(end["task_id"]) / "events.jsonl").read_text()
    assert "OPENSSH" not in told
    assert list((root.task_folder(end["task_id"]) / "shared" / "output").iterdir()) == []


def test_a_secret_that_was_there_before_or_is_allowed_is_no_reason(
    repository: Repository, root: Root
) -> None:
    repository.write({"fixture": f"{KEY}\n"})
    repository.commit("fixture")
    steps = [
        step("edits", "echo more >> fixture; echo x", owns=["fixture"]),
        step("moves", "cp fixture other; echo x", owns=["other"]),
        step("may", "cp fixture third; echo x", owns=["third"], allow=["secrets"]),
    ]
    end = carry_out(root, plan(*steps, on_failure="continue"))
    assert reasons(end) == {"edits": "merged", "moves": "policy_violation", "may": "merged"}


def test_a_command_checks_the_changes_of_each_merge(repository: Repository, root: Root) -> None:
    """It is given the files by name, in a sandbox, and what it does there is thrown away."""
    look = 'test -e a.txt && touch seen && for f; do ! grep -H forbidden "$f" || exit 3; done'
    steps = [
        step("good", "echo fine > b; rm a.txt; git checkout -q a.txt; echo x", owns=["b"]),
        step("odd", "echo fine > ./--help; echo x", owns=["--help"]),
        step("bad", "mkdir d; echo forbidden > d/c; echo x", owns=["d"]),
    ]
    text = plan(*steps, inspect=["sh", "-c", look, "sh"], on_failure="continue")
    end = carry_out(root, text, config=ISOLATED)
    assert reasons(end) == {"good": "merged", "odd": "merged", "bad": "policy_violation"}
    bad = end["results"][-1]
    assert "inspect refused what it changed (d/c): exited with code 3" in bad["error"]
    assert "./d/c:forbidden" in bad["error"]
    assert bad["integration"]["conflicted_files"] == ["d/c"]
    assert "patch" not in bad["integration"]
    agents = root.task_folder(end["task_id"]) / "agents"
    assert {each.parents[1].name for each in agents.glob("*/artifacts/changes.patch")} == {
        "good",
        "odd",
    }, "what is refused is kept in its workspace alone"
    assert set(repository.files(end["branch"])) == {"a.txt", "b", "--help"}


def test_the_plan_says_how_large_a_file_may_be(repository: Repository, root: Root) -> None:
    make = "head -c 300000 /dev/zero > big; echo x"
    steps = [step("merged", make, owns=["big"]), step("copied", make, integration="copy")]
    end = carry_out(root, plan(*steps, max_file_mb=0.25, on_failure="continue"))
    assert set(reasons(end).values()) == {"policy_violation"}
    assert all("0.25 MB" in each["error"] for each in end["results"])
    end = carry_out(root, plan(*steps, max_file_mb=0.5))
    assert set(reasons(end).values()) == {"merged", "copied"}
    for wrong in (0, -1, "1", True):
        refused = root.refusal("run.start", plan_text=plan(*steps, max_file_mb=wrong))
        assert "max_file_mb" in refused.message
