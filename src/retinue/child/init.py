"""The process a foreign command runs under: init of all that the command starts.

When it ends, nothing of the command is left, and `exit.json` in the runtime folder says how it
went. It needs nobody: it keeps the deadline itself and outlives the steward that started it.

This is a script of its own (`python -I -S init.py CONTAINMENT LABEL`), never imported: a fresh
interpreter is on the path of every launch, so it takes builtins and two small extensions and
leaves out what would double its start (enum through signal, json, the Python half of ctypes).
For the same reason it spells the JSON of its record by hand; `wire/ending.py` reads it.

On the control socket, file descriptor 3:
    in   8 bytes of length, the marshalled order; later GO, or end of file if the steward is gone
    out  one line: `pid N`, `unavailable WHY` or `error WHY`; after GO `+`, or `-WHY`; then closed
"""

# ruff: noqa: SIM105  contextlib alone would cost a third of the start

import _signal  # type: ignore[import-not-found]
import errno
import marshal
import posix
import select
import sys
import time
from _ctypes import FUNCFLAG_CDECL, FUNCFLAG_USE_ERRNO, CFuncPtr, dlopen, dlsym, get_errno

CONTROL = 3
GO = b"g"
CHUNK = 65536
RECORD_BYTES = 4096
KILL_AGAIN_MS = 50
LONGEST_POLL_MS = 3_600_000
DEFAULT_PATH = b"/usr/bin:/bin"

NEW_MOUNTS, NEW_USER, NEW_PIDS, KEEP_PARENT = 0x20000, 0x10000000, 0x20000000, 0x8000
NO_NAMESPACES = (
    *(errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOENT),
    *(errno.ENOSYS, errno.ENOSPC, errno.EUSERS),
)
SYS_CLONE3, SYS_CLOSE_RANGE = 435, 436  # the same numbers on every architecture
MS_NOSUID_NODEV_NOEXEC, MS_REC_SLAVE = 0x2 | 0x4 | 0x8, 0x4000 | 0x80000
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
LIBC = dlopen(None, 2)  # type: ignore[arg-type]  # None: what is loaded already


class _Function(CFuncPtr):
    _flags_ = FUNCFLAG_CDECL | FUNCFLAG_USE_ERRNO


def call(name: str, *arguments: int | bytes | None) -> int:
    """The result of a function of the C library; OSError where it says less than zero."""
    result: int = _Function(dlsym(LIBC, name))(*arguments)
    if result < 0:
        raise OSError(get_errno(), posix.strerror(get_errno()))
    return result


def explain(fault: Exception, name: bytes) -> str:
    """`ENOENT: no such file or directory: 'nope'`."""
    code = getattr(fault, "errno", None) or errno.EINVAL
    said = posix.strerror(code) if isinstance(fault, OSError) else str(fault)
    shown = name[:200].decode("utf-8", "replace")
    return f"{errno.errorcode.get(code, code)}: {said[:1].lower()}{said[1:]}: {shown!r}"


def json_value(value: str | int | list[str] | None) -> str:
    if isinstance(value, str):
        escaped = (f"\\u{ord(c):04x}" if c < " " or c in '"\\' else c for c in value)
        return '"' + "".join(escaped) + '"'
    if isinstance(value, list):
        return "[" + ", ".join(map(json_value, value)) + "]"
    return "null" if value is None else str(value).lower()  # True is an int, and true in JSON


# The control socket


class Order:
    """What the steward wants run; paths and words are bytes, as the kernel takes them."""

    attempt: int
    argv: list[bytes]
    environment: dict[bytes, bytes]
    workspace: bytes
    runtime_folder: bytes
    timeout_ms: int
    graces_ms: tuple[int, int]
    output_limit_bytes: int

    def __init__(self, fields: dict[str, object]) -> None:
        self.__dict__.update(fields)


def receive(size: int) -> bytes:
    """So many bytes of the steward; fewer once it is gone."""
    data = bytearray()
    try:
        while len(data) < size and (more := posix.read(CONTROL, min(size - len(data), 1 << 20))):
            data += more
    except OSError:
        pass  # it went without having read what we said
    return bytes(data)


def tell(text: str) -> None:
    try:
        posix.write(CONTROL, text.encode("utf-8", "replace"))
    except OSError:
        pass  # the steward is gone; whoever comes after it reads the record


