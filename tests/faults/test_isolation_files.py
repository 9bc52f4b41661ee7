"""What an isolated child sees of the disk, what it can change there, and what it leaves."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from retinue.child.namespaces import lacks_mount_right
from retinue.core.errors import BadInput
from support.roots import command, held, sh, until
from support.scenes import SOURCE, USERS, Attack, Scene, needs_python, staged
from support.traces import processes_that_mention

pytestmark = needs_python

# Through a symbolic link of its own, these change the link and not what it leads to.
ON_THE_LINK_ITSELF = (
    *("rename ", "replace ", "replace where it lies ", "unlink ", "move away ", "hard link "),
)
CONTEXT = Path("/var/retinue/context")  # where an isolated child finds what it was given
SYSTEM = {"bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "opt", "usr"}
OF_ITS_OWN = {"dev", "home", "proc", "run", "tmp", "var"}


@pytest.fixture(scope="module")
def sibling(scene: Scene) -> Iterator[tuple[str, Path]]:
    """Another subagent's marker and workspace, while it works."""
    marker = f"sibling-{os.getpid()}-{scene.who.name}"
    task = scene.task()
    (name,) = scene.root.spawn(task, sh(f": {marker}; echo mine > private.txt; sleep 100"))
    workspace = scene.root.folder(task, name) / "workspace"
    until((workspace / "private.txt").exists)
    yield marker, workspace
    scene.root.call("subagent.cancel", task=task, subagent=name, kill=True)


@pytest.fixture(scope="module")
def alone(scene: Scene, sibling: tuple[str, Path]) -> Attack:
    """What a child could do that was given nothing."""
    root = scene.root.path
    forbidden = {
        "the canary": scene.canary / "canary.txt",
        "the canary's folder": scene.canary,
        "the sibling": sibling[1],
        "the sibling's file": sibling[1] / "private.txt",
        "the project": scene.project / "src" / "main.py",
        "the database": root / "retinue.db",
        "the socket": root / "steward.sock",
        "the steward's log": root / "steward.log",
        "the user's home": scene.home,
        "the user's key": scene.home / ".ssh" / "id_ed25519",
        "the steward's environment": Path(f"/proc/{scene.root.pid}/environ"),
        "our own home": Path.home(),
        "root's home": Path("/root"),
        "homes": Path("/home"),
        "logs": Path("/var/log"),
        "services": Path("/run"),
        "devices": Path("/sys"),
    }
    targets = {"forbidden": {name: str(path) for name, path in forbidden.items()}}
    return scene.attack(scene.task(), "looking", "reading", targets=targets)


@pytest.mark.requirement("R78", "R146")
def test_nothing_outside_its_own_tree_can_be_read(alone: Attack) -> None:
    worked = {name: value for name, value in alone.worked("read ").items() if value != []}
    assert not worked, worked


@pytest.mark.requirement("R175")
def test_only_the_system_and_empty_folders_are_to_be_seen(alone: Attack) -> None:
    assert set(alone.value("top")) <= SYSTEM | OF_ITS_OWN
    mine = str(alone.folder) + "/"
    assert {path for path in alone.value("everything below the root") if mine not in path} == set()


@pytest.mark.parametrize("place", ["/dev/shm", "/var/tmp"])
def test_a_root_among_temporary_files_works_like_any_other(place: str) -> None:
    with staged(USERS[0], place) as scene:
        scene.start()
        script = "echo mine > made; cat made ../../../../../../src/main.py; ls -A /tmp"
        brief = sh(script, context_paths=["./src"])
        before = sorted(os.listdir("/tmp"))
        (result,) = scene.root.run(scene.task(), brief, cwd=str(scene.project))
        inside = [scene.place.name] if place == "/var/tmp" else []
        assert result["answer"].split() == ["mine", "print('project')", *inside]
        assert scene.place.name not in set(os.listdir("/tmp")) - set(before)


@pytest.mark.parametrize("linked", ["the root", "the project"])
def test_a_root_behind_a_link_works_like_any_other(tmp_path: Path, linked: str) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    link = project
    if linked == "the root":
        project.mkdir()
        link = project / ".retinue"
    link.symlink_to(elsewhere)
    (project / "given").write_text("given")
    brief = sh("echo mine > made; cat made $RETINUE_CONTEXT/paths/*", context_paths=["given"])
    with held(project / ".retinue") as root:
        task = root.call("task.create", title="t")["task_id"]
        (result,) = root.run(task, brief, cwd=str(project))
        assert (result["status"], result["answer"]) == ("completed", "mine\ngiven")
        assert Path(result["workspace"], "made").read_text() == "mine\n"
        root.sound()


def test_a_program_that_only_a_link_leads_to_is_told_of(scene: Scene) -> None:
    program, way = scene.project / "program", scene.place / "way"
    scene.write(program, "#!/bin/sh\necho ran\n", 0o755)
    way.symlink_to(scene.project)
    for named, said in ((program, "ran"), (way / "program", "without links on the way")):
        brief = command(str(named), context_paths=[str(named)])
        (result,) = scene.root.run(scene.task(), brief, cwd=str(scene.project))
        assert said in (result["answer"] or result["error"])


