"""A subagent's own folder: its contract, its workspace, what it leaves behind.

agents/<id>/
  contract.json  session.json  result.json  conversation.jsonl
  workspace/          the one tree it may write, besides full_logs/
  context/            what it was given to read
  inbox/              what a team is told while it works
  full_logs/          what it writes of itself
  runtime/            streams and records of the present attempt; attempts/<n>/ of earlier ones
  artifacts/          its answer and its report, copied out of its reach
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from retinue.domain.ending import Ending
from retinue.domain.errors import LaunchFailed, StorageFailed
from retinue.domain.ids import TaskId
from retinue.domain.notes import asked
from retinue.domain.result import Ends, Evidence, Result, Status
from retinue.domain.subagent import Subagent
from retinue.files import RESERVE, make_folder, storage_failures
from retinue.ports import Prepared
from retinue.wire.event import to_line
from retinue.wire.protocol import DESK, SOCKET
from retinue.wire.result import json_to_text, result_to_json, result_to_text
from retinue.workspaces.contexts import lay_out
from retinue.workspaces.evidence import ANSWER, FINAL, gathered
from retinue.workspaces.layers import base_of
from retinue.workspaces.own import add, is_new_folder, own_folder, put, put_first
from retinue.workspaces.reader import ANSWER_LIMIT_BYTES, Unreadable, read_child_file
from retinue.workspaces.sessions import CONVERSATION, last_told, read_own, told
from retinue.workspaces.toolservers import handed_to, lent_to

SESSION = "session.jsonl"
OF_ONE_ATTEMPT = ("stdout.log", "stderr.log", "exit.json", "init.log")

_path = lru_cache(maxsize=256)(Path)  # the same few are asked for again and again


class FolderWorkspace:
    """Implements `Workspace` with plain folders below the tasks of a root."""

    def __init__(
        self, root: Path, environment: Mapping[str, str], known: Mapping[str, str] | None = None
    ) -> None:
        self.root = root
        self._known = known or {}  # variables of ours that a configuration may hand on by name
        self._tasks = root / "tasks"
        self._environment = dict(environment)

    def folder_of(self, task: TaskId, name: str) -> Path:
        return Path(self._place(task, name))

    def _place(self, task: TaskId, name: str) -> str:
        """The same as text: a path that is only handed to the kernel need not be taken apart."""
        return f"{self._tasks}/{task}/agents/{name}"

    def workspace_of(self, subagent: Subagent) -> Path:
        owner = subagent.contract.continues or subagent.id
        return _path(f"{self._place(subagent.task, owner)}/workspace")

    def runtime_folder_of(self, subagent: Subagent, attempt: int = 0) -> Path:
        newest = attempt in (0, subagent.standing.attempt)
        aside = "" if newest else f"/attempts/{attempt}"
        return _path(f"{self._place(subagent.task, subagent.id)}/runtime{aside}")

    def prepare(self, subagent: Subagent, attempt: int, words: str) -> Prepared:
        folder = self._place(subagent.task, subagent.id)
        brief = f"{folder}/runtime/brief.txt"
        try:
            if attempt == 1 and is_new_folder(folder):
                self._make(subagent, folder)
                put_first(brief, words.encode("utf-8", "replace"), mode=0o444)
            else:
                self._make_again(subagent, folder, attempt)
                put(brief, words.encode("utf-8", "replace"), mode=0o444)
            self._take_up(subagent, attempt, words, folder)
        except (StorageFailed, OSError) as error:
            raise LaunchFailed(f"its folder could not be made: {error}") from error
        return Prepared(
            workspace=self.workspace_of(subagent),
            runtime_folder=self.runtime_folder_of(subagent),
            environment=self._environment | self._variables(subagent, attempt, folder),
            writable=(Path(f"{folder}/full_logs"),),
            readable=(
                Path(f"{folder}/contract.json"),
                Path(brief),
                Path(f"{folder}/context"),
                *self._hears(subagent, folder),
            ),
            lent=(*lent_to(subagent.contract), *self._sockets(subagent)),
            hidden=(self.root,),
        )

    def deliver(self, subagent: Subagent, number: int, text: str) -> None:
        """The message lies where the child finds it, and cannot change it.

        Raises:
            StorageFailed: the disk said no.
        """
        place = f"{self._place(subagent.task, subagent.id)}/inbox/{number:08}.txt"
        put(place, text.encode("utf-8", "replace"), mode=0o444)

    def newest_message(self, subagent: Subagent) -> int:
        """The number of the last message that was delivered to it; 0 where there was none."""
        with suppress(FileNotFoundError):
            found = os.listdir(f"{self._place(subagent.task, subagent.id)}/inbox")
            return max((int(name[:-4]) for name in found if name.endswith(".txt")), default=0)
        return 0

    def _take_up(self, subagent: Subagent, attempt: int, words: str, folder: str) -> None:
        """What was said before is there: for people, and for a team that goes on from it."""
        if subagent.contract.team is None:
            said = {"role": "user", "attempt": attempt, "content": words}
            add(f"{folder}/{CONVERSATION}", to_line(said))
            return
        before = told(Path(folder))
        if subagent.contract.resumes:
            earlier = self.folder_of(subagent.task, subagent.contract.resumes)
            before = read_own(earlier / CONVERSATION) + before
        put(f"{folder}/{CONVERSATION}", before)
        if before:
            put(f"{folder}/runtime/{SESSION}", before, mode=0o444)

    def _hears(self, subagent: Subagent, folder: str) -> list[Path]:
        """Where a team finds what it is told while it works, and what was said before."""
        if subagent.contract.team is None:
            return []
        inbox, session = Path(f"{folder}/inbox"), Path(f"{folder}/runtime/{SESSION}")
        return [inbox, session] if session.exists() else [inbox]

    def _sockets(self, subagent: Subagent) -> list[Path]:
        """Where the steward's is, for one that may delegate; nobody else can even see it."""
        folder = self.root / DESK
        may = subagent.contract.permissions.can_spawn_children
        return [folder] if may and folder.exists() else []

    def checking(self, subagent: Subagent, workspace: Path, runtime_folder: Path) -> Prepared:
        """What a command needs that checks output before it is joined."""
        about = {
            "RETINUE_SUBAGENT_ID": subagent.id,
            "RETINUE_TASK_ID": subagent.task,
            "RETINUE_WORKSPACE": str(workspace),
        }
        return Prepared(
            workspace=workspace,
            runtime_folder=runtime_folder,
            environment=self._environment | about,
            hidden=(self.root,),
        )

    def evidence(self, subagent: Subagent, attempt: int, ending: Ending) -> Evidence:
        folder = self._place(subagent.task, subagent.id)
        with RESERVE.lent():
            return gathered(folder, self.workspace_of(subagent), subagent.contract, ending)

    def publish(self, subagent: Subagent, result: Result, ends: Ends = ()) -> None:
        folder = self._place(subagent.task, subagent.id)
        artifacts = f"{folder}/artifacts"
        for place in (folder, f"{folder}/runtime", artifacts):
            own_folder(place)
        workspace = Path(f"{folder}/workspace") if subagent.contract.outputs.base else None
        if workspace and base_of(workspace) and not os.path.lexists(workspace):
            make_folder(workspace)  # it could not be laid out, which is done for whoever goes on
        if result.answer is not None:
            put_first(f"{artifacts}/{ANSWER}", result.answer.encode("utf-8", "replace"))
        self._keep_conversation(subagent, result, folder)
        put_first(self._report_place(subagent), self._report(subagent, result))
        told = result_to_json(result)
        if ends:
            every = ((nth, told if end is result else result_to_json(end)) for nth, end in ends)
            lines = b"".join(to_line({"attempt": nth} | end) for nth, end in every)
            put_first(f"{folder}/runtime/attempts.jsonl", lines)
        if not os.path.exists(f"{folder}/contract.json"):  # no attempt came as far as that
            _put_contract(subagent, folder)
        put(f"{folder}/result.json", json_to_text(told).encode())
        if result.status is Status.BLOCKED:
            self._ask(subagent, result)

    def publish_joined(self, subagent: Subagent, result: Result) -> None:
        """What is told in its folder is what became of its output, also where that is worse."""
        folder = self._place(subagent.task, subagent.id)
        own_folder(folder)
        if not result.success:
            own_folder(f"{folder}/artifacts")
            put(self._report_place(subagent), self._report(subagent, result))
        put(f"{folder}/result.json", result_to_text(result).encode())

    def _report_place(self, subagent: Subagent) -> str:
        folder = self._place(subagent.task, subagent.id)
        return f"{folder}/artifacts/step-{subagent.step_idx}-result.md"

    def _keep_conversation(self, subagent: Subagent, result: Result, folder: str) -> None:
        if subagent.contract.team is not None:
            before = read_own(Path(f"{folder}/runtime/{SESSION}"))
            put(f"{folder}/{CONVERSATION}", before + last_told(Path(folder)))
        elif result.answer is not None:
            said = {"role": "assistant", "content": result.answer}
            add(f"{folder}/{CONVERSATION}", to_line(said))

    def _make(self, subagent: Subagent, folder: str) -> None:
        for name in ("runtime", "full_logs", "artifacts"):
            make_folder(f"{folder}/{name}")
        if subagent.contract.team is not None:
            make_folder(f"{folder}/inbox", mode=0o755)  # the child may be another user than we are
        workspace = f"{folder}/workspace"
        if not subagent.contract.continues:
            make_folder(workspace)
        elif not os.path.islink(workspace):
            os.symlink(f"../{subagent.contract.continues}/workspace", workspace)
        lay_out(subagent.contract.context, Path(f"{folder}/context"))
        session = {"sub_agent_id": subagent.id, "workspace": str(self.workspace_of(subagent))}
        put_first(f"{folder}/session.json", to_line(session))
        # Last, because its presence says that the rest is there.
        _put_contract(subagent, folder)

    def _make_again(self, subagent: Subagent, folder: str, attempt: int) -> None:
        """What an earlier attempt, or an earlier steward, left is as a new attempt needs it."""
        own_folder(folder)
        own_folder(f"{folder}/runtime")
        if not os.path.exists(f"{folder}/contract.json"):
            self._make(subagent, folder)
        _set_aside(Path(folder), attempt)

    def _variables(self, subagent: Subagent, attempt: int, base: str) -> dict[str, str]:
        sockets = self._sockets(subagent)
        granted = {"RETINUE_STEWARD": f"{sockets[0]}/{SOCKET}"} if sockets else {}
        heard = zip(("RETINUE_INBOX", "RETINUE_SESSION"), self._hears(subagent, base), strict=False)
        granted |= {name: str(path) for name, path in heard}
        granted |= handed_to(subagent.contract, self._known)
        return granted | {
            "RETINUE_SUBAGENT_ID": subagent.id,
            "RETINUE_TASK_ID": subagent.task,
            "RETINUE_ATTEMPT": str(attempt),
            "RETINUE_WORKSPACE": str(self.workspace_of(subagent)),
            "RETINUE_CONTRACT": f"{base}/contract.json",
            "RETINUE_BRIEF": f"{base}/runtime/brief.txt",
            "RETINUE_CONTEXT": f"{base}/context",
            "RETINUE_LOGS": f"{base}/full_logs",
            "RETINUE_ANSWER": f"{base}/full_logs/{ANSWER}",
            "RETINUE_FINAL": f"{base}/full_logs/{FINAL}",
        }

    def _report(self, subagent: Subagent, result: Result) -> bytes:
        """The subagent's own report, or one made of its result."""
        try:
            path = subagent.contract.report_path
            return read_child_file(
                self.workspace_of(subagent), path, ANSWER_LIMIT_BYTES, cut=True
            ).data
        except Unreadable:
            lines = [f"# {subagent.contract.step.title}", "", f"Status: {result.status.value}"]
            if result.error:
                lines += ["", f"Error: {result.error}"]
            lines += ["", result.answer or "No answer.", ""]
            return "\n".join(lines).encode("utf-8", "replace")

    def _ask(self, subagent: Subagent, result: Result) -> None:
        shared = self._tasks / subagent.task / "shared"
        make_folder(shared)
        text = asked(subagent.task, subagent.gate, result.questions)
        add(shared / "human-notes.md", text.encode("utf-8", "replace"))


def _put_contract(subagent: Subagent, folder: str) -> None:
    put(f"{folder}/contract.json", subagent.contract_text.encode(), mode=0o444)


def _set_aside(folder: Path, attempt: int) -> None:
    """Nothing of an earlier attempt can be taken for this one's, and nothing of it is lost."""
    runtime, logs = folder / "runtime", folder / "full_logs"
    kept = runtime / "attempts" / str(attempt - 1)
    left = [runtime / name for name in OF_ONE_ATTEMPT if os.path.lexists(runtime / name)]
    if attempt > 1 and not kept.exists():
        # Under its final name only once all is in it: an interrupted move is taken up again.
        moving = kept.with_name(f".{kept.name}")
        own_folder(kept.parent)
        own_folder(moving)
        with storage_failures(kept):
            for path in left:
                path.rename(moving / path.name)
            if os.path.lexists(logs):
                logs.rename(moving / "full_logs")
            moving.rename(kept)
    else:  # the same attempt is launched again: it never ran
        for path in left:
            path.unlink()
    own_folder(logs)
