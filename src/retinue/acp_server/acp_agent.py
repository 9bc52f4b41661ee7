"""Agent of the Agent Client Protocol, version 1, over standard input and output.

A session is a task. Its first prompt spawns a subagent, each further one continues it, so a session
survives this process and can be loaded again. A question of the subagent is a gate: the client is
asked for permission, and may answer with the next prompt instead.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from retinue.core.errors import AGENT, NotFound, RetinueError
from retinue.core.ids import is_id
from retinue.core.safe_text import reveal_hidden
from retinue.delegation.answer_text import format_running
from retinue.delegation.result_view import AnswerBudget
from retinue.delegation.task_session import Choice, TaskSession
from retinue.mcp_server.effective_limits import ParentLink
from retinue.mcp_server.jsonrpc_validation import JsonRpcError, read_line
from retinue.mcp_server.stdio_transport import Sink, StdioLines, claim_pipes, read_from
from retinue.trust import note_use
from retinue.version import VERSION

PROTOCOL = 1
TURN_SECONDS = 86_400.0  # asked for; the configuration's longest time limit is in force
TITLE = "Subagent at work"
BEAT_SECONDS = 2.0
FIRST_TURN = "turn-1"  # id of its subagent
MOST_LOADED = 100  # turns of a session that are replayed
MOST_LISTED = 1000  # subagents among which they are looked for
MOST_ANSWER = 1 << 20  # characters; an editor has no tool to fetch the rest
METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL = -32601, -32602, -32603
OPTIONS = [
    {"optionId": "approve", "name": "Approve", "kind": "allow_once"},
    {"optionId": "reject", "name": "Reject", "kind": "reject_once"},
    {"optionId": "answer", "name": "Answer in the next message", "kind": "reject_once"},
]
CAPABILITIES = {
    "loadSession": True,
    "promptCapabilities": {"image": False, "audio": False, "embeddedContext": True},
}

Message = dict[str, Any]


class InvalidParams(Exception):
    """The parameters of a request are not those of the protocol."""


class AcpSession:
    """One session: the task, and the subagent of its newest turn."""

    def __init__(
        self, link: ParentLink, name: str, folder: Path, config: Mapping[str, str]
    ) -> None:
        self.name = name
        choice = Choice(
            folder=folder,
            task=name,
            config_text=config.get("config_text", ""),
            config_name=config.get("config_name", ""),
        )
        self.subagents = TaskSession(link.call, choice)
        self.last = ""  # subagent of the newest turn; empty before the first
        self.turn: asyncio.Task[Any] | None = None

    async def find_turns(self) -> list[Message]:
        """Find the turns of a session that another process began, oldest first."""
        await self.subagents.look()
        rows = await self.subagents.list_rows(MOST_LISTED)
        # Without the subagents that these delegated to.
        turns = [row for row in rows if FIRST_TURN in (row["subagent_id"], row.get("continues"))]
        self.last = str(turns[-1]["subagent_id"]) if turns else ""
        return turns[-MOST_LOADED:]


class AcpAgent:
    """Requests and notifications of one client."""

    def __init__(self, link: ParentLink, sink: Sink, config: Mapping[str, str]) -> None:
        self._link = link
        self._sink = sink
        self._config = config
        self._sessions: dict[str, AcpSession] = {}
        self._asked: dict[int, asyncio.Future[Message]] = {}  # our requests to the client
        self._number = 0
        self._working: set[asyncio.Task[None]] = set()

    async def serve(self, lines: StdioLines) -> None:
        """Serve until the input ends; turns that are under way are then cancelled."""
        try:
            while (line := await lines.read_line()) is not None:
                read = line if isinstance(line, JsonRpcError) else read_line(line)
                if isinstance(read, JsonRpcError):
                    await self._send(read.to_json())
                elif read is not None:
                    self._accept(read)
        finally:
            for task in self._working:
                task.cancel()
            if self._working:
                await asyncio.wait(self._working)

    def _accept(self, message: Message) -> None:
        if "method" not in message:
            answered = self._asked.pop(message["id"], None) if "id" in message else None
            if answered is not None and not answered.done():
                answered.set_result(message)
            return
        if message["method"] == "session/cancel":
            session = self._sessions.get(str((message.get("params") or {}).get("sessionId")))
            if session is not None and session.turn is not None:
                session.turn.cancel()
            return
        if "id" in message:
            task = asyncio.create_task(self._answer(message))
            self._working.add(task)
            task.add_done_callback(self._working.discard)

    async def _answer(self, message: Message) -> None:
        handlers = {
            "initialize": self._initialize,
            "authenticate": self._authenticate,
            "session/new": self._new,
            "session/load": self._load,
            "session/prompt": self._prompt,
        }
        answer: Message = {"jsonrpc": "2.0", "id": message["id"]}
        handle = handlers.get(message["method"])
        try:
            if handle is None:
                raise InvalidParams(f"unknown method {message['method'][:80]!a}")
            answer["result"] = await handle(message.get("params") or {})
        except InvalidParams as error:
            code = METHOD_NOT_FOUND if handle is None else INVALID_PARAMS
            answer["error"] = {"code": code, "message": str(error)}
        except RetinueError as error:
            told = error.read_by(AGENT)
            words = told.message + (f" ({told.hint})" if told.hint else "")
            data = {"code": told.code, "hint": told.hint}
            answer["error"] = {"code": INTERNAL, "message": words, "data": data}
        await self._send(answer)

    async def _initialize(self, params: Message) -> Message:
        return {
            "protocolVersion": PROTOCOL,
            "agentCapabilities": CAPABILITIES,
            "agentInfo": {"name": "retinue", "title": "Retinue", "version": VERSION},
            "authMethods": [],
        }

    async def _authenticate(self, params: Message) -> Message:
        return {}

    async def _new(self, params: Message) -> Message:
        folder = _take_folder(params)
        name = f"acp-{secrets.token_hex(4)}"
        self._sessions[name] = AcpSession(self._link, name, folder, self._config)
        return {"sessionId": name}

    async def _load(self, params: Message) -> Message:
        name = str(params.get("sessionId"))
        if not is_id(name):
            raise InvalidParams("unknown sessionId")
        session = AcpSession(self._link, name, _take_folder(params), self._config)
        rows = await session.find_turns()
        if not rows:
            raise NotFound(f"no session {name}", code="unknown_task", hint="start a new session")
        before = ""
        for row in rows:
            shown = await self._link.call("subagent.show", task=name, subagent=row["subagent_id"])
            brief = shown["contract"]["step"]["description"]
            # A successor's brief repeats the one before it.
            prompt = brief.removeprefix(before).strip()
            before = brief
            await self._update(session, "user_message_chunk", _to_text(prompt))
            answer = (shown.get("result") or {}).get("answer")
            if answer:
                await self._update(session, "agent_message_chunk", _to_text(reveal_hidden(answer)))
        self._sessions[name] = session
        return {}

    async def _prompt(self, params: Message) -> Message:
        session = self._sessions.get(str(params.get("sessionId")))
        if session is None:
            raise InvalidParams("unknown sessionId")
        if session.turn is not None:
            raise InvalidParams("the session has a turn already; cancel it first")
        text = _read_prompt(params.get("prompt"))
        session.turn = asyncio.create_task(self._run_turn(session, text))
        try:
            await session.turn
        except asyncio.CancelledError:
            current = asyncio.current_task()
            # Either the client cancelled the turn, or this process is ending.
            if current is not None and current.cancelling():
                session.turn.cancel()
                raise
            return {"stopReason": "cancelled"}
        finally:
            session.turn = None
        return {"stopReason": "end_turn"}

    async def _run_turn(self, session: AcpSession, text: str) -> None:
        call = f"turn-{secrets.token_hex(4)}"
        title: Message = {"title": TITLE, "kind": "think", "status": "in_progress"}
        await self._update(session, "tool_call", toolCallId=call, **title)
        telling = asyncio.create_task(self._tell_progress(session, call))
        try:
            result = await self._work(session, text)
            while result["status"] == "blocked":
                outcome = await self._ask_permission(session, call, result)
                if outcome not in ("approve", "reject"):
                    break
                result = await self._decide_gate(session, outcome)
        except asyncio.CancelledError:
            # The subagent is stopped, not only left alone.
            if session.last:
                with suppress(RetinueError):
                    await session.subagents.look()
                    await session.subagents.ask(
                        "cancel", subagent=session.last, reason="the client cancelled the turn"
                    )
            raise
        except RetinueError:
            await self._update(session, "tool_call_update", toolCallId=call, status="failed")
            raise
        finally:
            telling.cancel()
        state = "completed" if result["success"] or result["status"] == "blocked" else "failed"
        await self._update(session, "tool_call_update", toolCallId=call, status=state)
        view = AnswerBudget(MOST_ANSWER, "").shape_result(result)
        await self._update(session, "agent_message_chunk", _to_text(_format_answer(view)))

    async def _tell_progress(self, session: AcpSession, call: str) -> None:
        """Show how far the session's subagents are, whenever that has changed."""
        shown = ""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            # What cannot be read now is shown later, and the turn itself meets the error.
            with suppress(RetinueError):
                await session.subagents.look()
                words = format_running(await session.subagents.list_rows(0))
                if words != shown:
                    title = f"{TITLE}: {words}"
                    await self._update(session, "tool_call_update", toolCallId=call, title=title)
                    shown = words

    async def _work(self, session: AcpSession, text: str) -> Message:
        """Spawn the first turn, or continue the newest; return the result."""
        if session.last:
            # The turn that created the task may have been cancelled before it was known.
            await session.subagents.look()
            result: Message = await session.subagents.ask(
                "continue", subagent=session.last, message=text
            )
        else:
            name = FIRST_TURN
            brief = {
                "task": text,
                "subagent_id": name,
                "context_paths": ["./"],
                "timeout_seconds": TURN_SECONDS,
            }
            session.last = name  # before it can be cancelled
            try:
                batch = await session.subagents.spawn(
                    tasks=[brief], key=f"acp-{session.name}", wait=True
                )
            except RetinueError:
                session.last = ""
                raise
            result = batch["results"][0]
        session.last = str(result["subagent_id"])
        return result

    async def _decide_gate(self, session: AcpSession, outcome: str) -> Message:
        gates = await self._link.call("gate.list", task=session.name)
        mine = [
            gate
            for gate in gates
            if gate["agentInstance"] == session.last and gate["state"] == "open"
        ]
        if not mine:
            raise NotFound(
                "the question was answered elsewhere",
                code="unknown_gate",
                hint="send the next prompt to continue the session",
            )
        verb = f"gate.{outcome}"
        await self._link.call(verb, task=session.name, gate=mine[0]["gate_id"], by="user")
        while True:
            told: Message = await session.subagents.ask("wait")
            # Results of others come in between: of subagents that it delegated to.
            if told["agentInstance"] == session.last:
                result: Message = told["result"]
                return result

    async def _ask_permission(self, session: AcpSession, call: str, result: Message) -> str:
        """Return the option that the client chose; `cancelled` if it chose none."""
        asks = "\n".join(map(str, result.get("questions") or ["It asks for approval."]))
        questions = reveal_hidden(asks)
        content = [{"type": "content", "content": _to_text(questions)}]
        asked = {"toolCallId": call, "title": questions[:200], "content": content}
        answer = await self._request(
            "session/request_permission",
            {"sessionId": session.name, "toolCall": asked, "options": OPTIONS},
        )
        told = answer.get("result")
        outcome = told.get("outcome") if isinstance(told, dict) else None
        chosen = outcome.get("optionId") if isinstance(outcome, dict) else None
        return str(chosen or "cancelled")

    async def _request(self, method: str, params: Message) -> Message:
        self._number += 1
        number = self._number
        answered: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._asked[number] = answered
        try:
            await self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
            return await answered
        finally:
            self._asked.pop(number, None)

    async def _update(
        self, session: AcpSession, what: str, content: Message | None = None, **more: Any
    ) -> None:
        update: Message = {"sessionUpdate": what, **more}
        if content is not None:
            update["content"] = content
        params = {"sessionId": session.name, "update": update}
        await self._send({"jsonrpc": "2.0", "method": "session/update", "params": params})

    async def _send(self, document: Message) -> None:
        text = json.dumps(document, ensure_ascii=True, separators=(",", ":"))
        # The client has closed its end: the end of the input follows.
        with suppress(OSError):
            await self._sink.send(text.encode() + b"\n")


