"""One attempt, from the gate to its record, watched by the first process of its namespace.

It needs nobody: it keeps the deadline itself and outlives the steward that
started it. When it ends, nothing of the command is left, and `exit.json` in the
runtime folder says how it went.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import sys
import time
from contextlib import suppress

from retinue.child.alerts import Alerts
from retinue.child.command import CannotExecute, Work, execute, explain
from retinue.child.containment import descendants
from retinue.child.control import EXECUTED, GO, Control
from retinue.child.limits import reached
from retinue.child.listening import Listener
from retinue.child.order import Order
from retinue.child.output import Log, create, write_all

KILL_AGAIN_MS = 50
QUIET_MS = 5  # in which a short command has ended
ROOM = bytes(4096)  # what a record may take
LONGEST_POLL_MS = 3_600_000


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Attempt:
    """One run of the command."""

    def __init__(
        self,
        order: Order,
        control: Control,
        folder: int,
        alerts: Alerts,
        listener: Listener | None = None,
        work: Work | None = None,
    ) -> None:
        self._order = order
        self._work = work
        self._listener = listener
        self._control = control
        self._folder = folder
        self._paper = create(folder, "exit.json.new")
        write_all(self._paper, ROOM)  # whoever fills the disk is recorded too
        self._alerts = alerts
        self._alarm = alerts.open()
        self._poll = select.poll()
        self._poll.register(self._alarm, select.POLLIN)
        if listener is not None:
            self._poll.register(listener.door, select.POLLIN)
        self._logs: dict[int, Log] = {}
        self._began = now_ms()
        self._main = 0
        self._status: int | None = None
        self._cpu_s, self._peak_kb = 0.0, 0  # of all its processes that are gone; of the largest
        self._sent: list[str] = []
        self.executed = False
        self._completed = False
        self._crowd = 0  # how many processes there were when its end began

    def run(self) -> int:
        """0 with the attempt over and its record written; else the errno that prevented it."""
        try:
            return self._run()
        except Exception as fault:
            return self._fail(fault)

    @property
    def completed(self) -> bool:
        """Whether it went the way of most, by itself and whole."""
        return self._completed and not self._alerts.stop_asked

    def let_go(self) -> None:
        """Nothing of it is held any more."""
        for log in self._logs.values():
            log.close()
        os.close(self._paper)
        os.close(self._folder)
        os.chdir("/")

    def give_up(self) -> int:
        """The record knows that the steward was gone before anything could be run."""
        return self._record("never_ran")

    def refuse(self, why: str, *, hopeless: bool = False) -> int:
        """The record, and the steward, know why nothing was run."""
        failure = self._record("launch_failed", why, hopeless=hopeless)
        self._control.tell(f"-{why}")
        return failure

    def _run(self) -> int:
        refusal = self._wait_at_gate()
        if refusal:
            return self._record(refusal)
        self._began = now_ms()
        try:
            self._execute()
        except CannotExecute as refused:
            return self.refuse(str(refused), hopeless=refused.hopeless)
        self._control.tell(EXECUTED)
        self.executed = True
        if not self._wait(QUIET_MS):
            self._told("exited")  # what telling takes is ours by the time that it is awaited
        kind = self._watch()
        for log in self._logs.values():
            log.copy(chunks=64)
        failure = self._record(kind)
        self._completed = kind == "exited" and not failure
        return failure

    def _wait_at_gate(self) -> str:
        """Empty once the steward said go; else how the attempt ends without having run."""
        self._poll.register(self._control.source, select.POLLIN)
        while self._control.source not in self._wait(None) and not self._alerts.stop_asked:
            pass
        self._poll.unregister(self._control.source)
        if self._alerts.stop_asked:
            return "stopped"
        return "" if self._control.receive(len(GO)) == GO else "never_ran"

    def _execute(self) -> None:
        limit = self._order.output_limit_bytes
        try:
            logs = [Log(self._folder, name, limit) for name in ("stdout.log", "stderr.log")]
        except OSError as fault:
            raise CannotExecute(explain(fault, self._order.runtime_folder)) from fault
        self._main = execute(self._order, logs[0].sink, logs[1].sink, self._work)
        for log in logs:
            os.close(log.sink)
            self._logs[log.source] = log
            self._poll.register(log.source, select.POLLIN)

    def _watch(self) -> str:
        """No process of the attempt is left; what ended it."""
        kind, due = "", self._began + self._order.timeout_ms
        first, second = self._order.graces_ms
        rungs = [("SIGINT", first), ("SIGTERM", second), ("SIGKILL", KILL_AGAIN_MS)]
        while self._reap():
            now = now_ms()
            if not kind:
                if self._status is not None:
                    kind, due, rungs = "exited", now, rungs[2:]
                elif self._alerts.stop_asked:
                    kind, due = "stopped", now
                elif now >= due:
                    kind = "deadline"
                # The first of them counts, even if it just ended; after a stop nobody asks.
                if kind not in ("", "stopped") and self._status != 0:
                    self._crowd = len(descendants()) + (self._status is not None)
            if kind and now >= due:
                name, grace = rungs[0]
                rungs = rungs[1:] or rungs
                self._signal_all(name)
                due = now + grace
            self._wait(due - now)
        return kind or "exited"

    def _reap(self) -> bool:
        """Whether any process of the attempt is left."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            self._cpu_s += usage.ru_utime + usage.ru_stime
            self._peak_kb = max(self._peak_kb, usage.ru_maxrss)
            if pid == self._main:
                self._status = status
            if pid == 0:
                return True

    def _signal_all(self, name: str) -> None:
        """Every process of the attempt has the signal, and is awake to take it."""
        if name not in self._sent:
            self._sent.append(name)
        # In a namespace of our own, -1 is all of ours and nobody else.
        everyone = [-1] if os.getpid() == 1 else descendants()
        for number in (getattr(signal, name), signal.SIGCONT):
            for pid in everyone:
                with suppress(OSError):  # gone, or no longer ours to signal
                    os.kill(pid, number)

    def _wait(self, timeout_ms: int | None) -> set[int]:
        """What is ready to be read; output that was ready has been kept."""
        bounded = None if timeout_ms is None else min(max(timeout_ms, 0), LONGEST_POLL_MS)
        ready = {file for file, _ in self._poll.poll(bounded)}
        if self._listener is not None and self._listener.door.fileno() in ready:
            self._listener.answer()
        if self._alarm in ready:
            self._alerts.hear()
        for source in ready & self._logs.keys():
            self._logs[source].copy(chunks=16)
            if self._logs[source].over:
                self._poll.unregister(source)
        return ready

    def _fail(self, fault: Exception) -> int:
        """The record, and init.log, tell of a fault of our own; no process is left."""
        error = f"init failed: {fault!r}"
        with suppress(OSError):
            os.dup2(create(self._folder, "init.log"), sys.stderr.fileno())
            sys.__excepthook__(type(fault), fault, fault.__traceback__)
        while self._reap():
            self._signal_all("SIGKILL")
            time.sleep(KILL_AGAIN_MS / 1000)
        if not self._main:
            self._control.tell(f"-{error}")
        return self._record("lost" if self._main else "launch_failed", error)

    def _limit(self, kind: str, code: int | None) -> str:
        if kind not in ("exited", "deadline") or code is None:
            return ""
        errors = [*self._logs.values()][1].end if kind == "exited" else b""
        peak_kb, crowd = self._peak_kb, self._crowd
        return reached(self._order.limits, code, peak_kb=peak_kb, processes=crowd, said=errors)

    def _told(self, kind: str, error: str = "", *, hopeless: bool = False) -> bytes:
        """What exit.json says of such an end."""
        code = None if self._status is None else os.waitstatus_to_exitcode(self._status)
        cut = [log.cut for log in self._logs.values()] or [False, False]
        record = {
            "attempt": self._order.attempt,
            "kind": kind,
            "exit_code": code if code is not None and code >= 0 else None,
            "signal": -code if code is not None and code < 0 else None,
            "signals_sent": self._sent if kind != "exited" else [],
            "duration_ms": now_ms() - self._began if self._main else 0,
            "peak_kb": self._peak_kb,
            "cpu_ms": round(self._cpu_s * 1000),
            "stdout_cut": cut[0],
            "stderr_cut": cut[1],
            "limit": self._limit(kind, code),
            "error": error[:1000],
            "hopeless": hopeless,
        }
        return json.dumps(record).encode() + b"\n"

    def _record(self, kind: str, error: str = "", *, hopeless: bool = False) -> int:
        """0 with exit.json complete and in its place; else the errno that prevented it."""
        data = self._told(kind, error, hopeless=hopeless)
        here = self._folder
        try:
            os.lseek(self._paper, 0, os.SEEK_SET)
            write_all(self._paper, data)
            os.ftruncate(self._paper, len(data))
            os.rename("exit.json.new", "exit.json", src_dir_fd=here, dst_dir_fd=here)
        except OSError as fault:
            return fault.errno or errno.EIO
        return 0
