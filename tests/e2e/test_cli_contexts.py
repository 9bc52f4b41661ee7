"""A command finds what it was lent with the tools that everybody uses: find, grep -r, cat."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.cli import CONFIG, Cli

CONFIGS = {
    "isolated": CONFIG.replace("mode: inherited", "mode: isolated"),
    "inherited": CONFIG,
}
LOOK = """
cd "$RETINUE_CONTEXT"
echo "# find"
find . -type f
echo "# grep"
grep -r needle .
echo "# change"
for file in $(find . -type f); do
  echo changed > "$file"
done 2> /dev/null
echo "# end"
"""


@pytest.fixture(params=list(CONFIGS))
def config(request: pytest.FixtureRequest) -> str:
    return CONFIGS[request.param]


@pytest.fixture
def project(cli: Cli) -> Path:
    for name in ("lib/a.txt", "lib/deep/b.txt", "src/c.txt"):
        path = cli.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"a needle in {name}\n")
    return cli.folder


def section(answer: str, name: str) -> list[str]:
    found = re.search(rf"# {name}\n(.*?)^#", answer, re.DOTALL | re.MULTILINE)
    assert found, answer
    return sorted(line.removeprefix("./") for line in found[1].splitlines())


@pytest.mark.requirement("R174", "R175")
@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["lib"], ["paths/lib/a.txt", "paths/lib/deep/b.txt"]),
        (["lib/a.txt"], ["paths/lib/a.txt"]),
        (["lib/deep", "src/c.txt"], ["paths/lib/deep/b.txt", "paths/src/c.txt"]),
    ],
    ids=["a folder", "a file", "both"],
)
def test_what_was_lent_is_found_by_find_and_grep(
    cli: Cli, project: Path, config: str, given: list[str], names: list[str]
) -> None:
    task = cli.task(config)
    words = [word for path in given for word in ("--context-path", path)]
    done = cli.json("subagent", "spawn", task, *words, "--wait", "--", "sh", "-c", LOOK)
    answer = done["results"][0]["answer"]
    assert section(answer, "find") == names
    hits = [f"{name}:a needle in {name.removeprefix('paths/')}" for name in names]
    assert section(answer, "grep") == hits
    for name in ("lib/a.txt", "lib/deep/b.txt", "src/c.txt"):
        assert (project / name).read_text() == f"a needle in {name}\n"


@pytest.mark.requirement("R174", "R175")
def test_of_a_whole_project_everything_is_found_but_the_root(
    cli: Cli, project: Path, config: str
) -> None:
    task = cli.task(config)
    earlier = ("--id", "earlier", "--wait", "--", "echo", "needle of another subagent")
    cli.json("subagent", "spawn", task, *earlier)
    words = ("--context-path", "./", "--wait", "--", "sh", "-c", LOOK)
    done = cli.json("subagent", "spawn", task, *words)
    answer = done["results"][0]["answer"]
    names = ["c.yaml", "lib/a.txt", "lib/deep/b.txt", "src/c.txt"]
    assert section(answer, "find") == [f"paths/{name}" for name in names]
    assert section(answer, "grep") == [f"paths/{name}:a needle in {name}" for name in names[1:]]
    assert (project / "lib/a.txt").read_text() == "a needle in lib/a.txt\n"


def test_a_search_of_the_whole_project_where_it_lies_meets_no_loop(
    cli: Cli, project: Path, config: str
) -> None:
    (project / "way").symlink_to("lib")
    task = cli.task(config)
    paths = "$RETINUE_CONTEXT/paths"
    script = f"find {project} -name a.txt && ls {paths}/way/ && touch {paths}/x"
    words = ("--context-path", "./", "--wait", "--", "sh", "-c", f"{script}; echo $?")
    answer = cli.json("subagent", "spawn", task, *words)["results"][0]["answer"].split()
    assert str(project / "lib/a.txt") in answer
    assert answer[-3:] == ["a.txt", "deep", "1"], "nothing can be made there"
    assert not (project / "x").exists()


@pytest.mark.requirement("R174")
def test_the_second_attempt_finds_the_same(cli: Cli, project: Path, config: str) -> None:
    task = cli.task(config)
    script = LOOK + '\n[ "$RETINUE_ATTEMPT" = 2 ]'
    words = ("--context-path", "lib", "--retries", "1", "--wait", "--", "sh", "-c", script)
    done = cli.json("subagent", "spawn", task, *words)
    assert section(done["results"][0]["answer"], "find") == [
        "paths/lib/a.txt",
        "paths/lib/deep/b.txt",
    ]