def run(root: Path, config: Mapping[str, str]) -> None:
    """Serve one client over standard input and output until it closes them."""

    async def serve() -> None:
        note_use(root, os.environ)
        link = ParentLink(root)
        with claim_pipes() as (source, sink):
            serving = asyncio.current_task()
            assert serving is not None
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
            try:
                with suppress(asyncio.CancelledError):
                    out = Sink(sink)
                    await out.open()
                    await AcpAgent(link, out, config).serve(await read_from(source))
            finally:
                link.close()

    asyncio.run(serve())


def _take_folder(params: Message) -> Path:
    folder = params.get("cwd")
    if not isinstance(folder, str) or not folder.startswith("/"):
        raise InvalidParams("cwd must be an absolute path")
    return Path(folder)


def _read_prompt(blocks: object) -> str:
    """Return the text of a prompt: its texts, and the names or texts of its resources."""
    parts: list[str] = []
    for block in blocks if isinstance(blocks, list) else []:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text":
            parts.append(str(block.get("text", "")))
        elif kind == "resource_link":
            parts.append(f"See {str(block.get('uri', '')).removeprefix('file://')}")
        elif kind == "resource" and isinstance(block.get("resource"), dict):
            found = block["resource"]
            parts.append(f"{found.get('uri', '')}:\n{found.get('text', '')}")
    text = "\n\n".join(filter(None, (part.strip() for part in parts)))
    if not text:
        raise InvalidParams("the prompt has no text")
    return text


def _format_answer(view: Message) -> str:
    """Return the words for the person at the client."""
    parts = [str(view["answer"] or "")]
    if view.get("questions"):
        parts += ["It asks:", *(f"- {each}" for each in view["questions"])]
    if not view["success"] and view["status"] != "blocked":
        parts.append(f"[{view['status']}] {view.get('error', '')}".strip())
        parts += [f"Its output:\n{view['error_output']}"] if view.get("error_output") else []
        parts.append(f"Workspace: {view['workspace']}")
    return reveal_hidden("\n\n".join(filter(None, parts)))


def _to_text(text: object) -> Message:
    return {"type": "text", "text": str(text)}
