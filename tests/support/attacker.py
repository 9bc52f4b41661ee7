"""A child that tries every way out it knows, and reports what worked.

Stands alone: run inside a boundary as `python3 -I -S attacker.py TARGETS`, where TARGETS is a
JSON object: `groups` names what to try, the rest says on what. It writes report.json into its
workspace: each try by its name, with `ok` and a value, or the error that stopped it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import re
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from typing import Any

WORKSPACE = os.environ["RETINUE_WORKSPACE"]
SECRET = re.compile(rb"hunter2-[0-9a-f]{16}")
NAMESPACES = {
    "mnt": 0x20000,
    "uts": 0x4000000,
    "ipc": 0x8000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "cgroup": 0x2000000,
    "time": 0x80,
}
CALLS = {  # number on x86_64, on aarch64
    "clone": (56, 220),
    "clone3": (435, 435),
    "unshare": (272, 97),
    "setns": (308, 268),
    "chroot": (161, 51),
    "pivot_root": (155, 41),
    "mount": (165, 40),
    "umount2": (166, 39),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "mount_setattr": (442, 442),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "io_uring_setup": (425, 425),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "openat2": (437, 437),
    "fchmodat2": (452, 452),
    "sethostname": (170, 161),
    "settimeofday": (164, 170),
    "swapon": (167, 224),
    "reboot": (169, 142),
}
AT_FDCWD = -100
INITIAL = {"user": 0xEFFFFFFD, "pid": 0xEFFFFFFC}  # numbers that every kernel gives its first ones

libc = ctypes.CDLL(None, use_errno=True)
report: dict[str, Any] = {}


def attempt(name: str, act: Callable[[], Any]) -> None:
    """The try is in the report, whatever came of it."""
    try:
        report[name] = {"ok": True, "value": act()}
    except OSError as fault:
        report[name] = {"ok": False, "error": errno.errorcode.get(fault.errno or 0, str(fault))}
    except Exception as fault:
        report[name] = {"ok": False, "error": repr(fault)}


def attempt_apart(name: str, act: Callable[[], Any]) -> None:
    """Try in a process of its own, so that what works there does not change later tries."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        attempt(name, act)
        os.write(theirs, json.dumps(report[name]).encode())
        os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as said:
        report[name] = json.loads(said.read() or b'{"ok": false, "error": "its process ended"}')
    os.waitpid(pid, 0)


def raw(name: str, *arguments: Any) -> int:
    """A system call by its number, past whatever the C library would do instead."""
    column = 1 if os.uname().machine == "aarch64" else 0
    widened = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = int(libc.syscall(CALLS[name][column], *widened))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def own(name: str) -> str:
    return os.path.join(WORKSPACE, name)


# -- reading


def routes(path: str) -> Iterator[tuple[str, str]]:
    """Ways to say the same path."""
    yield "its name", path
    yield "/proc/self/root", "/proc/self/root" + path
    yield "/proc/1/root", "/proc/1/root" + path
    yield "/proc/1/cwd", "/proc/1/cwd" + path
    yield "dots", os.path.join(WORKSPACE, *[".."] * 40) + path
    link = own(f"link-{len(report)}")
    os.symlink(path, link)
    yield "a symbolic link", link


def look(path: str) -> Any:
    if stat.S_ISDIR(os.stat(path).st_mode):
        return sorted(os.listdir(path))
    with open(path, "rb") as file:
        return len(file.read(65536))


def hard_link(path: str) -> str:
    os.link(path, own(f"hard-{len(report)}"))
    return "linked"


def by_handle(path: str) -> str:
    handle = ctypes.create_string_buffer(struct.pack("=Ii", 128, 0), 8 + 128)
    raw("name_to_handle_at", AT_FDCWD, os.fsencode(path), handle, ctypes.byref(ctypes.c_int()), 0)
    raw("open_by_handle_at", os.open("/", os.O_RDONLY), handle, os.O_RDONLY)
    return "opened"


def reading(targets: dict[str, Any]) -> None:
    for name, path in targets["forbidden"].items():
        for route, spelled in routes(path):
            attempt(f"read {name} by {route}", lambda spelled=spelled: look(spelled))
        attempt(f"read {name} by a hard link", lambda path=path: hard_link(path))
        attempt(f"read {name} by its handle", lambda path=path: by_handle(path))
    for name, path in targets.get("readable", {}).items():
        attempt(f"see {name}", lambda path=path: look(path))
    attempt("everything below the root", lambda: everything(targets["root"]))
    attempt("secrets", secrets)


