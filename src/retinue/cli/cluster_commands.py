"""The commands `retinue hub`, `node`, `nodes` and `cluster`: more than one machine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import click

from retinue.cli import collect_garbage, render
from retinue.cli.options import CliCommand, CliGroup, missing_package, seconds, select_given, whole
from retinue.cli.steward_session import CliSession
from retinue.cli.temporary_root import stop
from retinue.client.blocking_client import connect_if_running
from retinue.core.errors import BadInput, NotFound

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
UNITS = {"": 1, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}  # in MB


def _run_async(extra: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run work that needs the packages of an extra.

    Raises:
        BadInput: a package is missing.
    """
    try:
        return asyncio.run(work())
    except ModuleNotFoundError as error:
        raise missing_package("more than one machine", error, extra=extra) from None


def _parse_labels(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...]:
    labels = tuple(part.strip() for part in (value or "").split(",") if part.strip())
    for label in labels:
        if not NAME.fullmatch(label):
            raise BadInput(
                f"{label[:80]!a} is not a label",
                code="invalid_label",
                hint="letters, digits, '.', '_' and '-'; separate labels with commas",
            )
    return labels


def _parse_addresses(
    _: click.Context, __: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    return None if value is None else tuple(each.strip() for each in value.split(","))


def _parse_disk_size(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    found = re.fullmatch(r"([0-9]+)([KMGT]?)B?", value.strip().upper())
    if found is None or int(found[1]) * UNITS[found[2]] < 1:
        raise BadInput(
            f"{value[:40]!a} is not a size", code="invalid_size", hint="for example 20G or 500M"
        )
    return int(int(found[1]) * UNITS[found[2]])


def parse_quotas(
    context: click.Context, option: click.Parameter, value: tuple[str, ...]
) -> dict[str, int]:
    """Parse the values of --quota: N for each steward, or ID=N for one."""
    found: dict[str, int] = {}
    for each in value:
        match = re.fullmatch(r"(?:([a-z0-9]*)=)?(0*[1-9][0-9]{0,5})", each)
        if match is None:
            raise BadInput(
                f"{each[:80]!a} is not a quota",
                code="invalid_quota",
                hint="a number for each steward, as in 4, or for one, as in ID=4; "
                "'retinue cluster status' in its project prints the id of a steward",
            )
        found[match[1] or ""] = int(match[2])
    return found


def _parse_duration(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(s|m|h|)", value.strip())
    if found is None:
        raise BadInput(
            f"{value[:40]!a} is not a duration", code="invalid_timeout", hint="as in 30s, 10m, 2h"
        )
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


# Hub


@click.group(cls=CliGroup, example="retinue hub start\nretinue hub invite")
def hub() -> None:
    """Run the server through which stewards and nodes communicate.

    It needs the extra: pip install 'retinue[hub]'. Its folder is RETINUE_HUB, by default
    ~/.local/share/retinue/hub. Of all machines, only the hub accepts connections.
    """


def _open_hub() -> Any:
    from retinue.cluster.hub_server import Hub, find_hub_folder

    return Hub(find_hub_folder(os.environ))


@hub.command("start", example="retinue hub start --listen 0.0.0.0:4222")
@click.option("--listen", metavar="HOST:PORT", help="Where to listen. Default: 0.0.0.0:4222.")
@click.option(
    "--lease",
    callback=seconds,
    metavar="SECONDS",
    help="A node that is silent for this long is lost, and its work starts again elsewhere."
    " Default: 30.",
)
@click.option(
    "--disk",
    callback=_parse_disk_size,
    metavar="SIZE",
    help="Maximum disk space for its files. Default: 20G, or less on a small disk.",
)
@click.option("--foreground", is_flag=True, help="Stay in the foreground, for service managers.")
@click.option(
    "--cluster",
    metavar="HOST:PORT",
    help="Where other servers of the same hub connect to this one.",
)
@click.option(
    "--routes",
    callback=_parse_addresses,
    metavar="HOST:PORT,…",
    help="The --cluster address of each server of the hub, three or more.",
)
@click.pass_obj
def start_hub(
    session: CliSession,
    listen: str | None,
    lease: float | None,
    disk: int | None,
    foreground: bool,
    cluster: str | None,
    routes: tuple[str, ...] | None,
) -> None:
    """Start the hub; make its keys and certificate on first use.

    In a folder with a root, this also connects that root. A hub of three servers keeps working
    when one is lost: copy hub.json, cert.pem and key.pem of its folder to the others before you
    start them.
    """

    async def work() -> dict[str, Any]:
        made = _open_hub()
        before = made.read_settings() if made.exists else None
        settings = made.prepare(
            listen=listen, lease_s=lease, disk_mb=disk, cluster=cluster, routes=routes
        )
        pid = await made.start() if not foreground else 0
        if (room_mb := made.find_room_mb()) < settings.disk_mb:
            render.note(
                f"the disk has room for {room_mb} MB and --disk is {settings.disk_mb} MB; a hub "
                "whose disk is full stores nothing until it is started again"
            )
        if before is not None and before.members and before.lease_s != settings.lease_s:
            render.note(
                f"members that joined before keep their lease of {before.lease_s:g} s; "
                "for another one, they join again with a new invitation"
            )
        return {"listen": settings.listen, "lease": settings.lease_s, "pid": pid}

    document = _run_async("hub", work)
    document["root"] = _connect_here(session)
    if foreground:
        command = _open_hub().build_command()
        render.note(f"hub at {document['listen']}; members connect as soon as it serves")
        os.execv(command[0], command)
    session.answer(document, _format_start)


def _format_start(it: dict[str, Any]) -> str:
    lines = [f"hub at {it['listen']}, lease {it['lease']:g} s, process {it['pid']}"]
    if it["root"]:
        lines.append(f"connected {it['root']}")
    else:
        lines.append("no root here; 'retinue cluster connect' in a project connects its root")
    lines.append("next: 'retinue hub invite' prints an invitation for a node")
    return "\n".join(lines)


def _connect_here(session: CliSession) -> str | None:
    """Connect the root of the current folder to the hub of this machine, if there is one."""
    from retinue.cluster.invitation import CREDENTIALS, write_membership

    root = session.find_folder()
    if not root.is_dir():
        return None
    if not (root / CREDENTIALS).exists():
        write_membership(root / CREDENTIALS, _open_hub().make_steward())
        _restart_steward(session, root)
    return str(root)


def _restart_steward(session: CliSession, root: Path) -> None:
    """Stop a running steward: the next one reads the credentials. Its subagents go on."""
    held = connect_if_running(root)
    if held is not None:
        with held:
            stop(held, lambda: session.call("steward.stop"))


@hub.command("status", example="retinue hub status --json")
@click.pass_obj
def show_hub(session: CliSession) -> None:
    """Show whether the hub of this machine runs. Always exits with 0."""

    async def work() -> dict[str, Any]:
        made = _open_hub()
        document: dict[str, Any] = {"folder": str(made.folder), "running": False, "pid": None}
        if not made.exists:
            return document
        settings = made.read_settings()
        kinds = [member["kind"] for member in settings.members.values()]
        return document | {
            "running": bool(made.find_process()),
            "pid": made.find_process() or None,
            "listen": settings.listen,
            "lease": settings.lease_s,
            "disk_mb": settings.disk_mb,
            "problem": made.find_problem(),
            "invited_nodes": kinds.count("node"),
            "stewards": kinds.count("steward"),
            "expelled": len(settings.revoked),
        }

    session.answer(_run_async("hub", work), _format_hub)


def _format_hub(it: dict[str, Any]) -> str:
    if "listen" not in it:
        return f"no hub in {it['folder']}"
    state = f"running, process {it['pid']}" if it["running"] else "not running"
    problem = f"\nproblem: {it['problem']}" if it["problem"] else ""
    return (
        f"{state}{problem}\n"
        f"listens at {it['listen']}, lease {it['lease']:g} s, files up to {it['disk_mb']} MB\n"
        f"nodes invited: {it['invited_nodes']}, stewards: {it['stewards']}, "
        f"expelled: {it['expelled']}"
    )


@hub.command("stop", example="retinue hub stop")
@click.pass_obj
def stop_hub(session: CliSession) -> None:
    """Stop the hub. Nodes work on until their lease ends, and reconnect later."""

    async def work() -> dict[str, Any]:
        pid = _open_hub().stop()
        return {"stopped": bool(pid), "pid": pid or None}

    said = {True: "stopped", False: "the hub was not running"}
    session.answer(_run_async("hub", work), lambda it: said[it["stopped"]])


@hub.command("invite", example="retinue hub invite --labels gpu\nretinue hub invite --steward")
@click.option("--labels", callback=_parse_labels, metavar="L,…", help="Labels that the node gets.")
@click.option("--days", type=float, metavar="N", help="Valid for N days. Default: 30.")
@click.option("--steward", is_flag=True, help="Invite a steward ('retinue cluster connect').")
@click.option("--host", metavar="HOST[:PORT]", help="Address of the hub as others reach it.")
@click.pass_obj
def invite(
    session: CliSession,
    labels: tuple[str, ...],
    days: float | None,
    steward: bool,
    host: str | None,
) -> None:
    """Print an invitation: one line, with which one machine can join once.

    Keep it as secret as a password.
    """

    async def work() -> dict[str, Any]:
        from retinue.cluster.invitation import USUAL_DAYS

        kind = "steward" if steward else "node"
        valid = USUAL_DAYS if days is None else days
        line, identity = await _open_hub().invite(kind=kind, labels=labels, days=valid, host=host)
        return {"invitation": line, "id": identity, "kind": kind, "days": valid}

    session.answer(_run_async("hub", work), lambda it: str(it["invitation"]))


@hub.command("expel", example="retinue hub expel w1")
@click.argument("name")
@click.pass_obj
def expel(session: CliSession, name: str) -> None:
    """Revoke a node, a steward or an invitation, by its name or id."""

    async def work() -> dict[str, Any]:
        return {"expelled": await _open_hub().expel(name)}

    session.answer(_run_async("hub", work), lambda it: f"expelled {name} ({it['expelled']})")


# Node


@click.group(
    cls=CliGroup,
    example="retinue node join 'retinue://hub:4222/#…' --name w1 --labels gpu --slots 8",
)
def node() -> None:
    """Let this machine run subagents for others.

    It needs the extra: pip install 'retinue[nodes]'. Its folder is --root or RETINUE_NODE, by
    default ~/.local/share/retinue/node.
    """


def _find_node_folder(session: CliSession) -> Path:
    given = session.root or os.environ.get("RETINUE_NODE")
    if given:
        return Path(given).absolute()
    data = os.environ.get("XDG_DATA_HOME") or f"{os.environ.get('HOME', '/')}/.local/share"
    return Path(data) / "retinue" / "node"


SERVING = [
    click.option(
        "--labels",
        callback=_parse_labels,
        metavar="L,…",
        help="Labels for --on of 'subagent spawn'.",
    ),
    click.option(
        "--slots",
        callback=whole,
        metavar="N",
        help="Maximum number of children at once. Default: 2 per processor.",
    ),
    click.option(
        "--memory",
        callback=whole,
        metavar="MB",
        help="Maximum sum of the children's memory limits.",
    ),
    click.option(
        "--quota",
        "quotas",
        callback=parse_quotas,
        multiple=True,
        metavar="[ID=]N",
        help="Maximum number of children of each steward, or of the steward with this id."
        " Can be repeated.",
    ),
    click.option("--drain-on-term", is_flag=True, help="On SIGTERM, finish the children first."),
]


def _add_serving_options(command: Any) -> Any:
    for option in reversed(SERVING):
        command = option(command)
    return command


@node.command("join", example="retinue node join 'retinue://hub:4222/#…' --name w1")
@click.argument("invitation")
@click.option("--name", metavar="N", help="Its name in lists. Default: the host's name.")
@_add_serving_options
@click.pass_obj
def join_node(session: CliSession, /, invitation: str, name: str | None, **options: Any) -> None:
    """Join a hub with an INVITATION, and serve until Ctrl-C or SIGTERM.

    Its children continue after that; 'retinue node start' takes them over.
    """
    import socket

    folder = _find_node_folder(session)
    name = name or re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()) or "node"
    if not NAME.fullmatch(name):
        raise BadInput(
            f"{name[:80]!a} is not a name for a node",
            code="invalid_name",
            hint="letters, digits, '.', '_' and '-', at most 64",
        )

    async def work() -> None:
        from retinue.cluster.invitation import (
            CREDENTIALS,
            Membership,
            parse_invitation,
            redeem,
            write_membership,
        )
        from retinue.cluster.sealing import make_key
        from retinue.files import make_folder

        if (folder / CREDENTIALS).exists():
            raise BadInput(
                f"{folder} is a node already",
                code="already_joined",
                hint="'retinue node start' serves again, 'retinue node leave' ends its membership",
            )
        parse_invitation(invitation, "node")
        make_folder(folder, mode=0o711)
        address, granted = await redeem(invitation, "node")
        membership = Membership(
            kind="node", address=address, secret=make_key(), name=name, labels=granted
        )
        write_membership(folder / CREDENTIALS, membership)

    _run_async("nodes", work)
    _serve(session, folder, options)


@node.command("start", example="retinue node start --slots 8")
@_add_serving_options
@click.pass_obj
def start_node(session: CliSession, /, **options: Any) -> None:
    """Serve again after 'node join', and take over children that are still running."""
    _serve(session, _find_node_folder(session), options)


def _serve(session: CliSession, folder: Path, options: dict[str, Any]) -> None:
    async def work() -> None:
        from retinue.cluster.invitation import CREDENTIALS, read_membership
        from retinue.cluster.node_program import NodeOptions, run_node
        from retinue.steward.app import make_failpoint

        membership = read_membership(folder / CREDENTIALS)
        if membership.kind != "node":
            raise BadInput(
                f"{folder} is not the folder of a node",
                code="invalid_membership",
                hint="name another one with --root, or join with 'retinue node join'",
            )
        slots = options["slots"] or 2 * (os.cpu_count() or 1)
        settings = NodeOptions(
            slots=slots,
            labels=options["labels"],
            memory_mb=options["memory"] or 0,
            quotas=options["quotas"],
            drain_on_term=options["drain_on_term"],
            failpoint=make_failpoint(os.environ.get("RETINUE_NODE_FAILPOINT", "")),
        )

        def tell_up() -> None:
            document = {"node": membership.name, "id": membership.address.identity, "slots": slots}
            session.answer(
                document, lambda it: f"node {it['node']} serves {membership.address.url}"
            )
            sys.stdout.flush()

        collect_garbage()
        await run_node(folder, membership, settings, render.note, tell_up)

    os.umask(0o022)
    _run_async("nodes", work)


@node.command("drain", example="retinue node drain\nretinue node drain w1 --within 10m")
@click.argument("name", required=False)
@click.option(
    "--within",
    callback=_parse_duration,
    metavar="DURATION",
    help="Stop the children after this time, such as 10m.",
)
@click.pass_obj
def drain_node(session: CliSession, name: str | None, within: float | None) -> None:
    """Accept no more work on a node; its program ends when its children have ended.

    With NAME: a node of the hub that this root is connected to. Without: the node of this machine.
    """
    if name is not None:
        document = session.call("nodes.drain", node=name, **select_given(within=within))
    else:
        folder = _find_node_folder(session)
        _require_node(folder)
        document = {"node": None, "draining": _signal_drain(folder, within)}
    session.answer(document, _format_drain)


def _format_drain(it: dict[str, Any]) -> str:
    if not it["draining"]:
        return "the node's program is not running"
    return "draining: it accepts no more work, and ends when its children have ended"


def _signal_drain(folder: Path, within: float | None) -> bool:
    pid = _find_node_process(folder)
    if pid:
        (folder / "drain").write_text("" if within is None else str(within))
        os.kill(pid, signal.SIGUSR1)
    return bool(pid)


def _find_node_process(folder: Path) -> int:
    """Return the process id of the node's program, or 0."""
    import fcntl

    try:
        with open(folder / "node.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return 0  # the lock is free: no program runs
    except BlockingIOError:
        return int((folder / "node.pid").read_text())
    except OSError:
        return 0


@node.command("leave", example="retinue node leave")
@click.pass_obj
def leave_node(session: CliSession) -> None:
    """Give up the membership of this machine. Its program must have ended ('node drain')."""
    folder = _find_node_folder(session)
    credentials = folder / "cluster.json"
    if _find_node_process(folder):
        raise BadInput(
            "the node's program is running",
            code="node_running",
            hint="'retinue node drain' lets it finish and end; then leave",
        )
    _require_node(folder)
    # The hub forgets the name of a node that left, so the hint gives its id.
    address = json.loads(credentials.read_text()).get("address", {})
    credentials.unlink()
    document = {"left": True, "id": address.get("identity")}
    session.answer(
        document,
        lambda it: f"left the hub; 'retinue hub expel {it['id']}' on its machine revokes the key",
    )


def _require_node(folder: Path) -> None:
    """Check that the folder is that of a node.

    Raises:
        NotFound: it has no credentials.
    """
    if not (folder / "cluster.json").exists():
        raise NotFound(
            f"{folder} is not a node", code="not_connected", hint="'retinue node join' makes it one"
        )


# Nodes and cluster


@click.command(
    cls=CliCommand,
    example="retinue nodes\nretinue nodes --json",
    exits="0 success\n3 this root is not connected to a hub",
)
@click.pass_obj
def nodes(session: CliSession) -> None:
    """List the machines that run subagents for this root.

    STATE is up, draining (it takes no more work), suspected (silent for a while), lost (its lease
    ended) or left. HEARD is the time since its last message. While the hub does not answer, the
    list shows the last known states and marks them as old.
    """
    rows = session.call("nodes.list")
    hub = session.call("cluster.status")
    if not hub["connected"]:
        render.note(f"the hub at {hub['hub']} does not answer; what is listed is what was known")
    session.answer(rows, lambda rows: _format_nodes(rows, connected=hub["connected"]))


def _format_nodes(rows: list[dict[str, Any]], *, connected: bool) -> str:
    if not rows:
        hint = "'retinue hub invite' prints an invitation"
        return f"no node has joined: {hint}" if connected else "no node is known"
    names = [row["node"] for row in rows]
    lines = [
        (
            # By their ids, nodes of one name can be told apart.
            row["node"] if names.count(row["node"]) == 1 else f"{row['node']} ({row['id']})",
            row["state"] if row["current"] else f"{row['state']} (old)",
            f"{row['busy']}/{row['slots']}",
            ",".join(row["labels"]),
            row["version"],
            _format_silence(row["heard_seconds"]),
        )
        for row in rows
    ]
    return render.format_table(("NODE", "STATE", "BUSY", "LABELS", "VERSION", "HEARD"), lines)


def _format_silence(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f}s"
    return f"{seconds / 60:.0f}m" if seconds < 7200 else f"{seconds / 3600:.0f}h"


@click.group(cls=CliGroup, example="retinue cluster connect 'retinue://hub:4222/#…'")
def cluster() -> None:
    """Connect this root to a hub.

    It needs the extra: pip install 'retinue[nodes]'.
    """


@cluster.command("connect", example="retinue cluster connect 'retinue://hub:4222/#…'")
@click.argument("invitation", required=False)
@click.pass_obj
def connect_cluster(session: CliSession, invitation: str | None) -> None:
    """Let the steward of this root use a hub.

    The INVITATION comes from 'retinue hub invite --steward'. Without one, the hub of this machine
    is used. The credentials are in cluster.json of the root.
    """
    root = session.find_folder()

    async def work() -> str:
        from retinue.cluster.invitation import CREDENTIALS, Membership, redeem, write_membership
        from retinue.cluster.sealing import make_key

        if not root.is_dir():
            raise NotFound(
                f"there is no root {root}",
                code="unknown_root",
                hint="'retinue task create' and 'retinue run' create one",
            )
        if invitation is None:
            write_membership(root / CREDENTIALS, _open_hub().make_steward())
            return "the hub of this machine"
        address, _ = await redeem(invitation, "steward")
        membership = Membership(kind="steward", address=address, secret=make_key())
        write_membership(root / CREDENTIALS, membership)
        return address.url

    where = _run_async("nodes", work)
    _restart_steward(session, root)
    session.answer({"root": str(root), "hub": where}, lambda it: f"connected to {it['hub']}")


@cluster.command(
    "status",
    example="retinue cluster status",
    exits="0 success\n3 this root is not connected to a hub",
)
@click.pass_obj
def show_cluster(session: CliSession) -> None:
    """Show the hub of this root, and the id under which nodes know its steward."""
    session.answer(session.call("cluster.status"), _format_cluster)


def _format_cluster(it: dict[str, Any]) -> str:
    state = "connected" if it["connected"] else "not connected: the hub does not answer"
    return (
        f"hub {it['hub']}, lease {it['lease']:g} s, {state}\n"
        f"steward {it['steward']}\n"
        f"nodes up: {it['nodes_up']}"
    )
