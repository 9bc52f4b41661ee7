"""seccomp: system calls that no delegated work needs are refused by the kernel."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from functools import cache

from retinue.child.kernel import PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, call

MODE_FILTER = 2
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
LOAD, JUMP_EQUAL, JUMP_ABOVE, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16
X32 = 0x40000000
NAMESPACES = 0x7E020080  # every CLONE_NEW* flag that clone takes, time included
SETUID_SETGID = 0o6000
TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
LOCAL_FAMILIES = (socket.AF_UNIX,)
NETWORK_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
LOOPBACK_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
MPTCP = 262

# name: (number on x86_64, number on aarch64)
REFUSED = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "unshare": (272, 97),
    "setns": (308, 268),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "fanotify_init": (300, 262),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "quotactl": (179, 60),
    "syslog": (103, 116),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
}
CLONE3, OPENAT2 = 435, 437
CLONE, SOCKET, IOCTL = (56, 220), (41, 198), (16, 29)
# Where each call that changes a file's mode, or makes a file, has that mode.
MODES = {
    **{(90, None): 1, (91, 52): 1, (268, 53): 2, (452, 452): 2},  # chmod
    **{(85, None): 1, (133, None): 1, (259, 33): 2},  # creat, mknod
}
# Where each call that may make a file has its flags; the mode comes next, and counts only then.
OPENS = {(2, None): 1, (257, 56): 2}
MAKES_FILE = os.O_CREAT | 0o20000000  # or a nameless one
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_Instruction = tuple[int, int, int, int]


def available() -> bool:
    """Whether this machine's system calls are known here by their numbers."""
    return os.uname().machine in MACHINES


def prepare() -> None:
    """The filters are made, so that no clone of this process has to make its own."""
    if available():
        for network in ("off", "models", "on"):
            _filter(network)


def restrict(*, network: str) -> None:
    """This process, and all it starts, lives with these calls refused.

    Raises:
        OSError: the kernel did not take the filter.
    """
    header, _ = _filter(network)
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call("prctl", PR_SET_SECCOMP, MODE_FILTER, header, 0, 0)


@cache
def _filter(network: str) -> tuple[bytes, ctypes.Array[ctypes.c_char]]:
    """What the kernel is given, and what that points to, which must not go before."""
    program = b"".join(struct.pack("=HBBI", *each) for each in _program(network))
    code = ctypes.create_string_buffer(program, len(program))
    return struct.pack("@HP", len(program) // 8, ctypes.addressof(code)), code


def _program(network: str) -> list[_Instruction]:
    column, architecture = MACHINES[os.uname().machine]
    program: list[_Instruction] = [
        (LOAD, 0, 0, ARCHITECTURE_AT),
        (JUMP_EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER_AT),
    ]
    if column == 0:
        program += [(JUMP_ABOVE, 0, 1, X32), _refuse(errno.ENOSYS)]
    for numbers in REFUSED.values():
        program += [(JUMP_EQUAL, 0, 1, numbers[column]), _refuse(errno.EPERM)]
    # Their arguments lie behind a pointer, where a filter cannot look; callers fall back.
    for number in (CLONE3, OPENAT2):
        program += [(JUMP_EQUAL, 0, 1, number), _refuse(errno.ENOSYS)]
    program += _when(CLONE[column], 0, [(JUMP_ANY_BIT, 0, 1, NAMESPACES), _refuse(errno.EPERM)])
    for request in TERMINAL_INPUT:
        check = [(JUMP_EQUAL, 0, 1, request), _refuse(errno.EPERM)]
        program += _when(IOCTL[column], 1, check)
    for row, argument in MODES.items():
        if (mode_call := row[column]) is not None:
            check = [(JUMP_ANY_BIT, 0, 1, SETUID_SETGID), _refuse(errno.EPERM)]
            program += _when(mode_call, argument, check)
    for row, argument in OPENS.items():
        if (open_call := row[column]) is not None:
            mode_at = ARGUMENTS_AT + 8 * (argument + 1)
            check = [
                (JUMP_ANY_BIT, 0, 3, MAKES_FILE),
                (LOAD, 0, 0, mode_at),
                (JUMP_ANY_BIT, 0, 1, SETUID_SETGID),
                _refuse(errno.EPERM),
            ]
            program += _when(open_call, argument, check)
    return program + _sockets(SOCKET[column], network) + [(RETURN, 0, 0, ALLOW)]


def _sockets(number: int, network: str) -> list[_Instruction]:
    families = {"off": LOCAL_FAMILIES, "models": LOOPBACK_FAMILIES}.get(network, NETWORK_FAMILIES)
    check: list[_Instruction] = []
    for left, family in enumerate(families):
        # Past the refusal, over the families that are still to be compared.
        check.append((JUMP_EQUAL, len(families) - left, 0, int(family)))
    check.append(_refuse(errno.EAFNOSUPPORT))
    multipath = [(JUMP_EQUAL, 0, 1, MPTCP), _refuse(errno.EPROTONOSUPPORT)]
    return _when(number, 0, check) + _when(number, 2, multipath)


def _when(number: int, argument: int, check: list[_Instruction]) -> list[_Instruction]:
    """Only for this call: the check sees the argument's low word; afterwards the number again."""
    body = [(LOAD, 0, 0, ARGUMENTS_AT + 8 * argument), *check, (LOAD, 0, 0, NUMBER_AT)]
    return [(JUMP_EQUAL, 0, len(body), number), *body]


def _refuse(number: int) -> _Instruction:
    return (RETURN, 0, 0, ERRNO | number)
