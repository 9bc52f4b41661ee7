"""Webhooks: messages about ends, gates and lost nodes to addresses that the user configured.

They are read from the user's own configuration, `$XDG_CONFIG_HOME/retinue/config.yaml`, and never
from a root, which may have come from elsewhere. Sending never delays the steward: messages wait in
a bounded queue, and one thread sends them, without following redirects.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Full, Queue
from typing import Any
from urllib.parse import urlsplit

from retinue.core import events
from retinue.core.errors import BadInput
from retinue.core.events import Recorded
from retinue.core.ids import TaskId
from retinue.formats.yaml_document import load_yaml

# Word in the configuration -> types of events
KINDS: Mapping[str, tuple[str, ...]] = {
    "ended": (events.SUBAGENT_CLOSED, events.TASK_CLOSED),
    "gate": (events.GATE_BLOCKED,),
    "node_lost": (events.NODE_LOST,),
}
MOST_WAITING = 1000
TRIES = 4
FIRST_PAUSE_SECONDS = 1.0  # doubled after each failed try
TIMEOUT_SECONDS = 10.0
MOST_HOOKS = 20
MOST_CONFIG_BYTES = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Webhook:
    url: str
    types: frozenset[str]


def find_user_config(environment: Mapping[str, str]) -> Path:
    """Return the place of the user's own configuration; it need not exist."""
    base = environment.get("XDG_CONFIG_HOME", "")
    folder = Path(base) if base.startswith("/") else Path.home() / ".config"
    return folder / "retinue" / "config.yaml"


def read_webhooks(path: Path) -> list[Webhook]:
    """Return the webhooks of a configuration; none if there is no file.

    Raises:
        BadInput: an entry is wrong; the message names it.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(MOST_CONFIG_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    document = load_yaml(text, where=str(path))
    rows = document.get("webhooks", []) if isinstance(document, dict) else None
    if not isinstance(rows, list) or len(rows) > MOST_HOOKS:
        raise _make_error(path, f"webhooks must be a list of at most {MOST_HOOKS} entries")
    return [_parse_webhook(path, number, row) for number, row in enumerate(rows, start=1)]


def _parse_webhook(path: Path, number: int, row: Any) -> Webhook:
    if not isinstance(row, dict) or not row.keys() <= {"url", "on"}:
        raise _make_error(path, f"webhook {number} must have url and on, and nothing else")
    url = row.get("url")
    if not isinstance(url, str) or not _is_web_address(url):
        raise _make_error(path, f"webhook {number}: url must be an http or https address")
    wanted = row.get("on", list(KINDS))
    if not isinstance(wanted, list) or not all(word in KINDS for word in map(str, wanted)):
        raise _make_error(path, f"webhook {number}: on must list {', '.join(KINDS)}")
    types = frozenset(kind for word in wanted for kind in KINDS[str(word)])
    return Webhook(url=url, types=types)


def _is_web_address(url: str) -> bool:
    try:
        address = urlsplit(url)
        # Reading the port checks it; 0 cannot be connected to.
        named = bool(address.hostname) and address.port != 0
    except ValueError:
        return False
    # The HTTP client refuses these characters in host and path.
    plain = not any(each.isspace() or ord(each) < 0x20 or ord(each) == 0x7F for each in url)
    return named and plain and address.scheme in ("http", "https")


def _make_error(path: Path, message: str) -> BadInput:
    return BadInput(f"{path}: {message}", code="bad_config")


class WebhookSender:
    """Subscriber of the journal that queues messages for a sending thread."""

    def __init__(
        self, hooks: Sequence[Webhook], root: Path, complain: Callable[[str], None]
    ) -> None:
        self._hooks = hooks
        self._root = str(root)
        self._complain = complain
        self._queue: Queue[tuple[str, bytes] | None] = Queue(MOST_WAITING)
        self._stopped = threading.Event()
        self.sent = 0
        self.dropped = 0
        # A daemon: an unreachable address does not keep the steward from exiting.
        self._thread = threading.Thread(target=self._send_all, name="webhooks", daemon=True)
        self._thread.start()

    def __call__(self, task: TaskId, recorded: Sequence[Recorded]) -> None:
        for each in recorded:
            for hook in self._hooks:
                if each.event.type in hook.types:
                    self._put(hook.url, _build_message(self._root, task, each))

    def _put(self, url: str, body: bytes) -> None:
        try:
            self._queue.put_nowait((url, body))
        except Full:
            self.dropped += 1
            if self.dropped == 1:
                self._complain(f"webhooks: {MOST_WAITING} messages wait; further ones are dropped")

    def close(self, seconds: float = 2.0) -> None:
        """Send what is queued, as far as that takes no longer than a moment."""
        try:
            self._queue.put_nowait(None)
        except Full:
            self._stopped.set()
        self._thread.join(seconds)
        self._stopped.set()

    def _send_all(self) -> None:
        while (item := self._queue.get()) is not None and not self._stopped.is_set():
            self._send(*item)

    def _send(self, url: str, body: bytes) -> None:
        """Send one message; try again a few times, longer apart each time."""
        pause = FIRST_PAUSE_SECONDS
        for number in range(TRIES):
            problem = post(url, body)
            if not problem:
                self.sent += 1
                return
            if _is_final(problem) or number == TRIES - 1 or self._stopped.wait(pause):
                break
            pause *= 2
        self.dropped += 1
        # Without path and query, which may hold a secret.
        self._complain(f"webhook to {urlsplit(url).hostname}: {problem}; the message is dropped")


def _is_final(problem: str) -> bool:
    """Return whether a repetition would get the same refusal: all of 4xx but "later", as 429."""
    return problem.startswith("status 4") and problem not in ("status 408", "status 429")


def post(url: str, body: bytes) -> str:
    """Send a message; return what went wrong, empty if the server took it."""
    import http.client
    import ssl

    address = urlsplit(url)
    host = address.hostname or ""
    path = (address.path or "/") + (f"?{address.query}" if address.query else "")
    connection: http.client.HTTPConnection | None = None
    try:
        if address.scheme == "https":
            # Fails where SSL_CERT_FILE names no file.
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                host, address.port, timeout=TIMEOUT_SECONDS, context=context
            )
        else:
            connection = http.client.HTTPConnection(host, address.port, timeout=TIMEOUT_SECONDS)
        headers = {"Content-Type": "application/json", "User-Agent": "retinue"}
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        answer.read(65536)
        # A redirect is a failure: it could lead to an address that the user did not name.
        return "" if 200 <= answer.status < 300 else f"status {answer.status}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return str(error) or type(error).__name__
    finally:
        if connection is not None:
            connection.close()


def _build_message(root: str, task: TaskId, recorded: Recorded) -> bytes:
    event = recorded.event
    kind = next(word for word, types in KINDS.items() if event.type in types)
    return json.dumps(
        {
            "on": kind,
            "type": event.type,
            "root": root,
            "task_id": task,
            "seq": recorded.seq,
            "subagent_id": event.subagent,
            "summary": event.summary,
        }
    ).encode()


def start_webhooks(root: Path, complain: Callable[[str], None]) -> WebhookSender | None:
    """Return a sender for the user's webhooks; None if there are none or they are wrong."""
    try:
        hooks = read_webhooks(find_user_config(os.environ))
    except BadInput as error:
        # The steward serves on: it is needed to see and repair anything.
        complain(f"no webhooks: {error.message}")
        return None
    return WebhookSender(hooks, root, complain) if hooks else None