@pytest.mark.requirement("R175")
def test_of_a_project_only_the_named_path_is_there(scene: Scene) -> None:
    script = f"cat {scene.project}/src/main.py; ls -A {scene.project}"
    brief = sh(script, context_paths=["src/main.py"])
    (result,) = scene.root.run(scene.task(), brief, cwd=str(scene.project))
    assert set(result["answer"].split()) == {"print('project')", "src", ".retinue"}


def test_the_temporary_folders_are_its_own(scene: Scene) -> None:
    there = Path("/tmp", f"retinue-mark-{os.getpid()}")
    script = f"echo mine > {there}; echo mine > /dev/shm/{there.name}; ls /var/tmp/{there.name}"
    first, second = scene.root.run(scene.task(), sh(script), sh(f"ls {there} || echo none"))
    assert first["answer"].strip() == f"/var/tmp/{there.name}"
    assert second["answer"].strip() == "none"
    assert not there.exists()
    assert not Path("/dev/shm", there.name).exists()


def test_neither_what_files_hold_nor_how_many_they_are_fills_the_memory(scene: Scene) -> None:
    script = "stat --file-system --format '%b %S %c' /tmp /dev/shm /dev"
    (result,) = scene.root.run(scene.task(), sh(script))
    found = [tuple(map(int, line.split())) for line in result["answer"].splitlines()]
    sizes = [(blocks * size, files) for blocks, size, files in found]
    assert sizes == [(1 << 30, 1 << 20), (1 << 30, 1 << 20), (1 << 24, 1 << 14)]


@pytest.mark.requirement("R173")
def test_no_secret_of_the_steward_can_be_found(alone: Attack, scene: Scene) -> None:
    assert alone.value("secrets") == []
    shown = str(alone.tries)
    assert not [secret for secret in scene.secrets.values() if secret in shown]


def test_no_secret_of_the_steward_is_written_anywhere(alone: Attack, scene: Scene) -> None:
    secrets = [secret.encode() for secret in scene.secrets.values()]
    below = [path for path in scene.root.path.rglob("*") if path.suffix != ".new"]  # being written
    written = [path for path in below if path.is_file() and not path.is_symlink()]
    assert scene.root.path / "retinue.db" in written
    holding = [path for path in written for each in secrets if each in path.read_bytes()]
    assert not holding
    with closing(sqlite3.connect(f"file:{scene.root.path}/retinue.db?mode=ro", uri=True)) as rows:
        dumped = "\n".join(rows.iterdump())
    assert not [each for each in secrets if each.decode() in dumped]


def test_no_secret_of_the_steward_is_in_a_process_that_it_started(
    scene: Scene, sibling: tuple[str, Path]
) -> None:
    assert processes_that_mention(sibling[0]), "the sibling is at work"
    for secret in scene.secrets.values():
        assert set(processes_that_mention(secret)) <= {scene.root.pid}


