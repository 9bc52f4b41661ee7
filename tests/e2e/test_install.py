"""The wheel in a bare environment: what pip users get."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent.parent
BOUND_S = 110


def run(*words: str | Path, folder: Path) -> str:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "SOURCE_DATE_EPOCH": "1700000000"}
    done = subprocess.run(
        [*map(str, words)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
    )
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built twice with the same bytes."""
    built = []
    for name in ("one", "two"):
        target = tmp_path_factory.mktemp(name)
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", target, folder=TOP)
        built += [*target.glob("*.whl")]
    first, second = built
    assert first.read_bytes() == second.read_bytes()
    return first


def test_the_wheel_works_with_nothing_but_its_dependencies(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", folder=tmp_path)
    (site,) = tmp_path.glob("venv/lib/*/site-packages")
    # Its dependencies are those of this environment; the package itself is the wheel's.
    paths = [path for path in sys.path if path.endswith("site-packages")]
    (site / "dependencies.pth").write_text("\n".join(paths))
    install = ("-m", "pip", "--python", tmp_path / "venv/bin/python", "install", "--no-deps")
    run(sys.executable, *install, "--quiet", wheel, folder=tmp_path)
    retinue = tmp_path / "venv/bin/retinue"
    where = "import retinue; print(retinue.__file__)"
    place = run(tmp_path / "venv/bin/python", "-c", where, folder=tmp_path)
    assert place.startswith(str(site))
    pages = [line.split()[0] for line in run(retinue, "docs", folder=tmp_path).splitlines()]
    assert pages[:3] == ["index", "tutorial", "how-to/install"]
    assert "how-to/plans" in pages and pages[-1].startswith("design/")
    assert (site / "retinue/py.typed").is_file()
    assert (tmp_path / "venv/share/man/man1/retinue.1").is_file()
    run(retinue, "task", "create", "--title", "T", "--id", "t", folder=tmp_path)
    script = ("--id", "one", "--wait", "--", "sh", "-c", "echo hello")
    assert "hello" in run(retinue, "subagent", "spawn", "t", *script, folder=tmp_path)
    run(retinue, "steward", "stop", folder=tmp_path)


def test_shells_complete_commands_and_ids(tmp_path: Path) -> None:
    retinue = Path(sys.executable).parent / "retinue"
    for shell in ("bash", "zsh", "fish"):
        assert "_RETINUE_COMPLETE" in run(retinue, "completion", shell, folder=tmp_path)
    run(retinue, "task", "create", "--title", "T", "--id", "greetings", folder=tmp_path)
    words = ("env", "_RETINUE_COMPLETE=bash_complete", "COMP_CWORD=3")
    asked = run(*words, "COMP_WORDS=retinue task show gr", retinue, folder=tmp_path)
    assert asked.split() == ["plain,greetings"]
    run(retinue, "task", "create", "--title", "T", "--id", "greetings-two", folder=tmp_path)
    spawned = ("greetings", "--id", "one", "--wait", "--", "echo", "hello")
    run(retinue, "subagent", "spawn", *spawned, folder=tmp_path)
    run(retinue, "steward", "stop", folder=tmp_path)
    # Completion starts no steward.
    asked = run(*words, "COMP_WORDS=retinue task show greetings-", retinue, folder=tmp_path)
    assert asked.split() == ["plain,greetings-two"]
    words = ("env", "_RETINUE_COMPLETE=bash_complete", "COMP_CWORD=4")
    for task, ids in (("greetings", ["plain,one"]), ("gree", []), ("/", [])):
        typed = f"COMP_WORDS=retinue subagent show {task} "
        assert run(*words, typed, retinue, folder=tmp_path).split() == ids
    assert '"running": false' in run(retinue, "--json", "steward", "status", folder=tmp_path)
