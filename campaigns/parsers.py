"""Parsers that read what others wrote, with inputs that each accepts."""

from __future__ import annotations

import asyncio
import atexit
import gzip
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from retinue.agents.acp_link import AcpLink
from retinue.agents.claude_link import ClaudeLink
from retinue.agents.codex_link import CodexLink
from retinue.agents.launch import AgentLaunch
from retinue.agents.link import Json
from retinue.agents.permissions import ContractPolicy
from retinue.agents.process_link import ProcessLink
from retinue.cluster import archive, messages
from retinue.cluster.invitation import format_invitation, parse_invitation
from retinue.connections import LineBuffer
from retinue.core.conversation import Call
from retinue.core.errors import RetinueError
from retinue.core.ids import TaskId
from retinue.formats.config_document import find_named_resources, parse_config, parse_task_config
from retinue.formats.contract_json import parse_briefs
from retinue.formats.exit_record import parse_ending
from retinue.formats.import_types import import_profile
from retinue.formats.plan_document import parse_plan
from retinue.formats.profile_document import parse_profile
from retinue.formats.result_json import result_from_text
from retinue.formats.steward_protocol import decode
from retinue.formats.testimony_json import (
    entry_from_line,
    parse_final,
    parse_notices,
    parse_testimony,
    turns_from_text,
)
from retinue.formats.yaml_document import load_yaml
from retinue.gateway.request_policy import strip_hosted_search
from retinue.gateway.request_summary import (
    DocumentTooLarge,
    InvalidDocument,
    build_outline,
    describe_request,
    parse_document,
)
from retinue.gateway.usage_meter import UsageMeter
from retinue.gateway.vendors import VENDORS
from retinue.gateway.vendors.base import (
    Rates,
    UnreadableAnswer,
    Vendor,
    VendorError,
    parse_documents,
)
from retinue.mcp_server.jsonrpc_validation import read_line
from retinue.store.rebuild import read_history
from retinue.store.task_yaml import RosterEntry, TaskFile
from retinue.team.models.http_framing import MalformedResponse, make_body_reader, read_head
from retinue.workspaces.git.git_command import GitOutput, _find_error_line
from retinue.workspaces.git.import_tree import parse_diff
from support.coding_agents import find_agent
from support.replay import read_recording

MODEL_PATHS = (
    ("openai", "/v1/chat/completions"),
    ("openai", "/v1/responses"),
    ("anthropic", "/v1/messages"),
    ("gemini", "/v1beta/models/m:generateContent"),
)
# What the model client of a member turns into one error.
READ_BY_MEMBER = (
    VendorError,
    UnreadableAnswer,
    AttributeError,
    TypeError,
    ValueError,
    LookupError,
)


@dataclass(frozen=True, kw_only=True)
class Target:
    """A parser, inputs that it accepts, and the exceptions that it documents."""

    parse: Callable[[bytes], object]
    seeds: Sequence[bytes]
    refusals: tuple[type[Exception], ...] = (RetinueError,)


def _to_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _parse_yaml_config(data: bytes) -> object:
    document = load_yaml(data, where="fuzz")
    find_named_resources(document)
    parse_task_config(document or {}, where="fuzz")
    return parse_config(document or {}, where="fuzz")


def _parse_reply(vendor: Vendor) -> Callable[[bytes], object]:
    return lambda data: vendor.parse_reply(parse_documents(data), Rates())


