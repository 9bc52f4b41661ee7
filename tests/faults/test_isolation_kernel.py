"""What the kernel refuses an isolated child: calls in no list, leases, limits, quotas, secrets."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from retinue.child.allowed_syscalls import ALLOWED, REFUSED
from support.roots import python, sh, until
from support.scenes import Scene, needs_python, staged

pytestmark = needs_python

CALLS = """
import ctypes, errno, json, os
libc = ctypes.CDLL(None, use_errno=True)
found = {}
for name, number in %r.items():
    libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6)
    found[name] = errno.errorcode.get(ctypes.get_errno(), "?")
print(json.dumps(found))
"""
COLUMN = 1 if os.uname().machine == "aarch64" else 0
# Calls of kernels before and after the list was written; none of them is in it.
UNLISTED = {"listmount": 458, "statmount": 457, "open_tree_attr": 467, "later": 999}
UNLISTED |= {"io_uring_setup": 425, "clone3": 435, "openat2": 437}


def tried(scene: Scene, numbers: dict[str, int]) -> dict[str, Any]:
    (result,) = scene.root.run(scene.task(), python(CALLS % numbers))
    assert result["status"] == "completed", result
    return {"result": result, **json.loads(result["answer"])}


def run(scene: Scene, script: str, **terms: Any) -> Any:
    """What the script prints as JSON, and its result under `result`."""
    (result,) = scene.root.run(scene.task(), python(script, **terms), cwd=str(scene.project))
    assert result["status"] == "completed", result
    return json.loads(result["answer"]) | {"result": result}


# -- system calls


@pytest.mark.requirement("R107")
def test_calls_that_delegated_work_does_not_need_are_refused_and_reported_once(
    scene: Scene,
) -> None:
    numbers = {name: row[COLUMN] for name, row in REFUSED.items() if row[COLUMN] is not None}
    said = tried(scene, numbers)
    assert {said[name] for name in numbers} == {"EPERM"}
    warning = said["result"]["warning"]
    assert warning.startswith("its boundary refused system calls: ")
    assert warning.count("(") == 10, "the ten most frequent"


def test_calls_in_no_list_do_not_exist_and_are_not_reported(scene: Scene) -> None:
    said = tried(scene, UNLISTED)
    assert {said[name] for name in UNLISTED} == {"ENOSYS"}
    assert "warning" not in said["result"]


def test_refused_calls_are_counted(scene: Scene) -> None:
    script = "import ctypes; [ctypes.CDLL(None).ptrace(16, 1, 0, 0) for _ in range(7)]; print('ok')"
    (result,) = scene.root.run(scene.task(), python(script))
    assert result["answer"].strip() == "ok"
    assert result["warning"] == "its boundary refused system calls: ptrace (7)"


def test_a_flood_of_refused_calls_costs_its_first_process_little(scene: Scene) -> None:
    script = (
        "import ctypes\nc = ctypes.CDLL(None)\nfor _ in range(200_000): c.ptrace(16, 1, 0, 0)\n"
    )
    (result,) = scene.root.run(scene.task(), python(script + "print('through')"))
    assert result["answer"].strip() == "through"
    assert result["warning"] == "its boundary refused system calls: ptrace (1000)"


def test_a_flood_does_not_keep_a_child_from_its_deadline(scene: Scene) -> None:
    script = "import ctypes, os\nc = ctypes.CDLL(None)\nwhile True:\n c.ptrace(16, 1, 0, 0)"
    (result,) = scene.root.run(scene.task(), python(script, timeout_seconds=1))
    assert result["status"] == "timeout"


def test_each_call_is_in_one_list_under_its_own_number() -> None:
    for column in (0, 1):
        rows = [*ALLOWED.values(), *REFUSED.values()]
        numbers = [row[column] for row in rows if row[column] is not None]
        assert len(numbers) == len(set(numbers))
    assert not ALLOWED.keys() & REFUSED.keys()


# -- its first process


LIMITS = """
import json, os, resource
found = {}
for name in ("FSIZE", "NOFILE", "DATA", "NPROC", "CORE"):
    try:
        resource.prlimit(1, getattr(resource, "RLIMIT_" + name), (0, 0))
        found[name] = "done"
    except OSError as fault:
        found[name] = fault.errno
acts = {
    "nice": lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),
    "nice of its group": lambda: os.setpriority(os.PRIO_PGRP, 1, 19),
    "nice of its user": lambda: os.setpriority(os.PRIO_USER, os.getuid(), 19),
    "processors": lambda: os.sched_setaffinity(1, {0}),
    "scheduler": lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)),
}
for name, act in acts.items():
    try:
        act()
        found[name] = "done"
    except OSError as fault:
        found[name] = fault.errno
