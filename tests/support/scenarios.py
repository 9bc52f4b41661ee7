"""Stories that need a file system of their own, told inside a private mount namespace.

Run as a program: `python -m support.scenarios NAME FOLDER`; prints what happened as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from retinue.client.blocking_client import Client
from retinue.core.errors import RetinueError
from support.roots import Root, Row, command, held, holder, python, sh, until
from support.traces import processes_that_mention

TESTS = Path(__file__).parents[1]


def tell(name: str, folder: Path, *prefix: str, bound_s: float = 60) -> Row:
    """What a story came to, told by a process that was started with this prefix."""
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        done = subprocess.run(
            [*prefix, sys.executable, "-m", "support.scenarios", name, str(folder)],
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=bound_s,
        )
    except subprocess.TimeoutExpired:
        if (pid := holder(folder / ".retinue")) is not None:
            os.kill(pid, signal.SIGKILL)
        raise
    assert done.returncode == 0, done.stdout + done.stderr
    story: Row = json.loads(done.stdout)
    return story


def mounted(folder: Path, mounts: str) -> list[str]:
    """A prefix for whom these commands have been run before; `$folder` is its own."""
    script = f'set -e; folder="$1"; shift; {mounts}; exec "$@"'
    alone = ["unshare", "-Urm", "--propagation", "private"]
    return [*alone, "sh", "-c", script, "sh", str(folder)]


def powerless() -> list[str]:
    """A prefix for whom modes of files hold, although the user may be root."""
    drop = ["setpriv", "--bounding-set=-all,+setfcap", "--inh-caps=-all,+setfcap"]
    return drop if os.geteuid() == 0 else []


def one(folder: Path) -> Row:
    """A child does one thing."""
    with held(folder / ".retinue") as root:
        (result,) = root.run(root.create_task(), command("echo", "ok"))
        return result


def full_disk(folder: Path, *, kill: bool = False) -> Row:
    """A child fills the disk; somebody makes room; everything goes on."""
    with held(folder / ".retinue") as root:
        task = root.create_task()
        (kept,) = root.run(task, sh("echo kept", subagent_id="kept"))
        root.spawn(task, sh("cat /dev/zero > filler; echo full", subagent_id="filler"))
        until(lambda: os.statvfs(folder).f_bavail == 0)
        story: Row = {"refused": _refusal(root, task, "refused")}
        story["while full"] = root.call("subagent.result", task=task, subagent="kept") == kept
        if kill:
            root.kill()
            story["start"] = _start(root)
        os.unlink(root.folder(task, "filler") / "workspace" / "filler")
        until(lambda: root.rows(task)["filler"]["state"] == "closed")
        story["after"] = root.call("subagent.result", task=task, subagent="kept") == kept
        story["filler"] = root.call("subagent.result", task=task, subagent="filler")
        story["next"] = root.run(task, command("echo", "ok"))[0]["status"]
        until(lambda: root.events(task)[-1]["type"] == "agent.subagent_closed")
        story["problems"] = root.call("verify")["problems"]
        story["subagents"] = sorted(root.rows(task))
        return story


def full_disk_and_killed(folder: Path) -> Row:
    return full_disk(folder, kill=True)


def full_disk_and_cancelled(folder: Path) -> Row:
    """A child that fills the disk is stopped by its name, and one beside it with its task."""
    with held(folder / ".retinue") as root:
        task = root.create_task()
        root.spawn(task, sh("sleep 60", subagent_id="other"))
        root.spawn(task, sh("cat /dev/zero > filler; sleep 60", subagent_id="one"))
        until(lambda: os.statvfs(folder).f_bavail == 0)
        story: Row = {
            "one": _told(lambda: root.call("subagent.cancel", task=task, subagent="one")),
            "other": _told(lambda: root.call("task.cancel", task=task)),
        }
        until(lambda: not processes_that_mention(str(root.task_folder(task))))
        os.unlink(root.folder(task, "one") / "workspace" / "filler")
        until(lambda: {row["state"] for row in root.rows(task).values()} == {"closed"})
        story["ends"] = [root.rows(task)[name]["status"] for name in ("one", "other")]
        story["problems"] = root.call("verify")["problems"]
        return story


def few_inodes(folder: Path) -> Row:
    """A child uses up every name there is."""
    with held(folder / ".retinue") as root:
        task = root.create_task()
        (kept,) = root.run(task, sh("echo kept", subagent_id="kept"))
        script = "import os, time\ntry:\n    for n in range(10**6): os.mkdir(str(n))\n"
        script += "except OSError: time.sleep(60)"
        root.spawn(task, python(script, subagent_id="filler"))
        until(lambda: os.statvfs(folder).f_ffree == 0)
        story: Row = {"refused": _refusal(root, task, "refused")}
        workspace = root.folder(task, "filler") / "workspace"
        for path in workspace.iterdir():
            path.rmdir()
        root.call("subagent.cancel", task=task, subagent="filler", kill=True)
        story["after"] = root.call("subagent.result", task=task, subagent="kept") == kept
        story["next"] = root.run(task, command("echo", "ok"))[0]["status"]
        story["problems"] = root.call("verify")["problems"]
        return story


def read_only(folder: Path) -> Row:
    """A root becomes read-only, and is read-only while nobody holds it."""
    with held(folder / ".retinue") as root:
        task = root.create_task()
        (kept,) = root.run(task, sh("echo kept", subagent_id="kept"))
        before = root.counts()
        _mount("--bind", str(folder), str(folder))  # over one that its files are open in
        _mount("-o", "remount,ro,bind", str(folder))
        checks = root.call("doctor")["checks"]
        root.kill()
        story: Row = {"refused": _start(root)}
        story["ill"] = [check["name"] for check in checks if not check["ok"]]
        _mount("-o", "remount,rw,bind", str(folder))
        story["after"] = root.call("subagent.result", task=task, subagent="kept") == kept
        story["same"] = root.counts() == before
        story["next"] = root.run(task, command("echo", "ok"))[0]["status"]
        story["problems"] = root.call("verify")["problems"]
        return story


def locked(folder: Path) -> Row:
    """The database, and then a log, may not be written by the one whose they are."""
    with held(folder / ".retinue") as root:
        task = root.create_task()
        (kept,) = root.run(task, sh("echo kept", subagent_id="kept"))
        log = root.task_folder(task) / "events.jsonl"
        before, lines = root.counts(), log.read_bytes()
        log.chmod(0o400)
        story: Row = {"log": _refusal(root, task, "refused")}
        log.chmod(0o600)
        root.stop()
        (root.path / "retinue.db").chmod(0o400)
        story["refused"] = _start(root)
        (root.path / "retinue.db").chmod(0o600)
        story["same"] = (root.counts(), log.read_bytes()) == (before, lines)
        story["after"] = root.call("subagent.result", task=task, subagent="kept") == kept
        story["next"] = root.run(task, command("echo", "ok"))[0]["status"]
        story["problems"] = root.call("verify")["problems"]
        return story


def locked_out(folder: Path) -> Row:
    """Children take everybody's permissions from the folders that they are given."""
    killed = 'echo precious > "$RETINUE_ANSWER"; chmod 0 "$RETINUE_LOGS"; kill -9 $$'
    again = """if [ $RETINUE_ATTEMPT = 2 ]; then echo so; exit; fi
        echo x > "$RETINUE_LOGS/note"; chmod 0 "$RETINUE_LOGS" "$RETINUE_WORKSPACE"; exit 1"""
    with held(folder / ".retinue") as root:
        task = root.create_task()
        results = root.run(
            task,
            sh(killed, subagent_id="killed"),
            sh(again, subagent_id="again", max_retries=1),
            sh('chmod 0 "$RETINUE_WORKSPACE"; echo ok', subagent_id="empty"),
            sh("echo x > file; echo ok", subagent_id="full"),
        )
        (root.folder(task, "full") / "workspace").chmod(0)
        attempts = root.folder(task, "again") / "runtime" / "attempts"
        story: Row = {each["subagent_id"]: each for each in results}
        story["first attempt"] = (attempts / "1" / "full_logs" / "note").read_text()
        root.call("task.close", task=task)
        for name, force in (("gc", False), ("gc --force", True)):
            swept = root.call("gc", force=force)
            story[name] = [[each["subagent"], each["reason"]] for each in swept["kept"]]
        story["left"] = [each["workspace"] for each in results if Path(each["workspace"]).exists()]
        story["problems"] = root.call("verify")["problems"]
        return story


