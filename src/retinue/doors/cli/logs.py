"""What subagents printed, to the end or as it comes."""

from __future__ import annotations

import codecs
import os
import select
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread

import click

from retinue.domain.errors import RetinueError
from retinue.doors.cli import render
from retinue.doors.cli.options import SUBAGENT, TASK, Verb
from retinue.doors.cli.session import Session
from retinue.inotify import CHANGED, CHUNK, Inotify

UNSETTLED = ("pending", "running")
SETTLES = (
    "agent.blocked",
    "agent.subagent_waiting_for_merge",
    "agent.subagent_failed",
    "agent.subagent_closed",
)


class Tail:
    """One log, read on from where it was left; a new attempt's log follows the old one's."""

    def __init__(self, stream: str, path: str) -> None:
        self.stream = stream
        self._path = path
        self._file: int | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def news(self) -> Iterator[str]:
        """What was written since; nothing for a log that does not exist yet."""
        yield from self._rest()
        while self._reopen():
            yield from self._rest()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _rest(self) -> Iterator[str]:
        while self._file is not None and (chunk := os.read(self._file, CHUNK)):
            if text := self._decoder.decode(chunk):
                yield text

    def _reopen(self) -> bool:
        """Whether another file now has the name, and is open instead."""
        try:
            found = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        if self._file is not None and os.path.sameopenfile(found, self._file):
            os.close(found)
            return False
        self.close()
        self._file = found
        return True


class Printer:
    """Texts of two logs on one output, told apart by a heading wherever they alternate."""

    def __init__(self, session: Session, *, headings: bool) -> None:
        self._session = session
        self._headings = headings
        self._last = ""
        self._at_start = True

    def show(self, tails: list[Tail]) -> None:
        for tail in tails:
            for text in tail.news():
                self._print(tail.stream, text)
        render.flush()

    def end(self) -> None:
        """The shell's next prompt starts on a line of its own."""
        if not self._at_start:
            render.say()

    def _print(self, stream: str, text: str) -> None:
        if self._session.json:
            render.say_json({"stream": stream, "text": text})
            return
        if self._headings and stream != self._last:
            self.end()
            render.say(f"==> {stream} <==")
        self._last = stream
        self._at_start = text.endswith("\n")
        render.say_part(render.plain(text))


class Settling:
    """Follows a subagent's events in the background: `fd` tells of each, `over` of its end."""

    def __init__(self, session: Session, task: str, subagent: str) -> None:
        self.over = False
        self.error: RetinueError | None = None
        self.fd, self._say = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        Thread(target=self._follow, args=(session, task, subagent), daemon=True).start()

    def _follow(self, session: Session, task: str, subagent: str) -> None:
        try:
            with session.client() as events, session.client() as asking:
                stream = events.stream("task.events", task=task, type_prefix="agent.", follow=True)
                for event in stream:
                    if event["agentInstance"].lower() != subagent.lower():
                        continue
                    self._wake()
                    if event["type"] in SETTLES:
                        known = asking.call("subagent.logs", task=task, subagent=subagent)
                        if known["status"] not in UNSETTLED:
                            break
        except RetinueError as error:
            self.error = error
        finally:
            self.over = True
            self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # full of wakes already
            os.write(self._say, b".")


@click.command(cls=Verb, example="retinue subagent logs site-1a2b3c bio --follow")
@TASK
@SUBAGENT
@click.option("--stdout", is_flag=True, help="Only its standard output.")
@click.option("--stderr", is_flag=True, help="Only its standard error.")
@click.option("--follow", is_flag=True, help="Go on until it settles.")
@click.pass_obj
def logs(
    session: Session, task: str, subagent: str, stdout: bool, stderr: bool, follow: bool
) -> None:
    """Show what a subagent printed."""
    known = session.call("subagent.logs", task=task, subagent=subagent)
    asked = {"stdout": stdout, "stderr": stderr}
    streams = [name for name, wanted in asked.items() if wanted] or list(asked)
    tails = [Tail(stream, known[stream]) for stream in streams]
    printer = Printer(session, headings=len(streams) > 1)
    if follow and known["status"] in UNSETTLED:
        _follow(
            Settling(session, task, subagent), tails, printer, known["stdout"].rpartition("/")[0]
        )
    printer.show(tails)
    printer.end()


def _follow(settling: Settling, tails: list[Tail], printer: Printer, folder: str) -> None:
    """Everything up to the subagent's end is printed, as it came."""
    inotify = Inotify()
    poll = select.poll()
    for fd in (inotify.fd, settling.fd):
        poll.register(fd, select.POLLIN)
    while not settling.over:
        with suppress(OSError):  # it may not be there yet
            inotify.watch(folder, CHANGED)
        printer.show(tails)
        poll.poll()
        for fd in (inotify.fd, settling.fd):
            with suppress(BlockingIOError):
                os.read(fd, CHUNK)
    inotify.close()
    if settling.error is not None:
        raise settling.error