def everything(top: str) -> list[str]:
    return [os.path.join(folder, each) for folder, _, files in os.walk(top) for each in files]


def secrets() -> list[str]:
    """Every file in sight that holds a secret, the system's own programs left out."""
    found = []
    skipped = {"/usr", "/opt", "/sys", "/lib", "/lib64"}
    for folder, folders, files in os.walk("/"):
        folders[:] = [each for each in folders if os.path.join(folder, each) not in skipped]
        for name in files:
            path = os.path.join(folder, name)
            try:
                if folder.startswith("/proc") and name not in {"environ", "cmdline", "mountinfo"}:
                    continue
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                with open(descriptor, "rb", buffering=0) as file:
                    if SECRET.search(file.read(1 << 20) or b""):
                        found.append(path)
            except OSError:
                continue
    return found


# -- writing


def writing(targets: dict[str, Any]) -> None:
    for name, path in targets["protected"].items():
        tries = into_folder if os.path.isdir(path) else into_file
        for route, spelled in routes(path):
            for what, act in tries(spelled).items():
                attempt(f"{what} {name} by {route}", act)
    for name, path in targets.get("writable", {}).items():
        attempt(f"use {name}", lambda path=path: put(os.path.join(path, "mine")))


def put(path: str, flags: int = os.O_CREAT, data: bytes = b"overwritten") -> str:
    file = os.open(path, os.O_WRONLY | flags, 0o644)
    os.write(file, data)
    os.close(file)
    return "written"


def into_folder(path: str) -> dict[str, Callable[[], Any]]:
    inside = os.path.join(path, "planted")
    return {
        "create in": lambda: put(inside),
        "make a folder in": lambda: os.mkdir(inside + "-folder"),
        "link in": lambda: os.symlink("/etc/passwd", inside + "-link"),
        "make a pipe in": lambda: os.mkfifo(inside + "-pipe"),
        "bind a socket in": lambda: socket.socket(socket.AF_UNIX).bind(inside + "-socket"),
        "make a nameless file in": lambda: os.open(path, os.O_TMPFILE | os.O_RDWR, 0o600),
        "change the mode of": lambda: os.chmod(path, 0o777),
        "take from": lambda: os.unlink(os.path.join(path, min(os.listdir(path)))),
        "rename": lambda: os.rename(path, path + "-moved"),
        "remove": lambda: os.rmdir(path),
    }


def into_file(path: str) -> dict[str, Callable[[], Any]]:
    fresh = own(f"fresh-{len(report)}")
    put(fresh)
    return {
        "write": lambda: put(path, 0),
        "append to": lambda: put(path, os.O_APPEND),
        "truncate": lambda: os.truncate(path, 0),
        "empty by opening": lambda: os.open(path, os.O_RDONLY | os.O_TRUNC),
        "chmod, then write": lambda: (os.chmod(path, 0o666), put(path, 0)),
        "chown": lambda: os.chown(path, os.getuid(), os.getgid()),
        "touch": lambda: os.utime(path, (1, 1)),
        "mark": lambda: os.setxattr(path, "user.mark", b"1"),
        "hard link": lambda: hard_link(path),
        "reopen": lambda: put(f"/proc/self/fd/{os.open(path, os.O_RDONLY)}", 0),
        "map": lambda: mapped(path),
        "make immutable": lambda: flagged(path),
        "mount over": lambda: raw("mount", fresh.encode(), path.encode(), b"", 0x1000, b""),
        "replace": lambda: os.rename(fresh, path),
        "replace where it lies": lambda: replaced_in_place(path),
        "unlink": lambda: os.unlink(path),
        "move away": lambda: os.rename(path, own("moved")),
    }


def replaced_in_place(path: str) -> None:
    put(path + ".new")
    os.rename(path + ".new", path)


def mapped(path: str) -> str:
    file = os.open(path, os.O_RDWR)
    with mmap.mmap(file, 1) as memory:
        memory[0:1] = b"!"
    return "mapped"