def open_umask(folder: Path) -> Row:
    """Everything is done by a user whose files are open to all; who may read what is left?"""
    os.umask(0)
    temporary = set(os.listdir("/tmp"))
    os.environ["XDG_STATE_HOME"] = str(folder / "state")  # which the tests have in /tmp
    (folder / "given").write_text("context")
    with held(folder / ".retinue") as root:
        task = root.create_task()
        given = {"context_paths": ["given"], "context_files": ["given"]}
        root.run(task, sh("mkdir -p a/b; echo x > a/b/c; echo ok", **given), cwd=str(folder))
        root.run(task, sh("exit 1", max_retries=1))
        asks = """[ $RETINUE_ATTEMPT = 2 ] && echo so && exit
            printf '{"status":"blocked","questions":["?"]}' > "$RETINUE_FINAL" """
        root.run(task, sh(asks, subagent_id="asking"))
        root.call("subagent.continue", task=task, subagent="asking", message="so")
        until(lambda: root.rows(task)["asking"]["state"] != "running")
        root.call("task.join", task=task)
        until(lambda: (root.task_folder(task) / "status.json").exists())
        return {"modes": _modes(root.path), "new": sorted(set(os.listdir("/tmp")) - temporary)}


def _modes(top: Path) -> dict[str, str]:
    """The mode of every path, links left out."""
    found = {".": _mode(top)}
    for folder, folders, files in os.walk(top):
        for name in [*folders, *files]:
            path = Path(folder, name)
            if not path.is_symlink():
                found[str(path.relative_to(top))] = _mode(path)
    return found


