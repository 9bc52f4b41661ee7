"""`retinue plan`, and `retinue run --retry`, as a user types them."""

from __future__ import annotations

import re
import subprocess
from xml.etree import ElementTree

from support.cli import CONFIG, Cli
from support.repositories import Repository, plan, step


def test_a_plan_is_checked_and_drawn_and_nothing_is_started(cli: Cli) -> None:
    text = plan(
        step("bio", "true", owns=["bio.md"]),
        step("pictures", "true", owns=["img/**"]),
        step("index", "true", owns=["index.md"], depends_on=["bio", "pictures"]),
    )
    (cli.folder / "p.yaml").write_text(text)
    shown = cli.run("plan", "check", "p.yaml")
    assert "  1  bio  (merge)\n  1  pictures  (merge)\n  2  index  (merge)  after bio, pi" in shown
    assert shown.endswith("p.yaml: the plan is sound\n")
    mermaid = cli.run("plan", "graph", "p.yaml", "--format", "mermaid")
    assert mermaid.startswith("graph LR\n") and "  s1 --> s3\n  s2 --> s3\n" in mermaid
    assert '  "bio" -> "index";' in cli.run("plan", "graph", "p.yaml", "--format", "dot")
    tree = "├─ bio  Do bio\n└─ pictures  Do pictures\n   └─ index  Do index  (also after bio)\n"
    assert cli.run("plan", "graph", "p.yaml").endswith(tree)
    picture = ElementTree.fromstring(cli.run("plan", "graph", "p.yaml", "--format", "svg"))
    kinds = [each.tag.rpartition("}")[2] for each in picture]
    assert (kinds.count("rect"), kinds.count("path")) == (3, 2)
    assert cli.json("plan", "graph", "p.yaml")["steps"][2]["wave"] == 2
    (cli.folder / "p.yaml").write_text(text.replace("pictures", "bio"))
    assert cli.json("plan", "check", "p.yaml", code=2)["error"]["code"] == "invalid_plan"
    assert not (cli.folder / ".retinue" / "tasks").exists()


def test_reviewers_and_voters_are_drawn_after_what_they_judge(cli: Cli) -> None:
    text = plan(
        step("next", "true", owns=["n"], depends_on=["best", "fix"]),
        step("fix", "true", owns=["f"]),
        step("critic", "true", reviews="fix"),
        step("one", "true", owns=["x"], candidate_of="best"),
        step("two", "true", owns=["x"], candidate_of="best"),
        step("voter", "true", votes_on="best"),
    )
    (cli.folder / "p.yaml").write_text(text)
    shown = cli.run("plan", "check", "p.yaml")
    assert "  2  critic  (none)  judges fix\n  2  voter  (none)  judges one, two\n" in shown
    assert "  3  next  (merge)  after one, two, fix\n" in shown
    drawn = cli.run("plan", "graph", "p.yaml")
    assert "├─ critic  Do critic\n" in drawn and "next  Do next  (also after one, two)" in drawn
    assert '  "two" -> "voter";' in cli.run("plan", "graph", "p.yaml", "--format", "dot")


def test_a_verified_run_needs_agents(cli: Cli) -> None:
    told = "--verify needs a command, a PROMPT and one --agent or more"
    for given in (["Fix it"], ["--plan", "p.yaml"]):
        answer = cli.json("run", "--verify", "true", *given, code=2)
        assert told in answer["error"]["message"], answer
    answer = cli.json("run", "--apply", "Fix it", code=2)
    assert "--apply needs --plan or --verify" in answer["error"]["message"]
    assert not (cli.folder / ".retinue" / "tasks").exists()


def test_a_retry_runs_only_what_did_not_complete_on_top_of_what_was_merged(cli: Cli) -> None:
    Repository(cli.folder)
    flag = cli.folder.parent / "flag"
    (cli.folder / "c.yaml").write_text(CONFIG)
    text = plan(
        step("first", "echo one > one.txt; echo x", owns=["one.txt"]),
        step("second", f"cat one.txt; test -e {flag}", owns=["two.txt"], depends_on=["first"]),
        step(
            "third",
            "cat one.txt > three.txt; echo $WORD >> three.txt; echo x",
            owns=["three.txt"],
            depends_on=["second"],
            env={"WORD": "more"},
        ),
    )
    (cli.folder / "p.yaml").write_text(text)
    end = cli.json("run", "--plan", "p.yaml", "--config", "c.yaml", code=1)
    assert list(end["not_started"]) == ["third"]
    flag.touch()
    again = cli.json("run", "--retry", end["task_id"])
    assert [each["subagent_id"] for each in again["results"]] == ["second", "third"]
    assert again["status"] == "completed"
    show = ["git", "show", f"{again['branch']}:three.txt"]
    said = subprocess.run(show, cwd=cli.folder, check=True, capture_output=True, text=True)
    assert said.stdout == "one\nmore\n"
    merged = ["git", "merge-base", "--is-ancestor", end["branch"], again["branch"]]
    subprocess.run(merged, cwd=cli.folder, check=True)
    refused = cli.json("run", "--retry", again["task_id"], code=1)
    assert refused["error"]["code"] == "nothing_to_retry"
    assert cli.json("verify")["ok"]


def test_a_failed_plan_shows_what_its_steps_said_and_how_to_repeat_it(cli: Cli) -> None:
    good, bad = step("good", "echo first; echo second"), step("bad", "exit 3")
    (cli.folder / "p.yaml").write_text(plan(good, bad, base=None))
    (cli.folder / "c.yaml").write_text(CONFIG)
    shown = cli.run("run", "--plan", "p.yaml", "--config", "c.yaml", code=None)
    assert "good  result: completed\n  answer: first\n" in shown
    repeat = re.search(r"repeat what failed with: retinue (run --retry \S+)\n", f"{shown}\n")
    assert repeat, shown
    again = cli.json(*repeat[1].split(), code=1)
    assert [each["subagent_id"] for each in again["results"]] == ["bad"]


def test_a_run_that_merged_nothing_has_nothing_to_apply(cli: Cli) -> None:
    Repository(cli.folder)
    (cli.folder / "p.yaml").write_text(plan(step("one", "exit 3")))
    task = cli.json("run", "--plan", "p.yaml", code=1)["task_id"]
    error = cli.json("task", "apply", task, code=1)["error"]
    assert (error["code"], error["message"]) == (
        "not_applied",
        f"{task} has no branch to apply",
    )
