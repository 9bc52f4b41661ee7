"""The barest steward that keeps its word, as a program: `python keeper.py SOCKET FOLDER COMMAND…`.

For each request it makes the folders and files that a command needs, and keeps its rows in a
durable commit; then it runs the command under a first process that records its end, writes the
files of the result and its rows in another commit, and only then answers whoever waits. It refuses
nothing, limits nothing, isolates nothing, judges nothing, and knows one command at a time.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import sys

ROWS_OF_AN_END = 8  # six events, its result, its attempt
ASKED = "x" * 400  # a contract, or a brief


def opened(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("CREATE TABLE kept (number INTEGER PRIMARY KEY, a, b, c, d)")
    return database


def insert(database: sqlite3.Connection, text: str, ends: int) -> None:
    """The rows of so many ends are there for good."""
    database.execute("BEGIN IMMEDIATE")
    rows = ((text,) * 4 for _ in range(ends * ROWS_OF_AN_END))
    database.executemany("INSERT INTO kept VALUES (NULL, ?, ?, ?, ?)", rows)
    database.execute("COMMIT")


def write(path: str, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.write(file, text.encode())
    os.close(file)


def replace(path: str, text: str) -> None:
    write(f"{path}.new", text)
    os.rename(f"{path}.new", path)


def begin(folder: str, database: sqlite3.Connection) -> None:
    """What was asked is there for good, and a place to do it."""
    for name in ("", "/artifacts", "/runtime", "/workspace", "/full_logs", "/context"):
        os.mkdir(f"{folder}{name}")
    for name in ("session.json", "contract.json", "runtime/brief.txt"):
        write(f"{folder}/{name}", ASKED)
    insert(database, ASKED, ends=1)


def run(folder: str, argv: list[str]) -> int:
    """The command has ended, and its end is recorded: by a process of this number."""
    ours, its = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        _live(folder, argv)
        its.send(b"free")
        os._exit(0)
    its.close()
    ours.recv(10)
    ours.close()
    return pid


def _live(folder: str, argv: list[str]) -> None:
    reading, writing = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, writing, 1)]
    pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=actions)
    os.close(writing)
    _, status = os.waitpid(pid, 0)
    write(f"{folder}/stdout.log", os.read(reading, 1000).decode())
    replace(f"{folder}/exit.json", json.dumps({"kind": "exited", "exit_code": status}))


def keep(folder: str, database: sqlite3.Connection) -> str:
    """Its answer, once everything of it is kept."""
    with open(f"{folder}/exit.json") as record, open(f"{folder}/stdout.log") as said:
        result = {"ending": json.load(record), "answer": said.read(), "more": "x" * 500}
    text = json.dumps(result)
    write(f"{folder}/artifacts/answer.txt", result["answer"])
    for name in ("artifacts/report.md", "attempts.jsonl", "conversation.jsonl"):
        write(f"{folder}/{name}", text)
    replace(f"{folder}/result.json", text)
    insert(database, text, ends=1)
    return str(result["answer"])


def main() -> None:
    client, top, argv = socket.socket(fileno=int(sys.argv[1])), sys.argv[2], sys.argv[3:]
    database = opened(f"{top}/bare.db")
    number = 0
    while client.recv(10):
        number += 1
        folder = f"{top}/{number}"
        begin(folder, database)
        pid = run(folder, argv)
        client.send(keep(folder, database).encode())
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
