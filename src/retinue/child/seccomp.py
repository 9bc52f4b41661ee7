"""seccomp filter: allows only the system calls that delegated work needs.

A call is allowed if `allowed_syscalls.ALLOWED` names it and no rule below refuses its arguments. A
refused call returns EPERM and is counted by the child's init. A call in no list returns ENOSYS, as
if the kernel did not have it, so that programs fall back to an older one.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
from functools import cache

from retinue.child.allowed_syscalls import ALLOWED, REFUSED
from retinue.child.syscalls import PR_SET_NO_NEW_PRIVS, SYS_SECCOMP, call

SET_MODE_FILTER, NEW_LISTENER = 1, 8
ALLOW, NOTIFY, KILL, ERRNO = 0x7FFF0000, 0x7FC00000, 0x80000000, 0x00050000
LOAD, JUMP_EQUAL, JUMP_ABOVE, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16
X32 = 0x40000000
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

NAMESPACES = 0x7E020080  # every CLONE_NEW* flag that clone takes, time included
SETUID_SETGID = 0o6000
MAKES_FILE = os.O_CREAT | 0o20000000  # O_CREAT, or O_TMPFILE
TIOCSTI, TIOCLINUX = 0x5412, 0x541C  # typing into a terminal
F_SETLEASE, AFTER_LAST_FCNTL = 1024, 1039  # newer commands begin at the second number
INIT = 1  # pid of the init, which keeps the deadline and records the end
PRIO_USER, IOPRIO_WHO_USER = 2, 3  # all processes of a user, its init included
RLIMIT_CORE = 4
PERSONALITIES = (0, 8, 0x20000, 0x20008, 0xFFFFFFFF)  # those that keep all protections
MPTCP = 262
FAMILIES = {
    "off": (socket.AF_UNIX,),
    "models": (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6),
    "on": (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK),
}

_Instruction = tuple[int, int, int, int]
# A comparison of one word of the arguments: its offset, the operator, the value.
_Condition = tuple[int, str, int]
# If all conditions hold, the call is not made and returns this errno; 0 pretends success.
_Rule = tuple[tuple[_Condition, ...], int]


def _word(argument: int, *, upper: bool = False) -> int:
    """Return the offset of an argument's lower or upper half; both machines are little-endian."""
    return ARGUMENTS_AT + 8 * argument + (4 if upper else 0)


def _refuse_if(argument: int, how: str, value: int, code: int = errno.EPERM) -> _Rule:
    return ((_word(argument), how, value),), code


def _refuse_modes(argument: int) -> list[_Rule]:
    return [_refuse_if(argument, "has any of", SETUID_SETGID)]


def _refuse_opens(flags: int) -> list[_Rule]:
    """Refuse to make setuid files. The mode follows the flags, and counts only with O_CREAT."""
    makes = (flags, MAKES_FILE)
    setuid = (flags + 1, SETUID_SETGID)
    return [(tuple((_word(at), "has any of", bits) for at, bits in (makes, setuid)), errno.EPERM)]


def _pointer_rules(pointer: int, conditions: tuple[_Condition, ...], code: int) -> list[_Rule]:
    """Return a rule for each half of a pointer, which together hold if it is not null."""
    halves = (_word(pointer), _word(pointer, upper=True))
    return [((*conditions, (half, "is not", 0)), code) for half in halves]


def _refuse_limits() -> list[_Rule]:
    """prlimit64: a process may change only its own limits, and never that of core files.

    That limit keeps the machine's crash handler away (see `rlimits`). Many programs lower it to
    0, which would let the handler run, so the call does nothing and reports success.
    """
    another = ((_word(0), "is not", 0),)
    core = ((_word(1), "is", RLIMIT_CORE),)
    no_answer = ((_word(3), "is", 0), (_word(3, upper=True), "is", 0))
    return [
        *_pointer_rules(2, another, errno.EPERM),
        *_pointer_rules(2, (*core, *no_answer), 0),
        *_pointer_rules(2, core, errno.EPERM),
    ]


