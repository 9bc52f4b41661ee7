"""What a hostile child tries must fail: the same attempts under Retinue and under bubblewrap.

The attempts are those of `tests/support/attacker.py`: to read and write files, leave namespaces,
touch processes, use the network and leave dangerous files. They are made under stewards with
different rights, as far as the rights of this process allow, and in a bubblewrap sandbox that is
given the same files. The tests of `tests/faults/test_isolation_*.py`, and those that make the
attempts on a node, run as well.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from campaign import Campaign, Order, Row
from faults.test_isolation_capabilities import LESSER
from faults.test_isolation_files import CONTEXT, ON_THE_LINK_ITSELF, snapshot
from faults.test_isolation_network import Listeners
from retinue.child.namespaces import lacks_mount_right
from support.roots import sh
from support.scenes import PYTHON, Scene, pytest_sessionfinish, staged

TESTS = Path(__file__).parents[1] / "tests"
TOTALS = re.compile(r"(\d+) (passed|failed|skipped|errors?)")
GROUPS = ("reading", "writing", "leaving", "prying", "calling", "planting")
# They ask what is there, and work in every sandbox.
QUESTIONS = {"everything below the root", "processes", "interfaces", "a pair of sockets"}
SECONDS = 60.0  # for the attempts of one sandbox, which take a few

WITHOUT_MOUNTS = "root without CAP_SYS_ADMIN"
STEWARDS: dict[str, tuple[str, Sequence[str]]] = {  # who starts the sandbox, and through what
    "root": ("root", ()),
    "an ordinary user": ("ordinary", ()),
    WITHOUT_MOUNTS: ("root", LESSER["root without sys_admin"]),
}
Tries = dict[str, dict[str, Any]]


def run(order: Order) -> list[Row]:
    rows = {}
    attacks = {"Retinue": attack_retinue, "bubblewrap": attack_bubblewrap}
    for sandbox in attacks:
        for who in STEWARDS:
            case = f"attempts, {sandbox} as {who}"
            rows[case] = Row(case=case)
            if reason := find_obstacle(who, sandbox):
                rows[case].figures = f"left out: {reason}"
    files = sorted(TESTS.glob("faults/test_isolation_*.py"))
    files.append(TESTS / "faults" / "test_cluster_isolation.py")
    tests = {file: Row(case=f"tests, {file.stem.removeprefix('test_')}") for file in files}
    for _ in order.iter_rounds():
        for sandbox, attack in attacks.items():
            for who in STEWARDS:
                row = rows[f"attempts, {sandbox} as {who}"]
                if not row.figures.startswith("left out"):
                    _try_sandbox(row, attack, who, ours=sandbox == "Retinue")
        for file, row in tests.items():
            _run_tests(file, row, max(30.0, order.end - time.monotonic()))
    pytest_sessionfinish()  # removes the copies of the package that ordinary users read
    return [*rows.values(), *tests.values()]


def find_obstacle(who: str, sandbox: str) -> str:
    """Return why this process cannot start the sandbox as that user, or nothing."""
    if os.geteuid() != 0 and STEWARDS[who][0] == "root":
        return "needs root"
    if who == "root" and lacks_mount_right():
        return "this root has no CAP_SYS_ADMIN"
    if not Path(PYTHON).exists():
        return f"children need {PYTHON}"
    if sandbox == "bubblewrap" and shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    return ""


def _try_sandbox(row: Row, attack: Callable[[Scene, str], Tries], who: str, ours: bool) -> None:
    """Make the attempts once; what gets through is a violation only under Retinue."""
    with staged(STEWARDS[who][0]) as scene:
        before = snapshot(scene) | read_settings()
        try:
            tries = attack(scene, who)
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            row.note(f"{type(error).__name__}: {str(error)[:500]}")
            return
        after = snapshot(scene) | read_settings()
    changed = [path for path in before.keys() | after.keys() if before.get(path) != after.get(path)]
    through = list_let_through(tries)
    tried = len(tries.keys() - QUESTIONS)
    row.tried += tried
    row.figures = f"{tried - len(through)} refused; let through: {summarise(through)}"
    if ours and through:
        row.note(f"let through: {', '.join(through)}")
    if changed:
        row.note(f"changed outside of the sandbox: {', '.join(changed)}")


def read_settings() -> dict[str, Any]:
    """Return what the attempts could change of the machine itself."""
    return {path: Path(path).read_bytes() for path in ("/proc/sys/kernel/core_pattern",)}


def list_let_through(tries: Tries) -> list[str]:
    """Return the attempts that worked.

    An empty folder in the place of what was asked for shows nothing. Through a symbolic link of
    its own, some attempts change that link and nothing else.
    """
    return [
        name
        for name, each in tries.items()
        if each["ok"]
        and each["value"] != []
        and name not in QUESTIONS
        and not (name.endswith("by a symbolic link") and name.startswith(ON_THE_LINK_ITSELF))
    ]


def summarise(names: list[str]) -> str:
    """Return the names; of many that begin with the same word, the word and their number."""
    counted = Counter(name.split()[0] for name in names)
    said = []
    for name in names:
        word = name.split()[0]
        text = f"{word} ({counted[word]})" if counted[word] > 2 else name
        if text not in said:
            said.append(text)
    return ", ".join(said) or "nothing"


def attack_retinue(scene: Scene, who: str) -> Tries:
    """Return what a subagent tried that was lent one folder of the project."""
    with closing(Listeners(scene.place)) as listeners:
        state = {"XDG_STATE_HOME": str(scene.place / "state")}  # not where the snapshots look
        assert json.loads(scene.start(wrapper=STEWARDS[who][1], environment=state))["ready"]
        (other,) = scene.root.run(scene.task(), sh("echo mine > private.txt"))
        forbidden = {
            "the database": scene.root.path / "retinue.db",
            "the socket": scene.root.path / "steward.sock",
            "another's file": Path(other["workspace"], "private.txt"),
        }
        targets = choose_targets(scene, forbidden, CONTEXT / "files" / "attacker.py", listeners)
        targets["processes"]["the steward"] = scene.root.pid
        tries = scene.attack(
            scene.task("    subagent_network: off\n"),
            *GROUPS,
            context_paths=["src"],
            targets=targets,
        ).tries
        assert listeners.heard == [], f"heard: {listeners.heard}"
        scene.root.stop()  # it writes below the project while it runs
    return tries


def attack_bubblewrap(scene: Scene, who: str) -> Tries:
    """Return what a program tried that bubblewrap was told to lend the same folder."""
    _, wrapper = STEWARDS[who]
    place = scene.root.path / "sandbox"  # the snapshots leave out what is below the root
    system, workspace, others = (place / each for each in ("etc", "workspace", "other"))
    for folder in (place, system, workspace, others):
        folder.mkdir()
        os.chown(folder, scene.who.uid, -1)
    scene.write(others / "private.txt", "mine")
    # A copy: as root, an attempt that got out could write the machine's own.
    for each in ("passwd", "group", "ld.so.cache"):
        shutil.copy(Path("/etc", each), system)
    attacker = scene.project / "attacker.py"
    with closing(Listeners(scene.place)) as listeners:
        forbidden = {"another's file": others / "private.txt", "another's folder": others}
        targets = choose_targets(scene, forbidden, Path("/context/attacker.py"), listeners)
        targets |= {"groups": GROUPS, "root": str(scene.root.path)}
        argv = [
            *(*scene.who.prefix, *wrapper, "bwrap", "--unshare-all", "--die-with-parent"),
            *("--new-session", "--cap-drop", "ALL", "--uid", "65534", "--gid", "65534"),
            *("--ro-bind", "/usr", "/usr", "--ro-bind", system, "/etc"),
            *("--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib"),
            *("--symlink", "usr/lib64", "/lib64", "--symlink", "usr/sbin", "/sbin"),
            *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
            *("--ro-bind", attacker, "/context/attacker.py"),
            *("--ro-bind", scene.project / "src", scene.project / "src"),
            *("--bind", workspace, workspace, "--chdir", workspace, "--clearenv"),
            *("--setenv", "PATH", os.defpath, "--setenv", "RETINUE_WORKSPACE", workspace),
            *("--setenv", "RETINUE_LOGS", workspace, "--hostname", "sandbox"),
            *(PYTHON, "-I", "-S", "/context/attacker.py", json.dumps(targets)),
        ]
        own = {"PATH": os.defpath, "HOME": str(scene.home), "SECRET_KEY": scene.secrets["env"]}
        done = subprocess.run(
            [str(word) for word in argv],
            env=own,
            cwd=scene.project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, done.stderr
        heard = listeners.heard
    assert heard == [], f"heard: {heard}"
    tries: Tries = json.loads((workspace / "report.json").read_text())
    return tries


def choose_targets(
    scene: Scene, forbidden: dict[str, Path], copy: Path, listeners: Listeners
) -> dict[str, Any]:
    """Return what is attacked in either sandbox; `copy` is where the attacker finds itself."""
    forbidden = forbidden | {
        "the canary": scene.canary / "canary.txt",
        "the user's home": scene.home,
        "the user's key": scene.home / ".ssh" / "id_ed25519",
        "our environment": Path(f"/proc/{os.getpid()}/environ"),
        "root's home": Path("/root"),
        "logs": Path("/var/log"),
        "devices": Path("/sys"),
    }
    protected = {
        "a lent folder": scene.project / "src",
        "a lent file": scene.project / "src" / "main.py",
        "its context": copy,
        "the system": Path("/etc/passwd"),
    }
    return {
        "forbidden": {name: str(path) for name, path in forbidden.items()},
        "protected": {name: str(path) for name, path in protected.items()},
        "mounts": ["/usr", "/", "/proc", str(scene.project / "src")],
        "processes": {"us": os.getpid()},
        **listeners.targets(),
    }


def _run_tests(file: Path, row: Row, seconds: float) -> None:
    words = [sys.executable, "-m", "pytest", "--color=no", "-rf", str(file)]
    try:
        done = subprocess.run(
            words, cwd=TESTS.parent, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        row.note("did not end in time")
        return
    lines = done.stdout.splitlines()
    totals = {word: int(number) for number, word in TOTALS.findall(lines[-1] if lines else "")}
    row.tried += totals.get("passed", 0) + totals.get("failed", 0)
    row.figures = f"{totals.get('skipped', 0)} not possible here"
    failed = [line[:300] for line in lines if line.startswith(("FAILED", "ERROR"))]
    for line in failed:
        row.note(line)
    if done.returncode and not failed:
        row.note(f"pytest ended with {done.returncode}: {done.stdout[-300:]}")


CAMPAIGN = Campaign(
    promise="An isolated child reaches nothing outside of its workspace, contexts and models.",
    rounds=1,
    unit="pass over all attempts and tests",
    run=run,
    left_out="other sandboxes than bubblewrap, and bubblewrap with --disable-userns or a list of "
    "system calls",
)