def flagged(path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    fcntl.ioctl(file, 0x40086602, struct.pack("l", 0x10))  # FS_IOC_SETFLAGS, immutable


# -- leaving


def leaving(targets: dict[str, Any]) -> None:
    for name, flag in NAMESPACES.items():
        attempt_apart(f"unshare {name}", lambda flag=flag: raw("unshare", flag))
        attempt_apart(f"clone into a new {name}", lambda flag=flag: cloned(flag))
        place = f"/proc/1/ns/{name}"
        attempt_apart(f"enter {name} of init", lambda place=place: entered(place))
    command = ["unshare", "-U"]
    attempt_apart("unshare user, as the C library does", lambda: subprocess.check_call(command))
    attempt_apart("clone3 into a new user", cloned_by_new_call)
    attempt_apart("chroot", lambda: raw("chroot", WORKSPACE.encode()))
    attempt_apart("pivot_root", lambda: raw("pivot_root", b".", b"."))
    place = WORKSPACE.encode()
    attempt_apart("mount tmpfs", lambda: raw("mount", b"t", place, b"tmpfs", 0, b""))
    attempt_apart("mount proc", lambda: raw("mount", b"p", place, b"proc", 0, b""))
    attempt_apart("bind /", lambda: raw("mount", b"/", place, b"", 0x5000, b""))
    for path in targets.get("mounts", []):
        spelled = path.encode()
        attempt_apart(
            f"remount {path}",
            lambda spelled=spelled: raw("mount", b"", spelled, b"", 0x1020, b""),
        )
        attempt_apart(f"unmount {path}", lambda spelled=spelled: raw("umount2", spelled, 2))
        change = struct.pack("=QQQQ", 0, 1, 0, 0)
        attempt_apart(
            f"make {path} writable",
            lambda spelled=spelled, change=change: raw(
                "mount_setattr", AT_FDCWD, spelled, 0, change, 32
            ),
        )
    attempt_apart("mount tmpfs in a user namespace of its own", mounted_in_own)
    attempt_apart("open_tree", lambda: raw("open_tree", AT_FDCWD, b"/", 1))
    attempt_apart("fsopen", lambda: raw("fsopen", b"tmpfs", 0))
    for name in ("bpf", "perf_event_open", "userfaultfd", "add_key", "keyctl", "init_module"):
        attempt_apart(name, lambda name=name: raw(name, 0, 0, 0, 0, 0))
    attempt_apart("sethostname", lambda: raw("sethostname", b"mine", 4))
    attempt_apart("settimeofday", lambda: raw("settimeofday", struct.pack("ll", 0, 0), None))
    attempt_apart("swapon", lambda: raw("swapon", b"/dev/null", 0))
    attempt_apart("write core_pattern", lambda: rewritten("/proc/sys/kernel/core_pattern"))
    attempt_apart("raise its limits", raised)


def rewritten(path: str) -> str:
    """Write what is there already: where this works, the file belongs to the machine."""
    file = os.open(path, os.O_WRONLY)
    with open(path, "rb") as there:
        os.write(file, there.read())
    os.close(file)
    return "written"


def mounted_in_own() -> None:
    raw("unshare", NAMESPACES["user"] | NAMESPACES["mnt"])
    raw("mount", b"t", WORKSPACE.encode(), b"tmpfs", 0, b"")


def raised() -> None:
    """Its hard limit on processes is higher than it was given."""
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (hard + 1000, hard + 1000))


def entered(place: str) -> int:
    return raw("setns", os.open(place, os.O_RDONLY), 0)


