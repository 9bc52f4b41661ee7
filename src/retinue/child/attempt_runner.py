"""Run of one attempt by its init, from GO to the exit record.

The init does not depend on the steward: it keeps the deadline itself and outlives the steward
that started it. When it ends, no process of the command is left, and `exit.json` in the runtime
folder holds the result.
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

from retinue.child.control_protocol import EXECUTED, GO, Control, Order
from retinue.child.execute import CannotExecute, Work, describe_error, execute
from retinue.child.gateway_socket import Listener
from retinue.child.namespaces import list_descendants
from retinue.child.pending_signals import PendingSignals
from retinue.child.resource_limits import Cgroup, find_reached_cgroup_limit, find_reached_limit
from retinue.child.seccomp import RefusedCalls

CHUNK = 65536
KEPT_END = 2000  # bytes of each log, by which reached limits are recognized


class Log:
    """One output stream of the command; what exceeds the limit is discarded."""

    def __init__(
        self, folder: int, name: str, limit: int, redacted: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        """Args: redacted: texts that must not be written, longest first, and what stands there."""
        self.source, self.sink = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.source, False)
        self.file = create(folder, name)
        self.limit = self.left = limit
        self.cut = self.over = False
        self.end = b""
        self._redacted = redacted
        self._held = b""  # the last bytes, while they may be the start of a redacted text

    def copy(self, chunks: int) -> None:
        """Read up to so many chunks without blocking.

        The bound keeps a command that prints without pause from delaying its own deadline.
        """
        for _ in range(0 if self.over else chunks):
            try:
                data = os.read(self.source, CHUNK)
            except BlockingIOError:
                return
            if not data:
                self.over = True
                return
            if self._redacted:
                data = self._redact(data)
            self.end = (self.end + data[-KEPT_END:])[-KEPT_END:]
            if not self.cut:
                self._keep(data)

    def finish(self) -> None:
        """Write what was held back; nothing more will be read."""
        if self._held and not self.cut:
            self._keep(self._held)
        self._held = b""

    def _redact(self, data: bytes) -> bytes:
        """Return the data that can be written now, with redacted texts replaced."""
        data = self._held + data
        for text, mark in self._redacted:
            data = data.replace(text, mark)
        # A text may be split between two reads: hold back what could be its start.
        cut = min(_find_start(data, text) for text, _ in self._redacted)
        self._held = data[cut:]
        return data[:cut]

    def _keep(self, data: bytes) -> None:
        try:
            write_all(self.file, data[: self.left])
            if len(data) > self.left:
                self.cut = True
                write_all(self.file, b"\n[retinue: output cut at %d bytes]\n" % self.limit)
            self.left -= len(data)
        except OSError:
            # On a full disk the output is discarded: the command must not block.
            self.cut = True


def _find_start(data: bytes, text: bytes) -> int:
    """Return where the end of the data begins that is also the start of the text."""
    at = data.find(text[:1], max(0, len(data) - len(text) + 1))
    while at >= 0 and not text.startswith(data[at:]):
        at = data.find(text[:1], at + 1)
    return len(data) if at < 0 else at


def create(folder: int, name: str) -> int:
    """Create a file for its owner alone, in place of one that an earlier attempt left."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(name, flags, 0o600, dir_fd=folder)
    except FileExistsError:
        os.unlink(name, dir_fd=folder)
        return os.open(name, flags, 0o600, dir_fd=folder)


def write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


KILL_AGAIN_MS = 50
QUIET_MS = 5  # most short commands end within this time
RECORD_SPACE = bytes(4096)  # space that is allocated for the exit record
LONGEST_POLL_MS = 3_600_000
# A machine that was suspended counts CLOCK_BOOTTIME on, but not the timeout of a poll.
LEASE_POLL_MS = 1_000
LEASE_OVER = "its lease ran out: the node that ran it lost touch with its hub"