def _meter(vendor: Vendor) -> Callable[[bytes], object]:
    """Return a function that counts an answer as the gateway does, in two pieces."""

    def count(data: bytes) -> None:
        for endpoint in vendor.endpoints:
            for kind in ("text/event-stream", "application/json"):
                meter = UsageMeter(vendor, endpoint, content_type=kind, collects_tools=True)
                meter.feed(data[: len(data) // 2])
                meter.feed(data[len(data) // 2 :])
                meter.finish()

    return count


def _build_stream(vendor: Vendor) -> bytes:
    """Return an answer as the vendor streams it."""
    call = Call(id="1", tool="read_file", arguments={"path": "a"})
    events = [*vendor.build_events("hello"), *vendor.build_events("hello", call)]
    return b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in events)


def _parse_outline(data: bytes) -> object:
    text, _ = build_outline(data)
    return parse_document(text)


def _parse_response(data: bytes) -> None:
    """Read an HTTP response as a member reads a provider's, in two pieces."""
    text, _, rest = data.partition(b"\r\n\r\n")
    reader = make_body_reader(read_head(text))
    reader.feed(rest[: len(rest) // 2])
    reader.feed(rest[len(rest) // 2 :])
    reader.is_complete()


def _parse_message(data: bytes) -> None:
    """Read what a node wrote, in each of its forms."""
    for parse in (messages.decode, messages.NodeRecord.parse):
        with suppress(messages.InvalidMessage):
            parse(data)
    head, _ = messages.decode(len(data).to_bytes(4, "little") + data)
    messages.boundary_from_json(head)


def _describe_model_request(data: bytes) -> None:
    for name, path in MODEL_PATHS:
        describe_request(VENDORS[name], path, data)
    strip_hosted_search([("originator", "codex_exec")], data)


def _make_unpacker(folder: Path) -> Callable[[bytes], object]:
    top = folder / "unpacked"

    def unpack(data: bytes) -> None:
        top.mkdir()
        try:
            archive.unpack(gzip.compress(data, 0), top, ["it"])
        finally:
            shutil.rmtree(top)

    return unpack


def _make_archive() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as made:
        for name, kind in (
            ("it", tarfile.DIRTYPE),
            ("it/file", tarfile.REGTYPE),
            ("it/link", tarfile.SYMTYPE),
            ("it/mark", tarfile.CHRTYPE),
        ):
            entry = tarfile.TarInfo(name)
            entry.type = kind
            entry.mode = 0o755
            entry.linkname = "file" if kind == tarfile.SYMTYPE else ""
            entry.pax_headers = {archive.OPAQUE: "n", "mtime": "1.5"}
            entry.size = 5 if kind == tarfile.REGTYPE else 0
            made.addfile(entry, io.BytesIO(b"hello"))
    return out.getvalue()


class _Listener:
    """Connection to an agent that only has a voice."""

    over = ""
    can_reply = True

    async def start(self) -> None:
        pass

    def write(self, message: Json) -> None:
        json.dumps(message, ensure_ascii=True).encode()

    async def close(self) -> None:
        pass


def _hear_agent(make: Callable[..., ProcessLink]) -> Callable[[bytes], object]:
    """Return a function that has a link hear these bytes in a running turn."""
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)
    launch = AgentLaunch(argv=("agent",), environment={}, cwd="/workspace")

    async def hear(data: bytes) -> None:
        ears: list[Callable[[bytes | None], None]] = []

        def connect(argv: Iterable[str], launch: AgentLaunch, hear: object, end: object) -> object:
            ears.append(hear)  # type: ignore[arg-type]
            return _Listener()

        policy = ContractPolicy(find_agent("claude"), None)
        link = make(launch, lambda _: None, policy, connect=connect)
        await link._start()
        await link._begin_turn()
        buffer = LineBuffer()
        for line in buffer.take_lines(data):
            ears[0](None if line is None else bytes(line))

    return lambda data: loop.run_until_complete(hear(data))


def _list_said(name: str) -> list[bytes]:
    """Return what a real agent wrote in a recorded conversation, in pieces."""
    lines = [json.dumps(each["out"]).encode() for each in read_recording(name) if "out" in each]
    lines = [line + b"\n" for line in lines if len(line) < 4000]
    return [b"".join(lines[at : at + 8]) for at in range(0, len(lines), 8)][:8]


PLAN = b"""goal: Build it
base: {repository: "."}
steps:
  - id: one
    title: Do one
    command: [sh, -c, "echo 1 > one"]
    owns: [one, "src/**"]
    retries: 0
  - id: two
    title: Do two
    description: write it
    depends_on: [one]
"""
CONFIG = b"""agents:
  - id: one
    backend: {type: openai, model: m, api_key_env: SOME_KEY, base_url: "https://example.org"}
orchestrator:
  coordination:
    subagent_default_timeout: 20
    subagent_max_concurrent: 3
    subagent_runtime_mode: inherited
"""
PROFILE = b"---\nname: critic\ndescription: reads\nskills: [one, two]\n---\n\nRead it.\n"
TYPE_IN_TOML = b'name = "critic"\ndescription = "d"\ndeveloper_instructions = "p"\n'
TASK = b"""id: "t"
title: "t"
description: ""
createdAt: "2026-01-01T00:00:00Z"
config:
  maxConcurrentAgents: 3
  timeoutSeconds: 3600
"""
STATUS = (
    b'{"meta":{"elapsed_seconds":1.5},"costs":{"total_input_tokens":3,"total_estimated_cost":0.1},'
    b'"coordination":{"phase":"presentation","completion_percentage":80},"agents":{"a":{"status":'
    b'"answered","token_usage":{"input_tokens":1}}},"results":{"winner":"a","votes":{"a1":2}},'
    b'"historical_workspaces":[{"agentId":"a","answerLabel":"a1","timestamp":"t",'
    b'"workspacePath":"/w"}]}'
)
EVENT = (
    b'{"seq":1,"id":"t:1","ts":"2026-01-01T00:00:00Z","type":"task.created","taskId":"t","run_id":'
    b'"t-run-1","agentInstance":null,"attempt":null,"by":"user","contract_sha256":null,"payload":'
    b'{"summary":"task created: t","title":"t"}}\n'
)
RESULT = (
    b'{"subagent_id":"one","status":"completed","success":true,"answer":"x","workspace":"/w",'
    b'"workspace_path":"/w","execution_time_seconds":1.5,"token_usage":{"input_tokens":1},'
    b'"log_path":"/l","integration":{"reason":"merged"}}'
)
MCP = (
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"spawn_subagents",'
    b'"arguments":{"tasks":[{"task":"x"}]}}}'
)
BODY = b'{"model":"m","messages":[{"role":"user","content":"hello \\"you\\""}],"stream":true}'
CODEX_BODY = (
    b'{"model":"m","input":[{"type":"message","role":"user","content":[]}],"tools":[{"type":'
    b'"function","name":"f"},{"type":"web_search","external_web_access":false}],"max_tokens":5}'
)
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n3;a=b\r\nyou\r\n0\r\nTrailer: x\r\n\r\n"
)
PLAIN = b"HTTP/1.0 404 Not Found\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello"
NODE = (
    b'{"name":"n","epoch":"e","state":"up","slots":2,"busy":0,"labels":["a"],"isolation":"",'
    b'"layers":true,"version":"1","box":"00ff","speaks":[1,1],"memory_mb":5,"bases":[]}'
)
ENDED = b'{"state":"ended","limits":{"memory_mb":5},"launch_prefix":["x"],"mode":"isolated"}'
INVITATION = {
    "certificate": "c", "token": "t", "seed": "s", "id": "i", "lease": 3.0, "kind": "node",
}  # fmt: skip
DIFF = b":100644 100644 1234567 89abcde M\0a.txt\0:000000 120000 0000000 89abcde A\0b\0"
BRIEF = b'[{"task":"x","subagent_id":"one","context_paths":["."],"timeout_seconds":3}]'


def make_targets(folder: Path) -> dict[str, Target]:
    """Return the parsers by name. Files that some of them read are made in the folder."""
    # In memory where that is possible: each input is written and synced.
    memory = Path("/dev/shm")
    quick = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else folder))
    atexit.register(shutil.rmtree, quick, ignore_errors=True)
    task_file = quick / "task.yaml"

    def parse_task_file(data: bytes) -> object:
        task_file.write_bytes(data)
        file = TaskFile(task_file)
        file.read_config()
        entry = RosterEntry(instance="one", agent="a", state="active")
        file.update_roster([entry], "open", "2026-01-01T00:00:01Z")
        # What was written is read again, by this steward and by the next one.
        TaskFile(task_file).read_config()
        return file.read_config()

    def parse_one_brief(data: bytes) -> object:
        return parse_briefs(load_yaml(data, where="fuzz"))

    invitation = format_invitation("nats://h:1", INVITATION)
    notices = b'{"kind":"tool","name":"x"}\n'
    final = b'{"status":"blocked","questions":["a?"]}'
    return {
        "MCP line": Target(parse=read_line, seeds=[MCP]),
        "steward protocol": Target(parse=decode, seeds=[MCP, b'{"id":1,"verb":"v","params":{}}']),
        "YAML": Target(parse=lambda d: load_yaml(d, where="fuzz"), seeds=[PLAN, CONFIG, TASK]),
        "configuration": Target(parse=_parse_yaml_config, seeds=[CONFIG]),
        "plan": Target(parse=lambda d: parse_plan(_to_text(d), where="fuzz"), seeds=[PLAN]),
        "brief": Target(parse=parse_one_brief, seeds=[BRIEF]),
        "task.yaml": Target(parse=parse_task_file, seeds=[TASK]),
        "SUBAGENT.md": Target(parse=lambda d: parse_profile(d, where="fuzz"), seeds=[PROFILE]),
        "foreign type": Target(
            parse=lambda d: import_profile(d, where="fuzz", filename="critic.md"), seeds=[PROFILE]
        ),
        "foreign type, TOML": Target(
            parse=lambda d: import_profile(d, where="fuzz", filename="critic.toml"),
            seeds=[TYPE_IN_TOML],
        ),
        "status.json": Target(parse=parse_testimony, seeds=[STATUS], refusals=()),
        "final declaration": Target(parse=parse_final, seeds=[final], refusals=()),
        "notices": Target(parse=parse_notices, seeds=[notices, STATUS], refusals=()),
        "conversation": Target(
            parse=lambda d: (entry_from_line(d), turns_from_text(_to_text(d), "a")),
            seeds=[b'{"member":"a","role":"user","text":"x","calls":[]}\n'],
            refusals=(),
        ),
        "exit record": Target(
            parse=parse_ending,
            seeds=[b'{"attempt":1,"kind":"exited","exit_code":0,"signal":null,"duration_ms":3}'],
            refusals=(),
        ),
        "event log": Target(
            parse=lambda d: read_history(TaskId("t"), d.splitlines(keepends=True)),
            seeds=[EVENT, EVENT + EVENT.replace(b'"seq":1', b'"seq":2')],
            refusals=(),
        ),
        "result": Target(parse=lambda d: result_from_text(_to_text(d)), seeds=[RESULT]),
        "model request": Target(
            parse=_parse_outline, seeds=[BODY], refusals=(InvalidDocument, DocumentTooLarge)
        ),
        **{
            f"{name} stream": Target(
                parse=_parse_reply(vendor),
                seeds=[_build_stream(vendor)],
                refusals=READ_BY_MEMBER,
            )
            for name, vendor in VENDORS.items()
        },
        **{
            f"{name} usage": Target(
                parse=_meter(vendor), seeds=[_build_stream(vendor)], refusals=()
            )
            for name, vendor in VENDORS.items()
        },
        "model request features": Target(
            parse=_describe_model_request, seeds=[BODY, CODEX_BODY], refusals=()
        ),
        "response of a provider": Target(
            parse=_parse_response, seeds=[CHUNKED, PLAIN], refusals=(MalformedResponse,)
        ),
        "claude stream": Target(
            parse=_hear_agent(ClaudeLink), seeds=_list_said("claude"), refusals=()
        ),
        "codex stream": Target(
            parse=_hear_agent(CodexLink), seeds=_list_said("codex"), refusals=()
        ),
        "ACP stream": Target(
            parse=_hear_agent(partial(AcpLink, profile=find_agent("gemini"))),
            seeds=[*_list_said("gemini"), *_list_said("goose")],
            refusals=(),
        ),
        "message of a node": Target(
            parse=_parse_message, seeds=[NODE, ENDED], refusals=(messages.InvalidMessage,)
        ),
        "archive of a node": Target(
            parse=_make_unpacker(quick),
            seeds=[_make_archive()],
            refusals=(archive.ArchiveRefused,),
        ),
        "invitation": Target(
            parse=lambda d: parse_invitation(_to_text(d), "node"), seeds=[invitation.encode()]
        ),
        "git diff": Target(
            parse=lambda d: list(parse_diff(d)), seeds=[DIFF], refusals=(RetinueError, ValueError)
        ),
        "git errors": Target(
            parse=lambda d: (_find_error_line(d), GitOutput(code=1, out=d).lines),
            seeds=[b"fatal: not a tree\n", b"error: files would be lost:\n\ta\n\tb\nAborting\n"],
            refusals=(),
        ),
    }