def cloned(flag: int) -> str:
    pid = raw("clone", flag | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return "cloned"


def cloned_by_new_call() -> str:
    sizes = struct.pack("=8Q", NAMESPACES["user"], 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    if raw("clone3", sizes, 64) == 0:
        os._exit(0)
    return "cloned"


# -- others' processes


def prying(targets: dict[str, Any]) -> None:
    for name, pid in targets["processes"].items():
        for number in (0, signal.SIGCONT):
            attempt(f"signal {name} {number:d}", lambda pid=pid, n=number: os.kill(pid, n))
        attempt(f"hold {name}", lambda pid=pid: raw("pidfd_open", pid, 0))
        attempt(f"trace {name}", lambda pid=pid: traced(pid))
        attempt(f"read memory of {name}", lambda pid=pid: peeked(pid))
        attempt(f"renice {name}", lambda pid=pid: os.setpriority(os.PRIO_PROCESS, pid, 19))
        attempt(f"pin {name}", lambda pid=pid: os.sched_setaffinity(pid, {0}))
        attempt(f"limit {name}", lambda pid=pid: resource.prlimit(pid, resource.RLIMIT_NOFILE))
        for part in ("environ", "cmdline", "mem", "maps", "fd", "root", "cwd", "task"):
            attempt(f"/proc/{name}/{part}", lambda pid=pid, part=part: look(f"/proc/{pid}/{part}"))
    attempt("trace init", lambda: traced(1))
    attempt("signal init", lambda: os.kill(1, signal.SIGTERM))
    attempt("stop init", lambda: os.kill(1, signal.SIGSTOP))
    attempt("hold a descriptor of init", lambda: raw("pidfd_getfd", raw("pidfd_open", 1, 0), 0, 0))
    attempt("processes", lambda: sorted(filter(str.isdigit, os.listdir("/proc")), key=int))


def traced(pid: int) -> str:
    """Stop it and let it go again: who is left stopped cannot tell how the sandbox ended."""
    raw("ptrace", 16, pid, 0, 0)
    os.waitpid(pid, 0x40000000)  # __WALL
    raw("ptrace", 17, pid, 0, 0)
    return "traced"


def peeked(pid: int) -> int:
    buffer = ctypes.create_string_buffer(8)
    ours = struct.pack("PN", ctypes.addressof(buffer), 8)
    theirs = struct.pack("PN", 0x400000, 8)
    return raw("process_vm_readv", pid, ours, 1, theirs, 1, 0)


# -- the network


def calling(targets: dict[str, Any]) -> None:
    socket.setdefaulttimeout(0.5)
    tcp, udp = targets["tcp"], targets["udp"]
    stream, datagram = socket.SOCK_STREAM, socket.SOCK_DGRAM
    for host in targets["hosts"]:
        attempt(f"tcp {host}", lambda host=host: connected(socket.AF_INET, stream, 0, (host, tcp)))
        attempt(
            f"mptcp {host}", lambda host=host: connected(socket.AF_INET, stream, 262, (host, tcp))
        )
        attempt(f"udp {host}", lambda host=host: answered((host, udp)))
    attempt("tcp ::1", lambda: connected(socket.AF_INET6, stream, 0, ("::1", tcp)))
    attempt("metadata", lambda: connected(socket.AF_INET, stream, 0, ("169.254.169.254", 80)))
    attempt("name servers", lambda: socket.getaddrinfo("example.org", 80))
    attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).fileno())
    attempt("ping", lambda: socket.socket(socket.AF_INET, datagram, 1).fileno())
    for name, family in {"netlink": 16, "packet": 17, "alg": 38, "vsock": 40, "xdp": 44}.items():
        kind = socket.SOCK_RAW if name in {"netlink", "packet", "xdp"} else stream
        kind = socket.SOCK_SEQPACKET if name == "alg" else kind
        attempt(name, lambda family=family, kind=kind: socket.socket(family, kind).fileno())
    attempt("unix, by path", lambda: connected(socket.AF_UNIX, stream, 0, targets["unix"]))
    attempt("unix, abstract", lambda: connected(socket.AF_UNIX, stream, 0, targets["abstract"]))
    attempt("io_uring", lambda: raw("io_uring_setup", 4, ctypes.create_string_buffer(120)))
    attempt("interfaces", lambda: sorted(name for _, name in socket.if_nameindex()))
    attempt("a pair of sockets", lambda: [each.close() for each in socket.socketpair()])


def connected(family: int, kind: int, protocol: int, address: Any) -> str:
    with socket.socket(family, kind, protocol) as connection:
        connection.connect(address)
        connection.sendall(b"hello")
    return "connected"


def answered(address: tuple[str, int]) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"hello", address)
        return sender.recv(16).decode()


# -- who it is


