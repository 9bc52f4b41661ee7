"""Program that runs a part of Retinue and counts its calls while it is told to.

usage: trace_probe.py OUTPUT steward ROOT READY_FD | trace_probe.py OUTPUT mcp ROOT

SIGUSR1 starts counting, SIGUSR2 stops it and writes the counts to the named pipe OUTPUT as JSON.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import retinue

PACKAGE = str(Path(retinue.__file__).parent) + "/"
SENDS = "_send_request"  # the last function before a request leaves the process of a client
CALLBACK = "call_tool"  # the function that the MCP SDK calls


class CallCounter:
    """Counter of the calls between functions of the package, by profiling hook."""

    def __init__(self) -> None:
        self.functions: Counter[CodeType] = Counter()
        self.crossings: Counter[tuple[str, str]] = Counter()
        self.chains: dict[str, list[str]] = {}  # objects on the way to a verb, by verb
        self._started: dict[int, FrameType] = {}
        self._frames: list[FrameType] = []  # kept, so that their ids stay unique
        self._creators: dict[int, list[str]] = {}  # objects on the stack that made a task

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code.co_name == "create_task" and "asyncio" in code.co_filename:
            self._note_creator(frame)
        if not code.co_filename.startswith(PACKAGE):
            return
        # A coroutine calls this hook each time it goes on: count its start alone.
        if id(frame) in self._started:
            return
        self._started[id(frame)] = frame
        self.functions[code] += 1
        caller = frame.f_back
        if caller is not None and caller.f_code.co_filename.startswith(PACKAGE):
            places = find_folder(caller.f_code), find_folder(code)
            if places[0] != places[1]:
                self.crossings[places] += 1
        self._note_chain(frame)

    def _note_creator(self, frame: FrameType) -> None:
        coroutine: Any = frame.f_locals.get("coro")
        inner = getattr(coroutine, "cr_frame", None)
        if inner is not None:
            self._frames.append(inner)
            self._creators.setdefault(id(inner), self._list_objects(frame.f_back))

    def _note_chain(self, frame: FrameType) -> None:
        """Keep the objects on the stack where a request is sent or a verb begins."""
        code = frame.f_code
        if code.co_name == SENDS:
            self.chains.setdefault(str(frame.f_locals.get("verb")), self._list_objects(frame))
        elif "/steward/verbs/" in code.co_filename:
            self.chains.setdefault(code.co_name, self._list_objects(frame))

    def _list_objects(self, frame: FrameType | None) -> list[str]:
        """Return the objects of the package whose methods are on the stack, innermost first."""
        found: list[str] = []
        while frame is not None:
            owner = frame.f_locals.get("self")
            if owner is not None and type(owner).__module__.startswith("retinue."):
                name = f"{type(owner).__name__}@{id(owner):x}"
                if name not in found:
                    found.append(name)
            if frame.f_code.co_name == CALLBACK:
                break
            if id(frame) in self._creators:
                # The first frame of a task: go on where the task was created.
                created = self._creators[id(frame)]
                return found + [each for each in created if each not in found]
            frame = frame.f_back
        return found

    def report(self) -> dict[str, object]:
        modules: Counter[str] = Counter()
        for code, calls in self.functions.items():
            modules[code.co_filename.removeprefix(PACKAGE)] += calls
        return {
            "modules": dict(modules.most_common()),
            "functions": len(self.functions),
            "calls": sum(self.functions.values()),
            "crossings": sum(self.crossings.values()),
            "between": {f"{a} -> {b}": n for (a, b), n in self.crossings.most_common()},
            "chains": self.chains,
        }


def find_folder(code: CodeType) -> str:
    """Return the folder or the module directly below the package."""
    return code.co_filename.removeprefix(PACKAGE).split("/")[0].removesuffix(".py")


def main() -> None:
    output = Path(sys.argv[1])
    counter = CallCounter()

    def begin(*_: object) -> None:
        sys.setprofile(counter)

    def end(*_: object) -> None:
        sys.setprofile(None)
        output.write_text(json.dumps(counter.report()))

    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    kind = sys.argv[2]
    if kind == "steward":
        from retinue.steward.__main__ import main as run_steward

        sys.argv = ["retinue.steward", *sys.argv[3:]]
        sys.exit(run_steward())
    from retinue.cli.entry import run

    sys.exit(run(["--root", sys.argv[3], "mcp"]))


if __name__ == "__main__":
    main()
