"""Run as the first process of a PID namespace: gives a dead child's number to an innocent one.

    unshare -Urpf --mount-proc python reuse.py ROOT

Prints what became of both, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.reader import Reader
from support.roots import Root, sh, until

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


def gone(pid: int) -> bool:
    """As the first process of the namespace we inherit its orphans, and must reap them."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return not Path("/proc", str(pid)).exists()


def start_innocent(pid: int) -> subprocess.Popen[bytes]:
    """A process with exactly this number."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        LAST_PID.write_text(str(pid - 1))
        innocent = subprocess.Popen(["sleep", "60"])
        if innocent.pid == pid:
            return innocent
        innocent.kill()
        innocent.wait()
    raise AssertionError(f"{pid} could not be had again")


def main() -> dict[str, Any]:
    root = Root(Path(sys.argv[1]))
    task = root.create_task()
    root.spawn(task, sh("echo kept > up; exec sleep 60", subagent_id="one"))
    until((root.folder(task, "one") / "workspace" / "up").exists)
    pid = Reader(root.path).attempts(task, "one")[0]["pid"]
    steward = root.pid
    root.release()
    for each in (steward, pid):
        os.kill(each, signal.SIGKILL)
        until(lambda each=each: gone(each))  # type: ignore[misc]
    innocent = start_innocent(pid)
    root.call("subagent.wait_all", task=task, timeout_seconds=20)
    Reader(root.path).check(finished=True)
    row = root.rows(task)["one"]
    result = root.call("subagent.result", task=task, subagent="one")
    told = {
        "innocent_lives": innocent.poll() is None,
        "status": row["status"],
        "close_reason": row["close_reason"],
        "kept": (Path(result["workspace_path"]) / "up").read_text(),
    }
    innocent.kill()
    root.stop()
    return told


if __name__ == "__main__":
    print(json.dumps(main()))