class Alerts:
    """Signals to this process: each wakes a poll of `source`; a request to stop is remembered."""

    def __init__(self) -> None:
        self.stop_asked = False
        self.source, self.sink = posix.pipe2(posix.O_CLOEXEC | posix.O_NONBLOCK)
        _signal.set_wakeup_fd(self.sink, warn_on_full_buffer=False)
        for number in (_signal.SIGTERM, _signal.SIGINT, _signal.SIGCHLD):
            _signal.signal(number, self.note)

    def note(self, number: int, frame: object) -> None:
        self.stop_asked = self.stop_asked or number != _signal.SIGCHLD


# Containment


def enter_containment(kind: str) -> None:
    """Nothing this process starts can outlive it, and the steward knows its number.

    In a namespace that process is a clone, which belongs to the steward directly, and the one
    that was started ends here.
    """
    if kind == "subreaper":
        call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        tell(f"pid {posix.getpid()}\n")
        return
    try:
        pid = clone_into_namespaces()
    except OSError as fault:
        word = "unavailable" if fault.errno in NO_NAMESPACES else "error"
        tell(f"{word} {explain(fault, b'clone')}\n")
        posix._exit(1)
    if pid:
        tell(f"pid {pid}\n")
        posix._exit(0)
    try:
        call("mount", None, b"/", None, MS_REC_SLAVE, None)
        call("mount", b"proc", b"/proc", b"proc", MS_NOSUID_NODEV_NOEXEC, None)
    except OSError:
        pass  # containment holds without it; only the command's own `ps` shows the host's numbers


def clone_into_namespaces() -> int:
    """0 in the clone, its number in the original."""
    if posix.geteuid() == 0:
        try:
            return clone(NEW_PIDS | NEW_MOUNTS | KEEP_PARENT)
        except PermissionError:
            pass  # root without capabilities, as in most containers: like any other user
    uid, gid = posix.geteuid(), posix.getegid()
    call("unshare", NEW_USER)
    overwrite("/proc/self/setgroups", "deny")
    overwrite("/proc/self/uid_map", f"{uid} {uid} 1")
    overwrite("/proc/self/gid_map", f"{gid} {gid} 1")
    return clone(NEW_PIDS | NEW_MOUNTS | KEEP_PARENT)


def clone(flags: int) -> int:
    # struct clone_args: flags first; no exit signal, KEEP_PARENT takes over our own SIGCHLD.
    return call("syscall", SYS_CLONE3, flags.to_bytes(8, sys.byteorder) + bytes(56), 64)


def overwrite(path: str, text: str) -> None:
    file = posix.open(path, posix.O_WRONLY | posix.O_CLOEXEC)
    try:
        posix.write(file, text.encode())
    finally:
        posix.close(file)


def descendants() -> list[int]:
    """Everyone below this process, by the parents that /proc names."""
    below: dict[bytes, list[bytes]] = {}
    for name in posix.listdir(b"/proc"):
        try:
            file = posix.open(b"/proc/" + name + b"/stat", posix.O_RDONLY | posix.O_CLOEXEC)
        except OSError:
            continue  # not a process, or gone
        try:
            fields = posix.read(file, CHUNK).rpartition(b")")[2].split()
            below.setdefault(fields[1], []).append(name)
        except (OSError, IndexError):
            pass  # gone while it was read
        finally:
            posix.close(file)
    found: list[bytes] = []
    unseen = [b"%d" % posix.getpid()]
    while unseen:
        children = below.get(unseen.pop(), [])
        found += children
        unseen += children
    return [int(pid) for pid in found]


# Output


class Log:
    """One output stream of the command, kept in a file up to a limit and discarded beyond it."""

    def __init__(self, folder: int, name: str, limit: int) -> None:
        self.source, self.sink = posix.pipe2(posix.O_CLOEXEC)
        posix.set_blocking(self.source, False)
        self.file = create(folder, f"{name}.log")
        self.limit = self.room = limit
        self.cut = self.over = False

    def copy(self, chunks: int) -> None:
        """What was readable has been read, without waiting, as far as so many chunks reach."""
        for _ in range(chunks):
            try:
                data = posix.read(self.source, CHUNK)
            except BlockingIOError:
                return
            if not data:
                self.over = True
                return
            if not self.cut:
                self.keep(data)

    def keep(self, data: bytes) -> None:
        try:
            write_all(self.file, data[: self.room])
            if len(data) > self.room:
                self.cut = True
                write_all(self.file, b"\n[retinue: output cut at %d bytes]\n" % self.limit)
            self.room -= len(data)
        except OSError:
            self.cut = True  # a full disk must not hold up the command


