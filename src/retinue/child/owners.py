"""Whose files are: within a mount that is lent, those of their owner are the child's."""

from __future__ import annotations

import os
import signal

from retinue.child import kernel

OURS = (0, 0)  # only root has children who are somebody else
UNMAPPED = -1


class Owners:
    """User namespaces that say so, one for each owner; to be closed."""

    def __init__(self, child: int | None, proc: str) -> None:
        """`child` is who the child is, where that is somebody else than we are."""
        self._child = child
        self._proc = proc
        self._made: dict[tuple[int, int], int] = {}

    def close(self) -> None:
        for namespace in self._made.values():
            if namespace != UNMAPPED:
                os.close(namespace)

    def of(self, uid: int, gid: int) -> int:
        """The namespace in which what belongs to these is the child's; -1 where there is none."""
        if self._child is None:
            return UNMAPPED
        if (uid, gid) not in self._made:
            self._made[uid, gid] = self._make(f"{uid} {self._child} 1", f"{gid} {self._child} 1")
        return self._made[uid, gid]

    def _make(self, users: str, groups: str) -> int:
        source, sink = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            try:
                kernel.call("unshare", kernel.CLONE_NEWUSER)
            finally:
                os.write(sink, b".")
                signal.pause()
        try:
            os.read(source, 1)
            for name, mapping in (("uid_map", users), ("gid_map", groups)):
                with open(f"{self._proc}/{pid}/{name}", "w") as file:
                    file.write(mapping)
            return os.open(f"{self._proc}/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return UNMAPPED
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(source)
            os.close(sink)