pace = os.getpriority(os.PRIO_PROCESS, 0)  # which the steward may have been given by nice
os.setpriority(os.PRIO_PROCESS, 0, pace + 1)
os.sched_setaffinity(0, os.sched_getaffinity(0))
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
found["its own"] = [os.getpriority(os.PRIO_PROCESS, 0) - pace, soft - resource.getrlimit(7)[0]]
print(json.dumps(found))
"""


def test_a_child_cannot_change_the_limits_or_the_pace_of_its_first_process(scene: Scene) -> None:
    said = run(scene, LIMITS)
    assert said.pop("its own") == [1, 1]
    result = said.pop("result")
    assert set(said.values()) == {1}, said
    record = json.loads(Path(result["log_path"], "exit.json").read_text())
    assert record["kind"] == "exited"
    assert "system calls: " in result["warning"]


# -- locks on what is lent


LEASE = """
import errno, fcntl, json, os
file = os.open({path!r}, os.O_RDONLY)
found = {{}}
for name, command, value in (("lease", 1024, fcntl.F_RDLCK), ("delegation", 1040, 0)):
    try:
        fcntl.fcntl(file, command, value)
        found[name] = "taken"
    except OSError as fault:
        found[name] = errno.errorcode[fault.errno]
own = os.open("own", os.O_CREAT | os.O_RDWR)
fcntl.flock(own, fcntl.LOCK_EX)
fcntl.lockf(own, fcntl.LOCK_EX)
found["flags"] = fcntl.fcntl(own, fcntl.F_GETFL) != 0
print(json.dumps(found))
"""


def test_a_lent_file_cannot_be_leased(scene: Scene) -> None:
    path = scene.write(scene.project / "src" / "lent.txt", "lent", mode=0o644)
    said = run(scene, LEASE.format(path=str(path)), context_paths=["src"])
    assert (said["lease"], said["delegation"], said["flags"]) == ("EPERM", "EINVAL", True)


# -- what the kernel counts by user


QUOTAS = """
import ctypes, json, os, resource
libc = ctypes.CDLL(None)
kept = 0
while kept < 1000 and libc.inotify_init() >= 0:
    kept += 1
names = ("SIGPENDING", "MSGQUEUE", "MEMLOCK")
numbers = {"SIGPENDING": 11, "MSGQUEUE": 12, "MEMLOCK": 8}
limits = {name: resource.getrlimit(numbers[name])[1] for name in names}
with open("/proc/sys/user/max_user_namespaces") as file:
    namespaces = int(file.read())
print(json.dumps({"inotify": kept, "namespaces": namespaces, **limits}), flush=True)
"""


def test_a_child_leaves_its_user_enough_of_what_is_counted_by_user(scene: Scene) -> None:
    said = run(scene, QUOTAS)
    assert said["SIGPENDING"] <= 2048
    assert said["MSGQUEUE"] <= 256 * 1024
    assert said["MEMLOCK"] <= 1024 * 1024
    if scene.who.uid != 0:  # else it is a user of its own, whom nobody else needs
        assert said["inotify"] <= 16
        assert said["namespaces"] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="children of others are who their steward is")
def test_the_same_names_in_two_roots_are_two_users() -> None:
    uids = set()
    # Both roots exist at once: a root that is gone may leave its inode to the next one.
    with ExitStack() as roots:
        for _ in range(2):
            scene = roots.enter_context(staged("root"))
            assert json.loads(scene.start())["ready"]
            text = "orchestrator: {coordination: {subagent_min_timeout: 0.1}}\n"
            scene.root.call("task.create", task_id="same", title="t", config_text=text)
            brief = sh("id -u", subagent_id="same")
            (result,) = scene.root.run("same", brief)
            uids.add(result["answer"].strip())
            again = scene.root.call(
                "subagent.continue", task="same", subagent="same", message="more"
            )["subagent_id"]
            until(lambda name=again, held=scene: held.root.rows("same")[name]["state"] == "closed")
            more = scene.root.call("subagent.result", task="same", subagent=again)
            assert more["answer"].strip() == result["answer"].strip()
    assert len(uids) == 2


# -- what a child is shown of the machine


def test_files_of_the_kernel_that_tell_of_the_machine_are_empty(scene: Scene) -> None:
    names = "cmdline config.gz interrupts kallsyms keys kcore timer_list sysrq-trigger"
    script = f"cd /proc; for f in {names}; do [ -r $f ] && wc -c < $f; done; true"
    (result,) = scene.root.run(scene.task(), sh(script + "; cat cpuinfo meminfo stat | wc -l"))
    *masked, lines = result["answer"].split("\n")
    assert masked and set(masked) == {"0"}, result["answer"]
    assert int(lines) > 10


# -- the machine's crash handler


CRASH = "kill -SEGV $$"
HANDLER = """
import json, os, resource, signal, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
limit = resource.getrlimit(resource.RLIMIT_CORE)
print(json.dumps(list(limit)), flush=True)
"""


def test_the_core_limit_that_keeps_a_crash_handler_away_cannot_be_lowered(scene: Scene) -> None:
    (result,) = scene.root.run(scene.task(), python(HANDLER))
    assert result["status"] == "completed", result
    assert json.loads(result["answer"]) == [1, 1]
    assert "warning" not in result


def test_a_crash_leaves_no_core_file(scene: Scene) -> None:
    (result,) = scene.root.run(scene.task(), sh(CRASH))
    assert result["error"] == "killed by SIGSEGV"
    assert os.listdir(result["workspace"]) == []