def create(folder: int, name: str) -> int:
    """A new file for its owner alone; what an earlier attempt left under that name is gone."""
    try:
        posix.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC
    return posix.open(name, flags, 0o600, dir_fd=folder)


def write_all(file: int, data: bytes) -> None:
    while data:
        data = data[posix.write(file, data) :]


# The attempt


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Refused(Exception):
    """The command cannot be executed."""


def find(name: bytes, path: bytes) -> bytes:
    """Where a command is, in the folders of its own PATH, as a shell would look for it."""
    places = [] if b"/" in name else [folder + b"/" + name for folder in path.split(b":") if folder]
    existing = [place for place in places if posix.access(place, posix.F_OK)]
    files = [place for place in existing if not posix.access(place + b"/.", posix.F_OK)]
    usable = [place for place in files if posix.access(place, posix.X_OK)]
    return (usable or existing or [name])[0]


class Attempt:
    """One run of the command, from the gate to its record."""

    def __init__(self, order: Order, alerts: Alerts) -> None:
        self.order = order
        self.alerts = alerts
        self.alone = posix.getpid() == 1  # kill(-1) reaches all of ours and nobody else
        self.folder = posix.open(order.runtime_folder, posix.O_DIRECTORY | posix.O_CLOEXEC)
        self.paper = create(self.folder, "exit.json.new")
        write_all(self.paper, bytes(RECORD_BYTES))  # a command that fills the disk is recorded too
        self.poll = select.poll()
        self.poll.register(alerts.source, select.POLLIN)
        self.logs: dict[int, Log] = {}
        self.began = now_ms()
        self.main = 0
        self.status: int | None = None
        self.sent: list[str] = []

    def run(self) -> int:
        """The attempt is over and its record written; else the errno that prevented it."""
        refusal = self.wait_at_gate()
        if refusal:
            return self.record(refusal)
        self.began = now_ms()
        try:
            self.execute()
        except Refused as refused:
            failure = self.record("launch_failed", str(refused))
            tell(f"-{refused}")
            return failure
        tell("+")
        posix.close(CONTROL)
        kind = self.watch()
        for log in self.logs.values():
            log.copy(chunks=64)
        return self.record(kind)

    def wait_at_gate(self) -> str:
        """Empty once the steward said go; else how the attempt ends without having run."""
        self.poll.register(CONTROL, select.POLLIN)
        while CONTROL not in self.wait(None) and not self.alerts.stop_asked:
            pass
        self.poll.unregister(CONTROL)
        if self.alerts.stop_asked:
            return "stopped"
        return "" if receive(len(GO)) == GO else "never_ran"

    def execute(self) -> None:
        """The command runs in its workspace, in a session of its own."""
        order = self.order
        try:
            subject = order.runtime_folder
            logs = [
                Log(self.folder, name, order.output_limit_bytes) for name in ("stdout", "stderr")
            ]
            subject = order.workspace
            posix.chdir(order.workspace)
            subject = order.argv[0]
            self.main = posix.posix_spawn(
                find(subject, order.environment.get(b"PATH", DEFAULT_PATH)),
                order.argv,
                order.environment,
                file_actions=[
                    (posix.POSIX_SPAWN_OPEN, 0, b"/dev/null", posix.O_RDONLY, 0),
                    (posix.POSIX_SPAWN_DUP2, logs[0].sink, 1),
                    (posix.POSIX_SPAWN_DUP2, logs[1].sink, 2),
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=_signal.valid_signals(),
            )
        except (OSError, ValueError) as fault:
            raise Refused(explain(fault, subject)) from fault
        for log in logs:
            posix.close(log.sink)
            self.logs[log.source] = log
            self.poll.register(log.source, select.POLLIN)

    def watch(self) -> str:
        """No process of the attempt is left; what ended it."""
        kind, due = "", self.began + self.order.timeout_ms
        first, second = self.order.graces_ms
        rungs = [("SIGINT", first), ("SIGTERM", second), ("SIGKILL", KILL_AGAIN_MS)]
        while self.reap():
            now = now_ms()
            if not kind:
                if self.status is not None:
                    kind, due, rungs = "exited", now, rungs[2:]
                elif self.alerts.stop_asked:
                    kind, due = "stopped", now
                elif now >= due:
                    kind = "deadline"
            if kind and now >= due:
                name, grace = rungs[0]
                rungs = rungs[1:] or rungs
                self.signal_all(name)
                due = now + grace
            self.wait(due - now)
        return kind or "exited"

    def reap(self) -> bool:
        """Whether any process of the attempt is left."""
        while True:
            try:
                pid, status = posix.waitpid(-1, posix.WNOHANG)
            except ChildProcessError:
                return False
            if pid == self.main:
                self.status = status
            if pid == 0:
                return True

    def signal_all(self, name: str) -> None:
        """Every process of the attempt has the signal, and is awake to take it."""
        if name not in self.sent:
            self.sent.append(name)
        everyone = [-1] if self.alone else descendants()
        for number in (getattr(_signal, name), _signal.SIGCONT):
            for pid in everyone:
                try:
                    posix.kill(pid, number)
                except OSError:
                    pass  # gone, or no longer ours to signal

    def wait(self, timeout_ms: int | None) -> set[int]:
        """What is ready to be read; output that was ready has been kept."""
        bounded = None if timeout_ms is None else min(max(timeout_ms, 0), LONGEST_POLL_MS)
        ready = {file for file, _ in self.poll.poll(bounded)}
        if self.alerts.source in ready:
            posix.read(self.alerts.source, CHUNK)
        for source in ready & self.logs.keys():
            self.logs[source].copy(chunks=16)
            if self.logs[source].over:
                self.poll.unregister(source)
        return ready

    def fail(self) -> int:
        """The record, and init.log, tell of a fault of our own; no process is left."""
        error = f"init failed: {sys.exc_info()[1]!r}"
        try:
            posix.dup2(create(self.folder, "init.log"), 2)
            sys.excepthook(*sys.exc_info())
        except OSError:
            pass
        while self.reap():
            self.signal_all("SIGKILL")
            time.sleep(KILL_AGAIN_MS / 1000)
        if not self.main:
            tell(f"-{error}")
        return self.record("lost" if self.main else "launch_failed", error)

    def record(self, kind: str, error: str = "") -> int:
        """0 with exit.json complete and in its place; else the errno that prevented it."""
        code = None if self.status is None else posix.waitstatus_to_exitcode(self.status)
        fields: dict[str, str | int | list[str] | None] = {
            "attempt": self.order.attempt,
            "kind": kind,
            "exit_code": code if code is not None and code >= 0 else None,
            "signal": -code if code is not None and code < 0 else None,
            "signals_sent": self.sent if kind != "exited" else [],
            "duration_ms": now_ms() - self.began if self.main else 0,
            "error": error[:1000],
        }
        for name, log in zip(("stdout_cut", "stderr_cut"), self.logs.values(), strict=False):
            fields[name] = log.cut
        text = ", ".join(f'"{name}": {json_value(value)}' for name, value in fields.items())
        data = ("{" + text + "}\n").encode("utf-8", "replace")
        here = self.folder
        try:
            posix.lseek(self.paper, 0, 0)
            write_all(self.paper, data)
            posix.ftruncate(self.paper, len(data))
            posix.rename("exit.json.new", "exit.json", src_dir_fd=here, dst_dir_fd=here)
        except OSError as fault:
            return fault.errno or errno.EIO
        return 0


def close_strangers() -> None:
    """Nothing is open but the standard three and the control socket."""
    try:
        call("syscall", SYS_CLOSE_RANGE, CONTROL + 1, 0x7FFFFFFF, 0)
    except OSError:
        posix.closerange(CONTROL + 1, posix.sysconf("SC_OPEN_MAX"))


def main() -> None:
    close_strangers()
    posix.set_inheritable(CONTROL, False)
    alerts = Alerts()  # before there is a clone: init of a namespace is deaf to what it expects not
    enter_containment(sys.argv[1])
    call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)  # the command may not rewrite what will be recorded
    size = int.from_bytes(receive(8), sys.byteorder)
    data = receive(size)
    if not size or len(data) < size:
        posix._exit(0)  # no order, no attempt: the steward only asked what is possible, or is gone
    order = Order(marshal.loads(data))
    try:
        attempt = Attempt(order, alerts)
    except OSError as fault:
        tell("-" + explain(fault, order.runtime_folder))
        posix._exit(fault.errno or errno.EIO)
    try:
        failure = attempt.run()
    except Exception:
        failure = attempt.fail()
    posix._exit(failure)  # without the interpreter's own farewell, which costs 2 ms


if __name__ == "__main__":
    main()
