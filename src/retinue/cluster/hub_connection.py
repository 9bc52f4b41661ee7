"""Connection of a steward or a node to the hub, a NATS server with JetStream.

Only three of its operations are used, all of them requests: a compare-and-swap of the last message
of a subject, a direct read of that message, and a request to a peer. Plain subscriptions carry
hints. There are no JetStream consumers, because a consumer can die silently when the server is
killed and comes back; a plain subscription is made again with each reconnect.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client, RawCredentials
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import api
from nats.js.errors import APIError

from retinue.cluster.hub_users import ATTEMPTS, BLOBS, INVITES, NODES
from retinue.core.errors import Refused, RetinueError, StewardUnavailable

# asyncio warns at the end of each TLS connection; nats-py is written so, and nothing is wrong.
logging.getLogger("asyncio").addFilter(
    lambda record: not record.getMessage().startswith("returning true from eof_received")
)
WRONG_REVISION = (10071, 10164)  # error codes of JetStream
KEPT_S = 7 * 86_400  # attempts and blobs in the hub
ANSWER_S = 5.0
CONNECT_S = 5
RECONNECT_S = 0.1  # nats-py accepts fractions
AGAIN_S = 1.0  # before a connection is made anew that nats-py gave up
REFUSED_AGAIN_S = 10.0  # the same, if the hub refuses this member
MOST_REFUSALS = 3  # one after another; then the hub does not know this member any more
REFUSALS = ("authorization violation", "authentication revoked", "authentication expired")
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


class MemberRefused(Refused):
    """The hub answers and does not accept the credentials of this member."""

    default_code = "member_refused"
    default_hint = "it was expelled, or the hub was made anew; ask for a new invitation"


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
    after: int = -1  # the revision that it replaced, if its writer named one
    ttl_s: int = 0  # after which the hub is to delete it; 0: never


@dataclass
class _Subscription:
    """A subscription, which is made again with each new client."""

    subject: str
    handler: Handler
    client: Client | None = None
    made: Subscription | None = None

    async def make(self, client: Client) -> None:
        """Subscribe, unless that was done with this client."""
        if self.client is not client:
            self.client = client
            # A closed client refuses; the next one subscribes.
            with suppress(nats.errors.Error):
                self.made = await client.subscribe(self.subject, cb=self.handler)


class HubConnection:
    """One TLS connection to the hub, which is made again whenever it is lost."""

    def __init__(self, address: HubAddress, complain: Callable[[str], None]) -> None:
        self.address = address
        self._complain = complain
        self._client = Client()
        self._again: list[Callback] = []
        self._subscribed: dict[int, _Subscription] = {}
        self._numbers = itertools.count()
        self._used = False
        self._opened = False
        self._closing = False
        self._renewal: asyncio.Task[None] | None = None
        self._refusals = 0  # one after another
        self._failures = 0  # to connect, before it was connected
        self._refusing = asyncio.Event()  # there were enough of them since it began to connect
        self._told = ""  # the problem that was complained of last
        self.refused = asyncio.Event()  # the hub does not accept this member any more

    def on_reconnect(self, callback: Callback) -> None:
        self._again.append(callback)

    @property
    def is_connected(self) -> bool:
        return bool(self._client.is_connected)

    async def open(self, *, patient: bool) -> None:
        """Connect; if `patient`, try until the hub answers.

        Raises:
            HubUnreachable: the hub does not answer.
            MemberRefused: the hub does not accept this member.
        """
        if self._used:
            self._client = Client()  # what failed to connect is not used again
        self._used = True
        await self._connect(self._client, patient=patient)
        self._opened = True
        await self._subscribe_all()

    async def _connect(self, client: Client, *, patient: bool) -> None:
        """Raises:
        HubUnreachable: the hub does not answer.
        MemberRefused: the hub does not accept this member.
        """
        address = self.address
        self._refusals = 0
        self._refusing.clear()
        connecting = asyncio.ensure_future(
            client.connect(
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
                closed_cb=partial(self._on_closed, client),
            )
        )
        refused = asyncio.ensure_future(self._refusing.wait())
        try:
            await asyncio.wait({connecting, refused}, return_when=asyncio.FIRST_COMPLETED)
            if not connecting.done():
                raise self.make_refusal()
            await connecting
        except (OSError, TimeoutError, nats.errors.Error, ssl.SSLError) as error:
            if _is_refusal(error):
                raise self.make_refusal() from error
            raise HubUnreachable(f"the hub at {address.url} cannot be used: {error}") from error
        finally:
            refused.cancel()
            connecting.cancel()
            # Its end is awaited, so that nothing of it connects later.
            await asyncio.wait({connecting})
        self._note_connected()

    def make_refusal(self) -> MemberRefused:
        """Return the error for a member that the hub does not accept."""
        return MemberRefused(f"the hub at {self.address.url} does not accept this member")

    def _note_connected(self) -> None:
        self._refusals = 0
        self.refused.clear()
        if self._told:
            self._complain(f"connected to the hub at {self.address.url}")
        self._told = ""

    async def close(self) -> None:
        self._closing = True
        if self._renewal is not None:
            self._renewal.cancel()
        await _close(self._client)

    async def _on_error(self, error: Exception) -> None:
        if _is_refusal(error):
            self._refusals += 1
            if self._refusals >= MOST_REFUSALS:
                if self._opened:
                    self._tell("does not accept this member any more")
                self.refused.set()
                self._refusing.set()
        elif not isinstance(error, OSError | nats.errors.Error | TimeoutError | EOFError):
            self._complain(f"hub connection: {error!r}")
        elif not self._opened:
            self._failures += 1
            if self._failures >= MOST_REFUSALS:
                self._tell("does not answer; trying again until it does")

    def _tell(self, problem: str) -> None:
        """Complain of a problem once, and not again before the hub was connected."""
        if problem != self._told:
            self._told = problem
            self._complain(f"the hub at {self.address.url} {problem}")

    async def _on_reconnected(self) -> None:
        self._note_connected()
        for callback in self._again:
            await callback()

    async def _on_closed(self, client: Client) -> None:
        """Connect anew: nats-py gives up for good when a server sends an error."""
        if client is self._client and self._opened and not self._closing:
            self._renewal = asyncio.get_running_loop().create_task(self._connect_anew())

    async def _connect_anew(self) -> None:
        while True:
            await asyncio.sleep(REFUSED_AGAIN_S if self.refused.is_set() else AGAIN_S)
            client = Client()
            with suppress(HubUnreachable, MemberRefused):
                await self._connect(client, patient=True)
                break
            await _close(client)
        self._client = client
        await self._subscribe_all()
        await self._on_reconnected()

    async def _subscribe_all(self) -> None:
        for subscription in list(self._subscribed.values()):
            await subscription.make(self._client)

    def _require_opened(self, subject: str) -> None:
        """Refuse to send with a client that has not been connected: it would keep it for ever.

        Raises:
            HubUnreachable: it was never connected.
        """
        if not self._opened:
            raise HubUnreachable(f"{subject}: not connected yet")

    async def request(self, subject: str, data: bytes, timeout_s: float = ANSWER_S) -> bytes:
        """Ask a peer and return its answer.

        Raises:
            HubUnreachable: there is no answer.
        """
        return bytes((await self._request(subject, data, timeout_s)).data)

    async def _request(
        self, subject: str, data: bytes, timeout_s: float, headers: dict[str, str] | None = None
    ) -> Msg:
        self._require_opened(subject)
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
        self._require_opened(subject)
        try:
            await self._client.publish(subject, data, headers=headers)
        except (nats.errors.Error, OSError) as error:
            raise HubUnreachable(f"{subject}: not sent ({type(error).__name__})") from error

    async def subscribe(self, subject: str, handler: Handler) -> Callback:
        """Call the handler for each message; return a function that ends the subscription."""
        number = next(self._numbers)
        subscription = self._subscribed[number] = _Subscription(subject, handler)
        if self._opened:
            await subscription.make(self._client)

        async def end() -> None:
            self._subscribed.pop(number, None)
            # A closed connection has ended its subscriptions.
            with suppress(nats.errors.Error):
                if subscription.made is not None:
                    await subscription.made.unsubscribe()

        return end

    async def flush(self) -> None:
        """Wait until the hub has received what was sent so far.

        Raises:
            HubUnreachable: it does not answer.
        """
        self._require_opened("flush")
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

        self._require_opened(stream)
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


async def _close(client: Client) -> None:
    # A TLS handshake that a lost hub cut short leaves a transport that never says it is closed,
    # and nats-py waits for it without a limit.
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await client.close()


def _is_refusal(error: Exception) -> bool:
    """Return whether a server refused the credentials."""
    return any(words in str(error).lower() for words in REFUSALS)


def read_replaced(headers: Mapping[str, str] | None) -> int:
    """Return the revision that a message was to replace; -1 if it names none."""
    try:
        return int((headers or {}).get(EXPECTED, -1))
    except ValueError:
        return -1


def _parse_stored(message: Msg) -> Stored | None:
    headers = message.headers or {}
    if "Nats-Sequence" not in headers:
        return None
    deleted = headers.get("KV-Operation") in GONE
    ttl = headers.get("Nats-TTL", "")
    gone = deleted or "Nats-Marker-Reason" in headers
    return Stored(
        subject=headers["Nats-Subject"],
        revision=int(headers["Nats-Sequence"]),
        data=None if gone else bytes(message.data),
        deleted=deleted,
        after=read_replaced(headers),
        ttl_s=int(ttl[:-1]) if re.fullmatch("[0-9]{1,9}s", ttl) else 0,
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