def test_its_environment_is_what_it_was_given(alone: Attack) -> None:
    given = alone.value("environment")
    ours = {name for name in given if not name.startswith("RETINUE_")}
    assert ours <= {"PATH", "HOME", "LANG", "TMPDIR", "PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}
    assert (given["HOME"], given["TMPDIR"]) == ("/tmp", "/tmp")
    assert {name for name in given if name.startswith("RETINUE_")} == {
        *("RETINUE_SUBAGENT_ID", "RETINUE_TASK_ID", "RETINUE_ATTEMPT", "RETINUE_WORKSPACE"),
        *("RETINUE_CONTRACT", "RETINUE_BRIEF", "RETINUE_CONTEXT", "RETINUE_LOGS"),
        *("RETINUE_ANSWER", "RETINUE_FINAL"),
    }


# -- what it was given to read


@pytest.fixture(scope="module")
def lent(scene: Scene) -> tuple[Attack, dict[str, Any], dict[str, Any]]:
    """An attack on a project that was given whole; the project before and after."""
    private = scene.project / "private"
    private.mkdir(mode=0o700)
    os.chown(private, scene.who.uid, -1)
    scene.write(private / "notes.txt", "for its owner alone", mode=0o600)
    task, name = scene.task(), "burglar"
    folder = scene.root.folder(task, name)
    main = scene.project / "src" / "main.py"
    protected = {
        **{"a context": scene.project, "a context's file": main, "a private file": private},
        **{"the canary": scene.canary, "the canary's file": scene.canary / "canary.txt"},
        **{"the root": scene.root.path, "its task": folder.parents[1], "its folder": folder},
        **{"its contract": folder / "contract.json", "its brief": folder / "runtime/brief.txt"},
        **{"its contexts": CONTEXT, "its copy": CONTEXT / "files/attacker.py"},
        **{"its runtime": folder / "runtime", "the system": Path("/etc/passwd")},
        **{"programs": Path("/usr/bin"), "links": Path("/var"), "homes": Path("/home")},
    }
    targets = {
        "protected": {each: str(path) for each, path in protected.items()},
        "writable": {"workspace": str(folder / "workspace"), "logs": str(folder / "full_logs")},
        "readable": {
            **{"the project": str(scene.project), "a file": str(main)},
            **{"a private file": str(private / "notes.txt")},
            **{"by its context": str(CONTEXT / "paths/src/main.py")},
        },
        "forbidden": {"the database": str(scene.root.path / "retinue.db")},
        "mounts": [str(scene.project), str(CONTEXT), "/usr", "/", "/proc"],
    }
    before = snapshot(scene)
    groups = ("reading", "writing", "leaving")
    terms = {"context_paths": ["./"], "subagent_id": name, "targets": targets}
    return scene.attack(task, *groups, **terms), before, snapshot(scene)


def snapshot(scene: Scene) -> dict[str, Any]:
    """Content, mode, owner, times and marks of everything a child was not given to write."""
    found: dict[str, Any] = {}
    tops = (scene.project, scene.canary, scene.home)
    for path in (path for top in tops for path in (top, *top.rglob("*"))):
        if scene.root.path in (path, *path.parents):
            continue
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        marks = {name: os.getxattr(path, name) for name in os.listxattr(path)}
        about = (status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns)
        found[str(path)] = (*about, status.st_nlink, status.st_ctime_ns, content, marks)
    return found


@pytest.mark.requirement("R215", "R272", "R78", "R100")
def test_nothing_but_its_workspace_and_logs_can_be_changed(lent: Any) -> None:
    attack, before, after = lent
    worked = {
        name: value
        for name, value in attack.tries.items()
        if value["ok"]
        and not name.startswith(("see ", "read ", "use ", "everything", "secrets"))
        and not (name.endswith("by a symbolic link") and name.startswith(ON_THE_LINK_ITSELF))
        and "the canary" not in name  # where that lies there is a folder of its own: see `after`
    }
    assert not worked, worked
    assert after == before
    assert attack.worked("use ") == {"use workspace": "written", "use logs": "written"}


@pytest.mark.requirement("R174", "R178")
def test_what_was_given_is_there_even_if_only_its_owner_may_read_it(
    scene: Scene, lent: Any
) -> None:
    attack, _, _ = lent
    assert {"src", "private", "attacker.py"} <= set(attack.value("see the project"))
    if scene.who.uid == 0 and lacks_mount_right():  # which mapping the owner takes
        assert not attack.worked("see a private file")
    else:
        assert attack.value("see a private file") == len("for its owner alone")
    assert attack.value("see a file") == attack.value("see by its context")


def test_a_project_is_given_without_its_root(lent: Any) -> None:
    attack, _, _ = lent
    assert not attack.worked("read the database")
    mine = str(attack.folder) + "/"
    assert {path for path in attack.value("everything below the root") if mine not in path} == set()
    assert attack.value("secrets") == []


def test_no_way_leads_out_of_its_namespaces(lent: Any) -> None:
    attack, _, _ = lent
    ways = ("unshare", "clone", "enter", "chroot", "pivot", "mount", "bind", "remount", "unmount")
    others = ("make ", "open_tree", "fsopen", "bpf", "perf", "userfault", "add_key", "keyctl")
    final = ("init_module", "sethostname", "settimeofday", "swapon", "write core", "raise ")
    tried = {name: each for name, each in attack.tries.items() if name.startswith(ways)}
    assert len(tried) > 30
    assert not attack.worked(*ways, *others, *final)


def test_a_socket_elsewhere_is_out_of_reach(lent: Any, scene: Scene) -> None:
    attack, _, _ = lent
    assert not attack.worked("bind a socket in ")
    assert not (scene.project / "planted-socket").exists()


def test_the_whole_machine_cannot_be_lent(scene: Scene) -> None:
    with pytest.raises(BadInput, match=r"context path './' is the whole machine") as refused:
        scene.root.run(scene.task(), sh("true", context_paths=["./"]), cwd="/")
    assert refused.value.code == "invalid_context"


def test_the_boundary_is_never_built_around_a_process_that_is_not_its_first() -> None:
    """In mount namespaces of its own, so that a broken guard harms only the process that tries."""
    program = """
import errno, pathlib, sys
sys.path.insert(0, sys.argv[1])
from retinue.child.control_protocol import Order
from retinue.child.sandbox import build, prepare_root
mounts = pathlib.Path("/proc/self/mountinfo")
before = mounts.read_text()
for step in (prepare_root, lambda: build(Order(readable=("/usr",), writable=()), "/tmp")):
    try:
        step()
    except OSError as fault:
        print(errno.errorcode[fault.errno], fault.strerror)
print(mounts.read_text() == before)
"""
    apart = ["unshare", "--map-root-user", "--mount", sys.executable, "-I", "-c", program]
    said = subprocess.run([*apart, SOURCE], capture_output=True, text=True, timeout=30)
    refused = "EPERM not in a mount namespace of its own"
    assert said.stdout.splitlines() == [refused, refused, "True"]
