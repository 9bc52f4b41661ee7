"""Mutated inputs for every parser that reads what others wrote.

Mutation is by hand and without coverage: bytes are flipped, cut, doubled and spliced, and tokens
of the formats are inserted. An input that fails is kept in the campaign's folder.
"""

from __future__ import annotations

import json
import random
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from campaign import Campaign, Order, Row
from retinue.core.conversation import Call
from retinue.core.errors import RetinueError
from retinue.core.ids import TaskId
from retinue.formats.config_document import named_in, parse_config, parse_task_config
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
from retinue.gateway.request_summary import (
    DocumentTooLarge,
    InvalidDocument,
    build_outline,
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
from retinue.store.task_yaml import TaskFile
from retinue.workspaces.git.import_tree import parse_diff

# What the model client of a member turns into one error.
READ_BY_MEMBER = (
    VendorError,
    UnreadableAnswer,
    AttributeError,
    TypeError,
    ValueError,
    LookupError,
)
SLOW_SECONDS = 1.0
MOST_BYTES = 64 * 1024
TOKENS = (
    b"{", b"}", b"[", b"]", b'"', b"'", b":", b",", b"\\", b"\n", b"\r\n", b"\0", b"\xff", b"\x1b[",
    b"null", b"true", b"NaN", b"1e999", b"-1", b"0.1", b"\\ud800", b"\xed\xa0\x80", b"---\n",
    b"&a [*a]", b"<<: *a", b"!!python/object/apply:os.system [id]", b"data: ",
    b"\n\n", b"? ", b"- ",
    b"[" * 200, b'{"a":' * 200, b"9" * 400, b"\xe2\x80\xa8", b"%00", b"../", b"*" * 40, b"\t",
)  # fmt: skip


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
    named_in(document)
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
DIFF = b":100644 100644 1234567 89abcde M\0a.txt\0:000000 120000 0000000 89abcde A\0b\0"
BRIEF = b'[{"task":"x","subagent_id":"one","context_paths":["."],"timeout_seconds":3}]'


def make_targets(folder: Path) -> dict[str, Target]:
    task_file = folder / "task.yaml"

    def parse_task_file(data: bytes) -> object:
        task_file.write_bytes(data)
        file = TaskFile(task_file)
        file.read_config()
        return file.update_roster([], "open", "2026-01-01T00:00:01Z")

    def parse_one_brief(data: bytes) -> object:
        return parse_briefs(load_yaml(data, where="fuzz"))

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
        "git diff": Target(
            parse=lambda d: list(parse_diff(d)), seeds=[DIFF], refusals=(RetinueError, ValueError)
        ),
    }


def mutate(chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Return a seed after one to eight changes."""
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.randint(1, 8)):
        place = chance.randint(0, len(data))
        match chance.randrange(7):
            case 0 if data:
                data[place % len(data)] ^= 1 << chance.randrange(8)
            case 1:
                data[place:place] = chance.choice(TOKENS)
            case 2:
                del data[place : place + chance.randint(1, 16)]
            case 3:
                piece = data[place : place + chance.randint(1, 32)]
                data[place:place] = piece * chance.choice((1, 2, 50))
            case 4:
                other = chance.choice(seeds)
                data[place:] = other[chance.randint(0, len(other)) :]
            case 5:
                data[place : place + 1] = chance.choice(TOKENS)
            case _:
                del data[place:]
    return bytes(data[:MOST_BYTES])


def run(order: Order) -> list[Row]:
    rows = []
    targets = make_targets(order.folder)
    began = time.monotonic()
    for place, (name, target) in enumerate(targets.items()):
        # Each target has its share of the time that is left.
        share = (order.end - began) * (place + 1) / len(targets)
        rows.append(_attack(name, target, order, began + share))
    return rows


def _attack(name: str, target: Target, order: Order, end: float) -> Row:
    row = Row(case=name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    slowest = 0.0
    kinds: set[str] = set()
    for seed in target.seeds:
        target.parse(seed)  # a seed that is refused would make the mutations worthless
    for number in order.iter_rounds():
        if time.monotonic() >= end:
            break
        data = mutate(random.Random(f"{order.seed}:{name}:{number}"), target.seeds)
        row.tried += 1
        began = time.process_time()  # of this process: the machine may be busy
        wrong = ""
        try:
            target.parse(data)
        except target.refusals:
            pass
        except Exception as error:
            wrong = _name_fault(error)
        seconds = time.process_time() - began
        slowest = max(slowest, seconds)
        if seconds > SLOW_SECONDS:
            wrong = wrong or f"took {seconds:.1f} s"
        if wrong and wrong not in kinds:
            kinds.add(wrong)
            kept = order.folder / f"{name.replace(' ', '-')}-{number}"
            kept.write_bytes(data)
            row.note(f"input {number}: {wrong}; kept as {kept}")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    row.figures = f"slowest {slowest * 1000:.1f} ms of CPU, memory +{grown / 1024:.0f} MB"
    return row


def _name_fault(error: Exception) -> str:
    """Return the exception and the innermost line of the product that raised it."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if "retinue" in Path(path).parts:
            place = f"{Path(path).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__} at {place}: {str(error)[:120]!a}"


CAMPAIGN = Campaign(
    promise="No parser answers hostile input with anything but its documented refusal, within "
    "1 s of CPU and with bounded memory.",
    rounds=2000,
    unit="input to each parser",
    run=run,
    left_out="HTTP heads of page, gateway and MCP over real sockets; mutation is not guided by "
    "coverage",
)