def read_clock_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class AttemptRunner:
    """One run of the command."""

    def __init__(
        self,
        order: Order,
        control: Control,
        folder: int,
        signals: PendingSignals,
        listener: Listener | None = None,
        work: Work | None = None,
        cgroup: Cgroup | None = None,
    ) -> None:
        self._order = order
        self._cgroup = cgroup
        self._work = work
        self._listener = listener
        self._control = control
        self._folder = folder
        # Allocated before the command runs: one that fills the disk must be recorded, too.
        self._record_file = create(folder, "exit.json.new")
        write_all(self._record_file, RECORD_SPACE)
        # Opened before the boundary hides the runtime folder, in which both lie.
        self._lease = os.open(order.lease, os.O_RDONLY | os.O_CLOEXEC) if order.lease else -1
        self._input = os.open(order.stdin, os.O_RDONLY | os.O_CLOEXEC) if order.stdin else -1
        self._lease_over = False
        self._signals = signals
        self._signal_source = signals.open()
        self._poll = select.poll()
        self._poll.register(self._signal_source, select.POLLIN)
        if listener is not None:
            self._poll.register(listener.door, select.POLLIN)
        self._logs: dict[int, Log] = {}
        self._began = read_clock_ms()
        self._main = 0
        self._status: int | None = None
        self._cpu_s, self._peak_kb = 0.0, 0  # sum of reaped processes; the largest of them
        self._sent: list[str] = []
        self.executed = False
        self._processes_at_end = 0  # number of processes when the end began
        self._refused: RefusedCalls | None = None

    def run(self) -> int:
        """Run the attempt and write its record; return 0, or the errno if that failed."""
        try:
            return self._run()
        except Exception as fault:
            return self._fail(fault)

    def record_never_ran(self) -> int:
        """Record that the steward was gone before the command could run."""
        return self._record("never_ran")

    def refuse(self, why: str, *, hopeless: bool = False) -> int:
        """Record why the command was not run, and tell the steward."""
        # The record comes first: a steward that hears of the failure may read it at once.
        failure = self._record("launch_failed", why, hopeless=hopeless)
        self._control.tell(f"-{why}")
        return failure

    def _run(self) -> int:
        refusal = self._wait_at_gate()
        if refusal:
            return self._record(refusal)
        self._began = read_clock_ms()
        try:
            self._execute()
        except CannotExecute as refused:
            return self.refuse(str(refused), hopeless=refused.hopeless)
        self._control.tell(EXECUTED)
        self.executed = True
        # While the command runs on, build a record and drop it. That copies the memory pages it
        # needs now, and not when the steward waits for the record.
        if not self._wait(QUIET_MS):
            self.to_exit_record("exited")
        kind = self._watch()
        # All writers are gone: what is left in the pipes is the last output.
        for log in self._logs.values():
            log.copy(chunks=64)
            log.finish()
        return self._record(kind, LEASE_OVER if self._lease_over else "")

    def _wait_at_gate(self) -> str:
        """Wait for GO; return how the attempt ends if it must not run, else an empty string."""
        self._poll.register(self._control.source, select.POLLIN)
        ready: set[int] = set()
        while not (self._control.source in ready or self._signals.stop_asked):
            # Permission to run may end before GO comes.
            left = self._read_lease_left_ms()
            if left <= 0:
                break
            ready = self._wait(None if self._lease < 0 else left)
        self._poll.unregister(self._control.source)
        if self._signals.stop_asked:
            return "stopped"
        if self._read_lease_left_ms() <= 0:
            return "never_ran"
        return "" if self._control.receive(len(GO)) == GO else "never_ran"

    def _execute(self) -> None:
        limit = self._order.output_limit_bytes
        try:
            logs = [
                Log(self._folder, name, limit, self._order.redacted)
                for name in ("stdout.log", "stderr.log")
            ]
        except OSError as fault:
            raise CannotExecute(describe_error(fault, self._order.runtime_folder)) from fault
        streams = self._input, logs[0].sink, logs[1].sink
        self._main, refused = execute(self._order, streams, self._work, self._cgroup)
        if refused is not None:
            self._refused = refused
            self._poll.register(refused, select.POLLIN)
        for log in logs:
            os.close(log.sink)
            self._logs[log.source] = log
            self._poll.register(log.source, select.POLLIN)

    def _watch(self) -> str:
        """Wait until no process of the attempt is left, and return what ended it.

        At a stop or at the deadline: SIGINT, SIGTERM, SIGKILL, each after its grace period.
        Processes that outlive the command get SIGKILL at once, and so does everything when the
        lease is over: the work may be given to another machine from then on.
        """
        kind = ""
        due = self._began + self._order.timeout_ms
        after_int_ms, after_term_ms = self._order.graces_ms
        # Each signal with the time until the next. The last one repeats: a process that forks can
        # escape one round of SIGKILL.
        steps = [("SIGINT", after_int_ms), ("SIGTERM", after_term_ms), ("SIGKILL", KILL_AGAIN_MS)]
        while self._reap():
            now = read_clock_ms()
            left = self._read_lease_left_ms()
            if left <= 0 and not self._lease_over and kind != "exited":
                kind, due, steps = kind or "stopped", now, steps[-1:]
                self._lease_over = True
            if not kind:
                if self._status is not None:
                    kind = "exited"
                    due = now
                    steps = steps[-1:]
                elif self._signals.stop_asked:
                    kind, due = "stopped", now
                elif now >= due:
                    kind = "deadline"
                # Counted now, before signals thin them out, to tell whether the process limit
                # was reached. The command itself counts even if it was just reaped.
                if kind not in ("", "stopped") and self._status != 0:
                    self._processes_at_end = len(list_descendants()) + (self._status is not None)
            if kind and now >= due:
                name, grace = steps[0]
                steps = steps[1:] or steps
                self._signal_all(name)
                due = now + grace
            self._wait(min(due - now, left) if left > 0 else due - now)
        return kind or "exited"

    def _read_lease_left_ms(self) -> int:
        """Return for how long the attempt may run on, at most until the next look at its lease."""
        if self._lease < 0:
            return LONGEST_POLL_MS
        until_ms = int.from_bytes(os.pread(self._lease, 8, 0), "little")
        return min(until_ms - time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 10**6, LEASE_POLL_MS)

    def _reap(self) -> bool:
        """Reap all processes that ended; return whether any is left."""
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
        """Send a signal to every process of the attempt."""
        if name not in self._sent:
            self._sent.append(name)
        # In its own PID namespace, -1 means all other processes of the attempt, and no others.
        targets = [-1] if os.getpid() == 1 else list_descendants()
        # SIGCONT lets a stopped process handle the signal.
        for number in (getattr(signal, name), signal.SIGCONT):
            for pid in targets:
                with suppress(OSError):  # gone, or no longer ours to signal
                    os.kill(pid, number)

    def _wait(self, timeout_ms: int | None) -> set[int]:
        """Wait for events and handle them; return the descriptors that were ready."""
        bounded = None if timeout_ms is None else min(max(timeout_ms, 0), LONGEST_POLL_MS)
        events = self._poll.poll(bounded)
        ready = {file for file, _ in events}
        if self._refused is not None and self._refused.fileno() in ready:
            self._refuse(dict(events)[self._refused.fileno()])
        if self._listener is not None and self._listener.door.fileno() in ready:
            self._listener.answer()
        if self._signal_source in ready:
            self._signals.read_pending()
        for source in ready & self._logs.keys():
            self._logs[source].copy(chunks=16)
            if self._logs[source].over:
                self._poll.unregister(source)
        return ready

    def _refuse(self, event: int) -> None:
        """Answer one refused system call; stop listening once no process can make another."""
        if self._refused is None:
            return
        if not event & select.POLLIN or not self._refused.answer():
            self._poll.unregister(self._refused)
            self._refused.close()

    def _fail(self, fault: Exception) -> int:
        """Kill the attempt and record an internal error, with its traceback in init.log."""
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

    def _find_limit(self, kind: str, code: int | None) -> str:
        if kind not in ("exited", "deadline") or code is None:
            return ""
        # What the kernel counted for the cgroup is proof; the rest is a guess by symptoms.
        if self._cgroup is not None and code != 0:
            killed = self._cgroup.processes_killed()
            forks_refused = self._cgroup.forks_refused()
            if reached := find_reached_cgroup_limit(
                self._order.limits, killed=killed, forks_refused=forks_refused
            ):
                return reached
        _, stderr = self._logs.values()
        return find_reached_limit(
            self._order.limits,
            code,
            peak_kb=self._peak_kb,
            processes=self._processes_at_end,
            said=stderr.end if kind == "exited" else b"",
        )

    def to_exit_record(self, kind: str, error: str = "", *, hopeless: bool = False) -> bytes:
        """Return the content of exit.json."""
        code = None if self._status is None else os.waitstatus_to_exitcode(self._status)
        cut = [log.cut for log in self._logs.values()] or [False, False]
        record = {
            "attempt": self._order.attempt,
            "kind": kind,
            "exit_code": code if code is not None and code >= 0 else None,
            "signal": -code if code is not None and code < 0 else None,
            "signals_sent": self._sent if kind != "exited" else [],
            "duration_ms": read_clock_ms() - self._began if self._main else 0,
            "peak_kb": self._peak_kb,
            "cpu_ms": round(self._cpu_s * 1000),
            "stdout_cut": cut[0],
            "stderr_cut": cut[1],
            "limit": self._find_limit(kind, code),
            "refused_calls": self._refused.by_name() if self._refused is not None else {},
            "error": error[:1000],
            "hopeless": hopeless,
        }
        return json.dumps(record).encode() + b"\n"

    def _record(self, kind: str, error: str = "", *, hopeless: bool = False) -> int:
        """Write exit.json; return 0, or the errno if that failed."""
        data = self.to_exit_record(kind, error, hopeless=hopeless)
        here = self._folder
        try:
            os.lseek(self._record_file, 0, os.SEEK_SET)
            write_all(self._record_file, data)
            os.ftruncate(self._record_file, len(data))
            # A command without a sandbox can remove permissions from this folder.
            if os.fstat(here).st_mode & 0o700 != 0o700:
                os.fchmod(here, 0o700)
            # A reader finds a complete record or none.
            os.rename("exit.json.new", "exit.json", src_dir_fd=here, dst_dir_fd=here)
        except OSError as fault:
            return fault.errno or errno.EIO
        return 0