def looking(targets: dict[str, Any]) -> None:
    with open("/proc/self/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    attempt("status", lambda: status)
    attempt("environment", lambda: dict(os.environ))
    attempt("descriptors", open_descriptors)
    attempt("standard input", lambda: os.read(0, 10).decode())
    attempt("terminal", lambda: os.open("/dev/tty", os.O_RDWR))
    attempt("terminal of the session", terminal_number)
    attempt("push input", lambda: fcntl.ioctl(0, termios.TIOCSTI, b"x"))
    attempt("push input into a terminal of its own", pushed)
    attempt("umask", lambda: os.umask(os.umask(0o022)))
    attempt("host name", lambda: os.uname().nodename)
    attempt("working folder", os.getcwd)
    attempt("session", lambda: os.getsid(0) == os.getpid())
    attempt("temporary", lambda: sorted(os.listdir("/tmp")))
    attempt("shared memory", lambda: sorted(os.listdir("/dev/shm")))
    attempt("top", lambda: sorted(os.listdir("/")))
    attempt("core", lambda: resource.getrlimit(resource.RLIMIT_CORE))


def terminal_number() -> int:
    with open("/proc/self/stat") as file:
        return int(file.read().rpartition(")")[2].split()[4])


def open_descriptors() -> list[int]:
    here = os.open("/proc/self/fd", os.O_RDONLY)
    return [int(each) for each in os.listdir(here) if int(each) != here and is_open(int(each))]


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def pushed() -> None:
    _, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSTI, b"x")


# -- what it leaves


def planting(targets: dict[str, Any]) -> None:
    """Files that must not be what they claim to be once their maker is gone."""
    put(own("plain"))
    flags = os.O_CREAT | os.O_WRONLY
    for bits in (0o4755, 0o2755, 0o6777):
        attempt(f"chmod {bits:o}", lambda bits=bits: os.chmod(own("plain"), bits))
        attempt(f"open {bits:o}", lambda bits=bits: os.open(own(f"born-{bits:o}"), flags, bits))
        regular = stat.S_IFREG | bits
        attempt(f"mknod {bits:o}", lambda bits=bits, m=regular: os.mknod(own(f"node-{bits:o}"), m))
        attempt(
            f"fchmodat2 {bits:o}",
            lambda bits=bits: raw("fchmodat2", AT_FDCWD, own("plain").encode(), bits, 0),
        )
    how = struct.pack("=QQQ", os.O_CREAT | os.O_WRONLY, 0o4755, 0)
    attempt("openat2", lambda: raw("openat2", AT_FDCWD, own("second").encode(), how, 24))
    for kind, name in ((stat.S_IFBLK, "disk"), (stat.S_IFCHR, "memory")):
        attempt(name, lambda kind=kind, n=name: os.mknod(own(n), kind | 0o666, os.makedev(1, 1)))
    attempt("become root", lambda: os.setuid(0))
    attempt("give away", lambda: os.chown(own("plain"), 0, 0))
    attempt("capability", lambda: os.setxattr(own("plain"), "security.capability", b"\1" * 20))
    attempt("copy of a setuid program", lambda: subprocess.check_call(["su", "-c", "true"]))
    for name, text in targets.get("planted", {}).items():
        for folder in (WORKSPACE, os.environ["RETINUE_LOGS"]):
            path = os.path.join(folder, name)
            put(path, os.O_CREAT, text.encode())
            os.chmod(path, 0o755)


GROUPS = {
    "reading": reading,
    "writing": writing,
    "leaving": leaving,
    "prying": prying,
    "calling": calling,
    "looking": looking,
    "planting": planting,
}


def require_confined() -> None:
    """What is tried here would ruin a machine: nothing is, where there is no boundary at all."""
    with open("/proc/self/status") as file:
        status = dict(line.split() for line in file if line.startswith(("CapEff", "Seccomp:")))
    held = status["Seccomp:"] == "2" or all(map(is_apart, INITIAL))
    if os.geteuid() == 0 or int(status["CapEff:"], 16) or not held:
        sys.exit("not confined; nothing was tried")


def is_apart(name: str) -> bool:
    """This process is not in the namespace that the machine started with."""
    return os.readlink(f"/proc/self/ns/{name}") != f"{name}:[{INITIAL[name]}]"


def main() -> None:
    require_confined()
    targets = json.loads(sys.argv[1])
    for name in targets["groups"]:
        GROUPS[name](targets)
    with open(own("report.json"), "w") as file:
        json.dump(report, file)
    print(f"tried {len(report)}")


if __name__ == "__main__":
    main()