def _mode(path: Path) -> str:
    status = path.lstat()
    kind = "folder" if stat.S_ISDIR(status.st_mode) else "file"
    return f"{kind} {stat.S_IMODE(status.st_mode):04o}"


def _refusal(root: Root, task: str, name: str) -> Row:
    return _told(lambda: root.run(task, command("echo", "never", subagent_id=name)))


def _told(act: Callable[[], object]) -> Row:
    """The error that it ends with, if it does."""
    try:
        act()
    except RetinueError as error:
        return {"code": error.code, "message": error.message, "kind": type(error).__name__}
    return {"code": "none"}


def _start(root: Root) -> Row:
    """Why no steward can be had, if none can."""
    try:
        with closing(Client(root.path)):
            return {"code": "none"}
    except RetinueError as error:
        return {"code": error.code, "message": error.message, "kind": type(error).__name__}


def _mount(*words: str) -> None:
    """Mounted so, as soon as no process of a killed steward writes there any more."""
    until(lambda: subprocess.run(["mount", *words], capture_output=True).returncode == 0)


STORIES: dict[str, Callable[[Path], Row]] = {
    each.__name__: each
    for each in (
        *(one, full_disk, full_disk_and_killed, full_disk_and_cancelled, few_inodes, read_only),
        *(locked, locked_out),
        open_umask,
    )
}

if __name__ == "__main__":
    print(json.dumps(STORIES[sys.argv[1]](Path(sys.argv[2]))))
