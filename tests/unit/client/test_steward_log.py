"""The log of a steward stays small, whatever happens while it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from retinue.client.steward_log import LOG, MAX_LOG, LogStream, open_log

LINE = "x" * 999 + "\n"


def fill(diary: LogStream) -> None:
    for _ in range(3 * MAX_LOG // len(LINE)):
        diary.write(LINE)
    print("the last word", file=diary, flush=True)


def test_a_log_that_grows_while_its_steward_runs_begins_anew(tmp_path: Path) -> None:
    descriptor = open_log(tmp_path)
    os.write(descriptor, b"an earlier steward's\n")
    fill(LogStream(tmp_path, descriptor))
    os.close(descriptor)
    assert sorted(path.name for path in tmp_path.iterdir()) == [LOG, f"{LOG}.1"]
    assert all(0 < path.stat().st_size <= MAX_LOG for path in tmp_path.iterdir())
    assert (tmp_path / LOG).read_text().endswith("\nthe last word\n")


def test_a_process_that_inherited_the_log_writes_to_it_after_rotation(tmp_path: Path) -> None:
    descriptor = open_log(tmp_path)
    script = "import sys; sys.stdin.read(); sys.stderr.write('of another process\\n')"
    command = [sys.executable, "-I", "-S", "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=descriptor) as other:
        fill(LogStream(tmp_path, descriptor))
        other.communicate(timeout=20)
    os.close(descriptor)
    assert (tmp_path / LOG).read_text().endswith("\nthe last word\nof another process\n")
    assert "of another" not in (tmp_path / f"{LOG}.1").read_text()


def test_a_log_that_is_found_large_is_the_earlier_one(tmp_path: Path) -> None:
    (tmp_path / LOG).write_text("the first word\n" + LINE * (2 * MAX_LOG // len(LINE)) + "last\n")
    os.close(open_log(tmp_path))
    assert (tmp_path / LOG).read_text() == ""
    earlier = (tmp_path / f"{LOG}.1").read_text()
    assert len(earlier) == MAX_LOG and earlier.endswith("\nlast\n")


def test_where_the_earlier_log_cannot_be_kept_it_is_emptied_all_the_same(tmp_path: Path) -> None:
    descriptor = open_log(tmp_path)
    (tmp_path / LOG).unlink()
    fill(LogStream(tmp_path, descriptor))
    assert 0 < os.fstat(descriptor).st_size <= MAX_LOG
    os.close(descriptor)


def test_text_that_cannot_be_encoded_is_still_written(tmp_path: Path) -> None:
    descriptor = open_log(tmp_path)
    print("\ud800", file=LogStream(tmp_path, descriptor))
    os.close(descriptor)
    assert (tmp_path / LOG).read_text() == "\\ud800\n"
