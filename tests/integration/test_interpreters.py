"""What children are cloned from runs on every Python that is here and new enough."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
NAMES = [f"python3.{minor}" for minor in range(11, 20)]
CLONES = """
import os, sys
sys.path.insert(0, sys.argv[1])
from retinue.child import syscalls
from retinue.child.fork_server import warm_up
warm_up(first_free=20)
for _ in range(3):  # a clone of a clone, too
    if (pid := syscalls.clone(0)) == 0:
        inner = syscalls.clone(0)
        os._exit(7 if inner == 0 else os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]))
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
LASTS = """
import gc, os, re, sys
sys.path.insert(0, sys.argv[1])
import argparse, json
from retinue.child.fork_server import make_objects_immortal
def copied():
    gc.disable()
    known = gc.get_objects()
    source, sink = os.pipe()
    if os.fork() == 0:
        for one in known:
            pass
        told = open("/proc/self/smaps_rollup").read()
        os.write(sink, re.search(r"Private_Dirty: +(\\d+)", told)[1].encode())
        os._exit(0)
    return int(os.read(source, 100))
before = copied()
lasting = make_objects_immortal()
print(sys.version_info.minor, lasting, before, copied())
"""


def interpreters() -> list[str]:
    """Those on the PATH, and those that are installed beside ours or kept by pyenv."""
    kept = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    places = (Path(sys.base_prefix).parent, kept)
    beside = [each for name in NAMES for at in places for each in at.glob(f"*/bin/{name}")]
    named = [Path(found) for name in NAMES if (found := shutil.which(name))]
    return sorted({str(each.resolve()) for each in (*beside, *named) if _runs(each)})


def _runs(interpreter: Path) -> bool:
    """Not every name leads to one: a manager of versions has a name for each that it knows."""
    done = subprocess.run([interpreter, "-I", "-S", "-c", ""], capture_output=True, check=False)
    return done.returncode == 0


def test_a_clone_is_a_working_interpreter() -> None:
    for interpreter in interpreters():
        words = [interpreter, "-I", "-S", "-c", CLONES, str(SOURCE)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert (done.stdout.split(), done.stderr) == (["7"] * 3, ""), interpreter


def test_a_clone_copies_few_pages_that_it_only_reads() -> None:
    for interpreter in interpreters():
        words = [interpreter, "-I", "-S", "-c", LASTS, str(SOURCE)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, ""), interpreter
        minor, lasting, before_kb, after_kb = map(int, done.stdout.split())
        if minor < 12:
            assert lasting == 0, interpreter
        else:
            assert after_kb < before_kb / 2, (interpreter, done.stdout)
