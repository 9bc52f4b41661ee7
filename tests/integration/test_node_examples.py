"""The units and the Kubernetes example for hub and nodes name what there is."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
from ruamel.yaml import YAML

from retinue.cli.command_table import commands

FOLDER = Path(__file__).parents[2] / "examples" / "nodes"
UNITS = sorted(FOLDER.glob("*.service"))
SHELL_ENDS = {"|", ">", ";", "&&", "done", "fi"}


def require_command(words: list[str]) -> None:
    """Check that a command of `retinue` exists and has the options that are named."""
    assert words[0].rpartition("/")[2] == "retinue", words
    command: click.Command = commands
    context = click.Context(command)
    rest = words[1:]
    while isinstance(command, click.Group):
        found = command.get_command(context, rest[0])
        assert found is not None, f"no command {words}"
        command, rest = found, rest[1:]
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    named = {word.partition("=")[0] for word in rest if word.startswith("--")}
    assert named <= known, f"{words}: unknown {sorted(named - known)}"


def find_commands(text: str) -> list[list[str]]:
    """Return the calls of `retinue` in lines of shell."""
    found = []
    for line in text.splitlines():
        for start in re.finditer(r"(?<![\w/.'-])(?:/[\w/]+/)?retinue (?=node |hub )", line):
            lexer = shlex.shlex(line[start.start() :].partition("' ")[0], posix=True)
            lexer.whitespace_split = True
            words = []
            for word in lexer:
                ended = word.endswith(";")
                if word in SHELL_ENDS:
                    break
                words.append(word.rstrip(";"))
                if ended:
                    break
            found.append(words)
    return found


def read_documents() -> list[dict[str, Any]]:
    return list(YAML(typ="safe").load_all(FOLDER / "kubernetes.yaml"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_is_accepted_by_systemd_and_runs_a_command_that_exists(
    unit: Path, tmp_path: Path
) -> None:
    text = unit.read_text()
    (start,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    require_command(start.split())
    for words in find_commands(text):
        require_command(words)
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("there is no systemd-analyze")
    copy = tmp_path / unit.name
    copy.write_text(text.replace("/opt/retinue/bin/retinue", "/bin/true"))
    done = subprocess.run([program, "verify", str(copy)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_restart_of_the_nodes_unit_leaves_its_children() -> None:
    assert "KillMode=process" in (FOLDER / "retinue-node.service").read_text()


def test_the_kubernetes_example_runs_commands_that_exist() -> None:
    seen = []
    for document in read_documents():
        assert document["apiVersion"] and document["metadata"]["name"]
        if document["kind"] != "StatefulSet":
            continue
        labels = document["spec"]["template"]["metadata"]["labels"]
        assert document["spec"]["selector"]["matchLabels"] == labels
        (container,) = document["spec"]["template"]["spec"]["containers"]
        claims = {each["metadata"]["name"] for each in document["spec"]["volumeClaimTemplates"]}
        volumes = {each["name"] for each in document["spec"]["template"]["spec"].get("volumes", ())}
        assert {each["name"] for each in container["volumeMounts"]} == claims | volumes
        if container["command"][0] == "retinue":
            seen.append(container["command"])
        seen += find_commands("\n".join(container.get("args", ())))
    comments = find_commands((FOLDER / "kubernetes.yaml").read_text())
    for words in seen + comments:
        require_command(words)
    assert [words[1:3] for words in seen] == [["hub", "start"], ["node", "join"], ["node", "start"]]
