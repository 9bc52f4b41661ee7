"""The `retinue subagent logs` command."""

from __future__ import annotations

import codecs
import os
import select
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread

import click

from retinue.cli import render
from retinue.cli.options import SUBAGENT, TASK, CliCommand
from retinue.cli.steward_session import CliSession
from retinue.core.errors import RetinueError
from retinue.inotify import CHANGED, CHUNK, Inotify

UNSETTLED = ("pending", "running")
# Events after which the status is read again, to see whether the subagent settled
SETTLES = (
    "agent.blocked",
    "agent.subagent_waiting_for_merge",
    "agent.subagent_failed",
    "agent.subagent_closed",
)


class LogTail:
    """Incremental reader of one log; after a retry it continues with the next attempt's log."""

    def __init__(self, stream: str, path: str) -> None:
        self.stream = stream
        self._path = path
        self._file: int | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def read_new(self) -> Iterator[str]:
        """Yield the text written since the last call; nothing if there is no log yet."""
        # First the rest of the old file: a new attempt may have replaced it.
        yield from self._read_rest()
        while self._open_replacement():
            yield from self._read_rest()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _read_rest(self) -> Iterator[str]:
        while self._file is not None and (chunk := os.read(self._file, CHUNK)):
            if text := self._decoder.decode(chunk):
                yield text

    def _open_replacement(self) -> bool:
        """Open the file that now has the name, if it is another one; return whether it is."""
        try:
            # The child may have replaced the log: no symlinks, and no blocking on a FIFO.
            found = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        if self._file is not None and os.path.sameopenfile(found, self._file):
            os.close(found)
            return False
        self.close()
        self._file = found
        return True


class LogPrinter:
    """Printer of two logs on one output, with a heading wherever they alternate."""

    def __init__(self, session: CliSession, *, headings: bool) -> None:
        self._session = session
        self._headings = headings
        self._last = ""
        self._at_start = True

    def show(self, tails: list[LogTail]) -> None:
        for tail in tails:
            for text in tail.read_new():
                self._print(tail.stream, text)
        render.flush()

    def end(self) -> None:
        """End an unfinished line, so that the shell's prompt starts on a new one."""
        if not self._at_start:
            render.print_line()

    def _print(self, stream: str, text: str) -> None:
        if self._session.json:
            render.print_json({"stream": stream, "text": text})
            return
        if self._headings and stream != self._last:
            self.end()
            render.print_line(f"==> {stream} <==")
        self._last = stream
        self._at_start = text.endswith("\n")
        render.print_part(render.escape_text(text))


class SettleWatcher:
    """Background thread that follows a subagent's events.

    `fd` becomes readable after each event. `over` is set once the subagent has settled.
    """

    def __init__(self, session: CliSession, task: str, subagent: str) -> None:
        self.over = False
        self.error: RetinueError | None = None
        self.fd, self._say = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        Thread(target=self._follow, args=(session, task, subagent), daemon=True).start()

    def _follow(self, session: CliSession, task: str, subagent: str) -> None:
        try:
            with session.open_client() as events, session.open_client() as asking:
                stream = events.stream("task.events", task=task, type_prefix="agent.", follow=True)
                for event in stream:
                    if event["agentInstance"] != subagent:
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
        # If the pipe is full, the reader is about to wake up anyway.
        with suppress(BlockingIOError):
            os.write(self._say, b".")


@click.command(cls=CliCommand, example="retinue subagent logs site-1a2b3c bio --follow")
@TASK
@SUBAGENT
@click.option("--stdout", is_flag=True, help="Only its standard output.")
@click.option("--stderr", is_flag=True, help="Only its standard error.")
@click.option("--follow", is_flag=True, help="Wait for new output until the subagent settles.")
@click.pass_obj
def logs(
    session: CliSession, task: str, subagent: str, stdout: bool, stderr: bool, follow: bool
) -> None:
    """Show the output of a subagent."""
    known = session.call("subagent.logs", task=task, subagent=subagent)
    asked = {"stdout": stdout, "stderr": stderr}
    streams = [name for name, wanted in asked.items() if wanted] or list(asked)
    tails = [LogTail(stream, known[stream]) for stream in streams]
    printer = LogPrinter(session, headings=len(streams) > 1)
    if follow and known["status"] in UNSETTLED:
        _follow(
            SettleWatcher(session, known["task_id"], known["agentInstance"]),
            tails,
            printer,
            known["stdout"].rpartition("/")[0],
        )
    printer.show(tails)
    printer.end()


def _follow(
    settling: SettleWatcher, tails: list[LogTail], printer: LogPrinter, folder: str
) -> None:
    """Print output as it appears, until the subagent settles."""
    inotify = Inotify()
    poll = select.poll()
    for fd in (inotify.fd, settling.fd):
        poll.register(fd, select.POLLIN)
    while not settling.over:
        # In each round, because the folder may not exist yet.
        with suppress(OSError):
            inotify.watch(folder, CHANGED)
        printer.show(tails)
        poll.poll()
        for fd in (inotify.fd, settling.fd):
            with suppress(BlockingIOError):
                os.read(fd, CHUNK)
    inotify.close()
    if settling.error is not None:
        raise settling.error
