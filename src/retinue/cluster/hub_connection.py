"""Connection of a steward or a node to the hub, a NATS server with JetStream.

Only three of its operations are used, all of them requests: a compare-and-swap of the last message
of a subject, a direct read of that message, and a request to a peer. Plain subscriptions carry
hints. There are no JetStream consumers, because a consumer can die silently when the server is
killed and comes back; a plain subscription is made again with each reconnect.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client, RawCredentials
from nats.aio.msg import Msg
from nats.js import api
from nats.js.errors import APIError

from retinue.cluster.hub_users import ATTEMPTS, BLOBS, INVITES, NODES
from retinue.core.errors import RetinueError, StewardUnavailable

# asyncio warns at the end of each TLS connection; nats-py is written so, and nothing is wrong.
logging.getLogger("asyncio").addFilter(
    lambda record: not record.getMessage().startswith("returning true from eof_received")
)
WRONG_REVISION = (10071, 10164)  # error codes of JetStream
KEPT_S = 7 * 86_400  # attempts and blobs in the hub
ANSWER_S = 5.0
CONNECT_S = 5
RECONNECT_S = 0.1  # nats-py accepts fractions
PING_S = 2
CLOSE_S = 2.0
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
GONE = ("DEL", "PURGE")

Handler = Callable[[Msg], Awaitable[None]]
Callback = Callable[[], Awaitable[None]]


class HubUnreachable(StewardUnavailable):
    """The hub does not answer now."""

    default_code = "hub_unreachable"
    default_hint = "check that the hub runs ('retinue hub status' there) and can be reached"


class SwapRefused(RetinueError):
    """Another writer came first."""

    default_code = "swap_refused"


@dataclass(frozen=True, kw_only=True)
class HubAddress:
    """Address and certificate of a hub, and the credentials of one member."""

    url: str  # HOST:PORT, several with commas
    certificate: str  # PEM of the hub's own certificate authority
    token: str  # signed by the hub
    seed: str  # of the key that the token names
    identity: str  # of this member; part of its subjects
    lease_s: float = 30.0


@dataclass(frozen=True, kw_only=True)
class Stored:
    """The last message of a subject; without data, the marker that the message was deleted."""

    subject: str
    revision: int
    data: bytes | None
    deleted: bool = False  # by its owner; a marker of an expired lease is not


class HubConnection:
    """One TLS connection to the hub, which is made again whenever it is lost."""

    def __init__(self, address: HubAddress, complain: Callable[[str], None]) -> None:
        self.address = address
        self._complain = complain
        self._client = Client()
        self._again: list[Callback] = []
        self._connected = asyncio.Event()

    def on_reconnect(self, callback: Callback) -> None:
        self._again.append(callback)

    @property
    def is_connected(self) -> bool:
        return bool(self._client.is_connected)

    async def open(self, *, patient: bool) -> None:
        """Connect; if `patient`, try until the hub answers.

        Raises:
            HubUnreachable: the hub does not answer, or refuses this member.
        """
        address = self.address
        try:
            await self._client.connect(
                [f"tls://{each}" for each in address.url.split(",")],
                name=f"retinue {address.identity}",
                user_credentials=RawCredentials(_format_credentials(address)),
                tls=_make_tls(address.certificate),
                inbox_prefix=f"_INBOX_{address.identity}".encode(),
                connect_timeout=CONNECT_S,
                allow_reconnect=patient,
                max_reconnect_attempts=-1 if patient else 1,
                reconnect_time_wait=RECONNECT_S,  # type: ignore[arg-type]
                ping_interval=PING_S,
                max_outstanding_pings=2,
                pending_size=64 * 1024 * 1024,
                error_cb=self._on_error,
                reconnected_cb=self._on_reconnected,
            )
        except (OSError, TimeoutError, nats.errors.Error, ssl.SSLError) as error:
            raise HubUnreachable(f"the hub at {address.url} cannot be used: {error}") from error
        self._connected.set()

    async def close(self) -> None:
        # A TLS handshake that a lost hub cut short leaves a transport that never says it is closed,
        # and nats-py waits for it without a limit.
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._client.close()

    async def _on_error(self, error: Exception) -> None:
        if not isinstance(error, OSError | nats.errors.Error | TimeoutError | EOFError):
            self._complain(f"hub connection: {error!r}")

    async def _on_reconnected(self) -> None:
        for callback in self._again:
            await callback()

    async def request(self, subject: str, data: bytes, timeout_s: float = ANSWER_S) -> bytes:
        """Ask a peer and return its answer.

        Raises:
            HubUnreachable: there is no answer.
        """
        return bytes((await self._request(subject, data, timeout_s)).data)

    async def _request(
        self, subject: str, data: bytes, timeout_s: float, headers: dict[str, str] | None = None
    ) -> Msg:
        try:
            return await self._client.request(subject, data, timeout=timeout_s, headers=headers)
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise HubUnreachable(f"{subject}: no answer ({type(error).__name__})") from error

    async def publish(
        self, subject: str, data: bytes, headers: dict[str, str] | None = None
    ) -> None:
        """Send a hint; it may be lost.

        Raises:
            HubUnreachable: the connection is lost and its buffer is full.
        """
        try:
            await self._client.publish(subject, data, headers=headers)
        except (nats.errors.Error, OSError) as error:
            raise HubUnreachable(f"{subject}: not sent ({type(error).__name__})") from error

    async def subscribe(self, subject: str, handler: Handler) -> Callback:
        """Call the handler for each message; return a function that ends the subscription."""
        found = await self._client.subscribe(subject, cb=handler)

        async def end() -> None:
            try:
                await found.unsubscribe()
            except nats.errors.Error:
                return  # the connection is closed, and the subscription with it

        return end

    async def flush(self) -> None:
        """Wait until the hub has received what was sent so far.

        Raises:
            HubUnreachable: it does not answer.
        """
        try:
            await self._client.flush(timeout=int(ANSWER_S))
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise HubUnreachable("the hub does not answer") from error

    async def swap(
        self,
        subject: str,
        data: bytes,
        last: int | None,
        *,
        ttl_s: float = 0,
        headers: dict[str, str] | None = None,
        timeout_s: float = ANSWER_S,
    ) -> int:
        """Write the last message of a subject if its revision is `last`; return the new revision.

        Args:
            last: 0: there is no message yet; None: whatever is there.

        Raises:
            SwapRefused: the revision is another.
            HubUnreachable: no answer, so that it may or may not be written; or there is no stream.
        """
        sent = dict(headers or {})
        if last is not None:
            sent[EXPECTED] = str(last)
        if ttl_s:
            # Whole seconds, and never fewer: a lease must not end at the hub before its time.
            sent["Nats-TTL"] = f"{max(1, math.ceil(ttl_s))}s"
        answer = json.loads((await self._request(subject, data, timeout_s, sent)).data)
        if "error" in answer:
            error = answer["error"]
            if error.get("err_code") in WRONG_REVISION:
                raise SwapRefused(f"{subject}: another writer came first")
            raise HubUnreachable(f"{subject}: {error.get('description', error)}")
        return int(answer["seq"])

    async def read(self, stream: str, subject: str) -> Stored | None:
        """Return the last message of a subject; None if there is none.

        Raises:
            HubUnreachable: no answer, or there is no stream.
        """
        answer = await self._request(f"$JS.API.DIRECT.GET.{stream}.{subject}", b"", ANSWER_S)
        return _parse_stored(answer)

    async def read_all(self, stream: str, pattern: str) -> list[Stored]:
        """Return the last message of each subject that matches.

        Raises:
            HubUnreachable: no complete answer.
        """
        found: list[Stored] = []
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def take(message: Msg) -> None:
            stored = _parse_stored(message)
            if stored is not None:
                found.append(stored)
            elif not over.done():
                over.set_result(None)

        inbox = self._client.new_inbox()
        end = await self.subscribe(inbox, take)
        asked = json.dumps({"multi_last": [pattern]}).encode()
        try:
            await self._client.publish(f"$JS.API.DIRECT.GET.{stream}", asked, reply=inbox)
            async with asyncio.timeout(ANSWER_S):
                await over
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise HubUnreachable(f"{stream}: no answer ({type(error).__name__})") from error
        finally:
            await end()
        return found

    async def count_subjects(self, stream: str, pattern: str) -> int:
        """Return how many subjects that match have a message. Only stewards may ask.

        Raises:
            HubUnreachable: no answer, or there is no stream.
        """
        asked = json.dumps({"subjects_filter": pattern}).encode()
        answer = json.loads(await self.request(f"$JS.API.STREAM.INFO.{stream}", asked))
        if "error" in answer:
            raise HubUnreachable(f"{stream}: {answer['error'].get('description')}")
        return len(answer["state"].get("subjects") or {})

    async def make_streams(self, disk_bytes: int | None = None, replicas: int = 1) -> None:
        """Make the streams of the team, unless they exist. Only stewards and the hub may.

        Args:
            disk_bytes: most of all files; with it, streams that exist get these settings, too.
            replicas: how many servers of the hub store each message.

        Raises:
            HubUnreachable: the hub does not answer, or refuses.
        """
        # Security: with roll-ups, a node could delete the messages of all others. Markers of
        # expired messages would switch them on.
        last = {"max_msgs_per_subject": 1, "allow_direct": True, "allow_rollup_hdrs": False}
        leases = {"allow_msg_ttl": True}
        streams: list[dict[str, Any]] = [
            {"name": NODES, "subjects": ["$KV.nodes.>"], **last, **leases},
            {"name": ATTEMPTS, "subjects": ["$KV.attempts.>"], **last, "max_age": KEPT_S},
            {"name": INVITES, "subjects": ["invite.>"], **last, **leases},
            {
                "name": BLOBS,
                "subjects": ["blob.>"],
                **last,
                "max_age": KEPT_S,
                "max_bytes": -1 if disk_bytes is None else disk_bytes,
                "discard": api.DiscardPolicy.OLD,
            },
        ]
        manager = self._client.jetstream(timeout=ANSWER_S)
        try:
            for settings in streams:
                config = api.StreamConfig(**settings, num_replicas=replicas)
                try:
                    await manager.add_stream(config)
                except APIError as error:
                    if error.err_code != 10058:  # it exists with other settings
                        raise
                    if disk_bytes is not None:
                        await manager.update_stream(config)
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise HubUnreachable(f"the hub could not make its streams: {error}") from error


def _parse_stored(message: Msg) -> Stored | None:
    headers = message.headers or {}
    if "Nats-Sequence" not in headers:
        return None
    deleted = headers.get("KV-Operation") in GONE
    gone = deleted or "Nats-Marker-Reason" in headers
    return Stored(
        subject=headers["Nats-Subject"],
        revision=int(headers["Nats-Sequence"]),
        data=None if gone else bytes(message.data),
        deleted=deleted,
    )


def _format_credentials(address: HubAddress) -> str:
    return (
        f"-----BEGIN NATS USER JWT-----\n{address.token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{address.seed}\n------END USER NKEY SEED------\n"
    )


def _make_tls(certificate: str) -> ssl.SSLContext:
    """Return a context that trusts the hub's own authority and no other.

    The name is not checked: only the hub has the key of that authority, and it may be reached by
    any of its addresses.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate)
    return context