def _rules(network: str) -> dict[str, list[_Rule]]:
    """Return rules on the arguments of allowed calls, by name."""
    of_init = {
        **{"sched_setaffinity": 0, "sched_setparam": 0},
        **{"sched_setscheduler": 0, "sched_setattr": 0},
    }
    modes = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2}
    modes |= {"creat": 1, "mknod": 1, "mknodat": 2}
    families = tuple((_word(0), "is not", int(family)) for family in FAMILIES[network])
    personalities = tuple((_word(0), "is not", each) for each in PERSONALITIES)
    return {
        "clone": [_refuse_if(0, "has any of", NAMESPACES)],
        "ioctl": [_refuse_if(1, "is", TIOCSTI), _refuse_if(1, "is", TIOCLINUX)],
        **{name: _refuse_modes(argument) for name, argument in modes.items()},
        **{"open": _refuse_opens(1), "openat": _refuse_opens(2)},
        # A lease on a lent file would make its owner wait for the child.
        "fcntl": [
            _refuse_if(1, "is", F_SETLEASE),
            _refuse_if(1, "is at least", AFTER_LAST_FCNTL, errno.EINVAL),
        ],
        **{name: [_refuse_if(argument, "is", INIT)] for name, argument in of_init.items()},
        "setpriority": [_refuse_if(1, "is", INIT), _refuse_if(0, "is", PRIO_USER)],
        "ioprio_set": [_refuse_if(1, "is", INIT), _refuse_if(0, "is", IOPRIO_WHO_USER)],
        "personality": [(personalities, errno.EPERM)],
        "prlimit64": _refuse_limits(),
        "setrlimit": [_refuse_if(0, "is", RLIMIT_CORE, 0)],
        "socket": [
            (families, errno.EAFNOSUPPORT),
            _refuse_if(2, "is", MPTCP, errno.EPROTONOSUPPORT),
        ],
    }


def is_available() -> bool:
    """Return whether the numbers of this machine's system calls are known."""
    return os.uname().machine in MACHINES


def prepare() -> None:
    """Compile the filters in the fork server, so that no clone has to."""
    if is_available():
        for network in FAMILIES:
            _filter(network)


def apply_filter(*, network: str) -> int:
    """Restrict this process and its descendants to the allowed system calls.

    Returns:
        A descriptor that announces refused calls, which have to be answered. Once all copies of
        it are closed, such calls fail with ENOSYS.

    Raises:
        OSError: the kernel refused the filter.
    """
    header, _ = _filter(network)
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return call("syscall", SYS_SECCOMP, SET_MODE_FILTER, NEW_LISTENER, header)


@cache
def _filter(network: str) -> tuple[bytes, ctypes.Array[ctypes.c_char]]:
    """Return the filter header for the kernel, and the code it points to, to keep that alive."""
    instructions = compile_filter(network, os.uname().machine)
    program = b"".join(struct.pack("=HBBI", *each) for each in instructions)
    code = ctypes.create_string_buffer(program, len(program))
    return struct.pack("@HP", len(program) // 8, ctypes.addressof(code)), code


def compile_filter(network: str, machine: str) -> list[_Instruction]:
    """Return the filter's instructions: first the rules on arguments, then the lists."""
    column, architecture = MACHINES[machine]
    # Another architecture, such as 32 bit, has other numbers: its calls kill the process.
    program: list[_Instruction] = [
        (LOAD, 0, 0, ARCHITECTURE_AT),
        (JUMP_EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER_AT),
    ]
    if column == 0:
        program += [(JUMP_ABOVE, 0, 1, X32), (RETURN, 0, 0, ERRNO | errno.ENOSYS)]
    for name, rules in _rules(network).items():
        number = ALLOWED[name][column]
        if number is not None:
            body = [each for rule in rules for each in _compile_rule(rule)]
            # Load the number again, for the lists that follow.
            program += [(JUMP_EQUAL, 0, len(body) + 1, number), *body, (LOAD, 0, 0, NUMBER_AT)]
    return program + _search(_segments(column))


def _compile_rule(rule: _Rule) -> list[_Instruction]:
    """Compile the conditions in order; the first that does not hold jumps past the answer."""
    conditions, code = rule
    program: list[_Instruction] = []
    for left, (word, how, value) in enumerate(reversed(conditions)):
        past = 2 * left + 1
        jump = {"is": JUMP_EQUAL, "is not": JUMP_EQUAL, "is at least": JUMP_ABOVE}
        kind = jump.get(how, JUMP_ANY_BIT)
        true, false = (past, 0) if how == "is not" else (0, past)
        program = [(LOAD, 0, 0, word), (kind, true, false, value), *program]
    return [*program, _answer(code)]


def _answer(code: int) -> _Instruction:
    """Return the instruction for an errno; EPERM is announced to the init, which answers it."""
    return (RETURN, 0, 0, NOTIFY if code == errno.EPERM else ERRNO | code)


def _segments(column: int) -> list[tuple[int, _Instruction]]:
    """Return ranges of numbers with their answers; each range ends where the next begins."""
    allowed = {row[column] for row in ALLOWED.values()}
    refused = {row[column] for row in REFUSED.values()}
    numbers = [number for number in allowed | refused if number is not None]
    found: list[tuple[int, _Instruction]] = []
    for number in range(max(numbers) + 2):
        if number in allowed:
            answer: _Instruction = (RETURN, 0, 0, ALLOW)
        else:
            answer = _answer(errno.EPERM if number in refused else errno.ENOSYS)
        if not found or found[-1][1] != answer:
            found.append((number, answer))
    return found


def _search(segments: list[tuple[int, _Instruction]]) -> list[_Instruction]:
    """Compile a binary search, which costs the same for each call."""
    if len(segments) == 1:
        return [segments[0][1]]
    middle = len(segments) // 2
    below = _search(segments[:middle])
    above = _search(segments[middle:])
    return [(JUMP_ABOVE, len(below), 0, segments[middle][0]), *below, *above]


# Refused system calls of a child, answered and counted by its init.

NOTIF_RECV, NOTIF_SEND = 0xC0502100, 0xC0182101
NOTIFICATION = bytearray(80)  # struct seccomp_notif
# After so many the descriptor is closed. Further calls fail with ENOSYS and cost the init nothing.
MOST_ANSWERED = 1000
MOST_NAMED = 10


class RefusedCalls:
    """The descriptor that announces refused calls, and how often each was refused."""

    def __init__(self, listener: int) -> None:
        self._listener = listener
        self._counts: dict[int, int] = {}
        self._answered = 0

    def fileno(self) -> int:
        return self._listener

    def answer(self) -> bool:
        """Refuse the waiting call with EPERM; return False once no more are to be answered."""
        try:
            request = bytearray(NOTIFICATION)
            fcntl.ioctl(self._listener, NOTIF_RECV, request)
            identity, number = struct.unpack_from("=Q8xi", request)
            self._counts[number] = self._counts.get(number, 0) + 1
            self._answered += 1
            answer = struct.pack("=QqiI", identity, 0, -errno.EPERM, 0)
            fcntl.ioctl(self._listener, NOTIF_SEND, answer)
        except OSError:  # the caller was killed meanwhile
            pass
        return self._answered < MOST_ANSWERED

    def close(self) -> None:
        if self._listener >= 0:
            os.close(self._listener)
            self._listener = -1

    def by_name(self) -> dict[str, int]:
        """Return how often each call was refused, the most frequent first."""
        # Most children have none, and reading the tables would copy their memory pages.
        if not self._counts:
            return {}
        column = MACHINES[os.uname().machine][0]
        names = {row[column]: name for name, row in (ALLOWED | REFUSED).items()}
        counts = sorted(self._counts.items(), key=lambda each: -each[1])[:MOST_NAMED]
        return {names.get(number, f"call {number}"): count for number, count in counts}
