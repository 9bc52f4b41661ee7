"""Folder of a subagent: its contract, its workspace and its output.

agents/<id>/
  contract.json  session.json  result.json  conversation.jsonl
  workspace/          the only tree the child may write, besides full_logs/
  context/            files and folders given to it for reading
  agent_home/         settings and sessions of coding agents, one folder per member
  inbox/              messages to a team while it works
  full_logs/          what the child writes about itself
  runtime/            streams and records of the current attempt; attempts/<n>/ of earlier ones
  artifacts/          answer and report, copied out of the child's reach
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from retinue.core.contract import ISOLATED_PLACE, Contract, list_context_places
from retinue.core.errors import LaunchFailed, Refused, StorageFailed
from retinue.core.gate_notes import format_gate_note
from retinue.core.ids import TaskId
from retinue.core.result import Ending, EndKind, Ends, Evidence, Result, Status
from retinue.core.subagent import Subagent
from retinue.core.task_config import ISOLATED
from retinue.core.voting import OURS, SNAPSHOTS, TEMPORARY
from retinue.files import (
    RESERVE,
    NotPlainFile,
    list_entries,
    make_folder,
    make_folders,
    read_plain,
    storage_failures,
    unlock_folders,
)
from retinue.formats.json_text import to_line
from retinue.formats.result_json import json_to_text, result_to_json, result_to_text
from retinue.formats.steward_protocol import DESK, SOCKET
from retinue.ports import LaunchOrder
from retinue.workspaces.child_files import (
    ANSWER_LIMIT_BYTES,
    UnreadableFile,
    is_empty,
    list_child_folder,
    list_left,
    read_answer,
    read_child_file,
    read_error_output,
    read_final,
    read_last_line,
    read_notices,
    read_testimony,
)
from retinue.workspaces.contexts import lay_out, list_recorded, require_unchanged
from retinue.workspaces.overlay import find_base
from retinue.workspaces.owned_files import (
    add,
    is_new_folder,
    own_folder,
    put,
    put_first,
)
from retinue.workspaces.secret_values import GivenSecrets, Redactor, list_redacted, read_secrets
from retinue.workspaces.tool_server_checks import list_lent_paths, select_variables

CONVERSATION = "conversation.jsonl"
LIMIT_BYTES = 16 * 1024 * 1024


def read_conversation(folder: Path) -> bytes:
    """Return the lines of all attempts of a subagent, in order."""
    attempts = folder / "runtime" / "attempts"
    numbers = sorted(int(each.name) for each in list_entries(attempts) if each.name.isdecimal())
    places = [attempts / str(number) / "full_logs" for number in numbers]
    return b"".join(_read_lines(place) for place in (*places, folder / "full_logs"))


def read_last_attempt(folder: Path) -> bytes:
    """Return the lines of the current attempt."""
    return _read_lines(folder / "full_logs")


def read_own(path: Path) -> bytes:
    """Return the content of one of Retinue's files; empty if it is missing or not a plain file."""
    try:
        return read_plain(path)
    except (FileNotFoundError, NotPlainFile):
        return b""


def _read_lines(logs: Path) -> bytes:
    """Return the whole lines of a conversation."""
    try:
        data = read_child_file(logs, CONVERSATION, LIMIT_BYTES, cut=True).data
    except UnreadableFile:
        return b""
    # The child's end, or the limit, may have cut the last line.
    return data[: data.rfind(b"\n") + 1]


# Folders of a team in its workspace, which are not its output.
TEAM_FOLDERS = [f"{top}{name}" for top in ("", f"{OURS}/") for name in (SNAPSHOTS, TEMPORARY)]
STDIN = "stdin.txt"  # in runtime/
GIVEN = "secrets.json"  # in runtime/: digests of the secrets that attempts got
ANSWER, FINAL = "answer.txt", "final.json"  # in full_logs/
AGENT_HOME = "agent_home"
URGENT = ".now.txt"  # end of the name of a message that interrupts a coding agent
_MESSAGE = re.compile(r"([0-9]{1,12})(\.now)?\.txt")  # name of a delivered message


def gather_evidence(folder: str, workspace: Path, contract: Contract, ending: Ending) -> Evidence:
    """Collect everything a child left, as unverified claims; never raise for what it wrote."""
    if os.path.islink(folder):
        return Evidence(ending=ending, warnings=("its folder was replaced by a link",))
    evidence = _read_claims(folder, workspace, contract, ending)
    finished = evidence.finished
    if contract.team is None and not finished:
        evidence = replace(evidence, output=read_error_output(Path(f"{folder}/runtime")))
    if not _is_folder(workspace) and ending.kind is not EndKind.LAUNCH_FAILED:
        gone = "its workspace is gone, or was replaced"
        return replace(evidence, warnings=(gone, *evidence.warnings))
    # In a checkout, files of the base cannot be distinguished from those that the child made.
    if finished or contract.outputs.base:
        return evidence
    return replace(evidence, files=list_left(workspace, TEAM_FOLDERS if contract.team else ()))


def _read_claims(folder: str, workspace: Path, contract: Contract, ending: Ending) -> Evidence:
    """Read what the child printed and what it wrote about itself."""
    runtime = Path(f"{folder}/runtime")
    logs = Path(f"{folder}/full_logs")
    # The child may have removed permissions from its own folders.
    unlock_folders(folder, runtime, logs, workspace)
    silent = is_empty(logs)
    heard = Evidence(
        ending=ending,
        stdout=read_answer(runtime, "stdout.log").text,
        last_words="" if silent and ending.clean else read_last_line(runtime, "stderr.log"),
    )
    if silent:
        return heard
    testimony, answers = read_testimony(logs)
    final = read_answer(logs, ANSWER)
    refusals, lacks, notices = read_notices(logs) if contract.team is not None else ((), (), ())
    return replace(
        heard,
        testimony=testimony,
        answers=answers,
        final_answer=final.text,
        declaration=read_final(logs, FINAL),
        refusals=refusals,
        notices=notices if contract.agents else (),
        warnings=tuple(filter(None, [final.problem, *lacks])),
    )


def _is_folder(path: Path) -> bool:
    """Return whether the path itself is a folder, and not a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def make_launch_order(
    subagent: Subagent,
    workspace: Path,
    runtime_folder: Path,
    environment: Mapping[str, str],
    attempt: int = 1,
) -> LaunchOrder:
    """Return an order for these folders on the subagent's terms, without a command."""
    terms = subagent.contract.execution
    return LaunchOrder(
        task=subagent.task,
        subagent=subagent.id,
        attempt=attempt,
        environment=environment,
        workspace=workspace,
        runtime_folder=runtime_folder,
        timeout_ms=terms.attempt_timeout_ms,
        graces_ms=terms.cancel_grace_ms,
        output_limit_bytes=terms.output_limit_bytes,
        boundary=subagent.contract.boundary,
        read_only=subagent.contract.is_read_only,
        checkpoint_ms=terms.checkpoint_ms,
    )


SESSION = "session.jsonl"
OF_ONE_ATTEMPT = ("stdout.log", "stderr.log", "exit.json", "init.log")

_path = lru_cache(maxsize=256)(Path)  # the same few paths are requested again and again


class FolderWorkspace:
    """Implements `Workspace` with plain folders below the tasks of a root."""

    def __init__(
        self,
        root: Path,
        environment: Mapping[str, str],
        known: Mapping[str, str] | None = None,
        make_digest: Callable[[str], str] | None = None,
    ) -> None:
        """Args: make_digest: see `GivenSecrets`."""
        self.root = root
        self._given = GivenSecrets(make_digest)
        self._known = known or {}  # the steward's variables that a configuration may refer to
        self._tasks = root / "tasks"
        self._environment = dict(environment)

    def get_folder(self, task: TaskId, name: str) -> Path:
        return Path(self._place(task, name))

    def _place(self, task: TaskId, name: str) -> str:
        """Return the folder of a subagent as text; building a `Path` costs more."""
        return f"{self._tasks}/{task}/agents/{name}"

    def find_workspace(self, subagent: Subagent) -> Path:
        owner = subagent.contract.continues or subagent.id
        return _path(f"{self._place(subagent.task, owner)}/workspace")

    def find_runtime_folder(self, subagent: Subagent, attempt: int = 0) -> Path:
        newest = attempt in (0, subagent.standing.attempt)
        aside = "" if newest else f"/attempts/{attempt}"
        return _path(f"{self._place(subagent.task, subagent.id)}/runtime{aside}")

    def prepare(self, subagent: Subagent, attempt: int, words: str) -> LaunchOrder:
        secrets: dict[str, str] = {}
        if subagent.contract.secrets:
            try:
                secrets = self._read_secrets(subagent.contract)
            except Refused as error:
                raise LaunchFailed(error.message) from None
        folder = self._place(subagent.task, subagent.id)
        brief = f"{folder}/runtime/brief.txt"
        try:
            # The fast path: nothing is there, so nothing needs to be checked or replaced.
            if attempt == 1 and is_new_folder(folder):
                self._make(subagent, folder)
                put_first(brief, words.encode("utf-8", "replace"), mode=0o444)
            else:
                self._make_again(subagent, folder, attempt)
                put(brief, words.encode("utf-8", "replace"), mode=0o444)
            if subagent.contract.stdin:
                put(f"{folder}/runtime/{STDIN}", subagent.contract.stdin.encode(), mode=0o444)
            if subagent.contract.redact and secrets:
                # Before the launch: the next steward must know if a value was changed since.
                place = Path(f"{folder}/runtime/{GIVEN}")
                owner = (subagent.task, subagent.id)
                put(place, self._given.add(owner, secrets, read_own(place)))
            self._save_conversation(subagent, attempt, words, folder)
            # As late as possible: another child may have replaced a context path in between.
            identities = require_unchanged(subagent.contract.context, self.root)
        except (StorageFailed, OSError) as error:
            raise LaunchFailed(f"its folder could not be made: {error}") from error
        contract = subagent.contract
        order = make_launch_order(
            subagent,
            self.find_workspace(subagent),
            self.find_runtime_folder(subagent),
            self._environment | self._build_variables(subagent, attempt, folder),
            attempt,
        )
        order = replace(
            order,
            argv=contract.command,
            team=contract.team is not None,
            base=contract.outputs.base,
            repository=contract.outputs.repository,
            placement=contract.placement,
            variables=dict(contract.variables) | secrets,
            redacted=list_redacted(secrets.items()) if contract.redact else (),
            stdin=Path(f"{folder}/runtime/{STDIN}") if contract.stdin else None,
            writable=(Path(f"{folder}/full_logs"),),
            readable=(Path(f"{folder}/contract.json"), Path(brief)),
            lent=tuple(self._list_sockets(subagent)),
            hidden=(self.root, *map(Path, contract.context.hidden)),
            contexts=(*contract.context.paths, *(contract.python.lent if contract.python else ())),
            views=_build_views(subagent, folder),
            identities=identities,
            owners=_map_owners(subagent),
        )
        return order if contract.team is None else self._add_team(order, subagent, folder)

    def _add_team(self, order: LaunchOrder, subagent: Subagent, folder: str) -> LaunchOrder:
        """Return the order with what a team, its tool servers and coding agents need."""
        contract = subagent.contract
        inbox = Path(f"{folder}/inbox")
        session = Path(f"{folder}/runtime/{SESSION}")  # the conversation so far
        variables = {"RETINUE_INBOX": str(inbox)} | select_variables(contract, self._known)
        readable = [inbox]
        if session.exists():
            readable.append(session)
            variables["RETINUE_SESSION"] = str(session)
        writable = order.writable
        if contract.agents:
            home = self._make_agent_home(subagent)
            writable = (*writable, home)
            variables["RETINUE_AGENT_HOME"] = str(home)
        return replace(
            order,
            environment={**order.environment, **variables},
            writable=writable,
            readable=(*order.readable, *readable),
            hidden=(*order.hidden, *self._list_masks(subagent)),
            contexts=(*order.contexts, *list_lent_paths(contract)),
        )

    def _make_agent_home(self, subagent: Subagent) -> Path:
        """Make the folder of the coding agents' own files; it stays for the whole line."""
        owner = self._place(subagent.task, subagent.contract.continues or subagent.id)
        home = Path(f"{owner}/{AGENT_HOME}")
        try:
            own_folder(home)
        except (StorageFailed, OSError) as error:
            raise LaunchFailed(f"its folder could not be made: {error}") from error
        return home

    def _list_masks(self, subagent: Subagent) -> list[Path]:
        """Return what coding agents must not find in their workspace, as it is now.

        From such files their programs would run code, or take permissions.
        """
        contract = subagent.contract
        workspace = self.find_workspace(subagent)
        places = [workspace / mask for agent in contract.agents for mask in agent.masks]
        for name, member in contract.list_members(subagent.id):
            home = workspace / contract.find_member_folder(name)
            places += [home / mask for mask in (member.agent.masks if member.agent else ())]
        return list(dict.fromkeys(places))

    def deliver(self, subagent: Subagent, number: int, text: str, *, urgent: bool = False) -> None:
        """Write a message into the child's inbox, read-only for the child.

        Raises:
            StorageFailed: the disk refused.
        """
        kind = URGENT if urgent else ".txt"
        place = f"{self._place(subagent.task, subagent.id)}/inbox/{number:08}{kind}"
        put(place, text.encode("utf-8", "replace"), mode=0o444)

    def find_newest_message(self, subagent: Subagent) -> int:
        """Return the number of the last message delivered to a subagent; 0 if there was none."""
        # A child without a sandbox can write there, or replace the folder.
        with suppress(UnreadableFile):
            names = list_child_folder(self.get_folder(subagent.task, subagent.id), "inbox")
            numbers = (_MESSAGE.fullmatch(name) for name in names)
            return max((int(each[1]) for each in numbers if each), default=0)
        return 0

    def _save_conversation(self, subagent: Subagent, attempt: int, words: str, folder: str) -> None:
        """Save the conversation so far, for people and for a team that continues it."""
        if subagent.contract.team is None:
            said = {"role": "user", "attempt": attempt, "content": words}
            add(f"{folder}/{CONVERSATION}", to_line(said))
            return
        before = read_conversation(Path(folder))
        if subagent.contract.resumes:
            earlier = self.get_folder(subagent.task, subagent.contract.resumes)
            before = read_own(earlier / CONVERSATION) + before
        put(f"{folder}/{CONVERSATION}", before)
        if before:
            put(f"{folder}/runtime/{SESSION}", before, mode=0o444)

    def _list_sockets(self, subagent: Subagent) -> list[Path]:
        """Return the folder of the steward's socket if the subagent may delegate; else nothing.

        Other children cannot even see the socket.
        """
        folder = self.root / DESK
        may = subagent.contract.permissions.can_spawn_children
        return [folder] if may and folder.exists() else []

    def prepare_check(
        self, subagent: Subagent, workspace: Path, runtime_folder: Path
    ) -> LaunchOrder:
        """Return the order for a command that verifies output before it is joined."""
        about = {
            "RETINUE_SUBAGENT_ID": subagent.id,
            "RETINUE_TASK_ID": subagent.task,
            "RETINUE_WORKSPACE": str(workspace),
        }
        order = make_launch_order(subagent, workspace, runtime_folder, self._environment | about)
        return replace(order, hidden=(self.root,))

    def read_evidence(self, subagent: Subagent, attempt: int, ending: Ending) -> Evidence:
        folder = self._place(subagent.task, subagent.id)
        with RESERVE.use_descriptors():
            evidence = gather_evidence(
                folder, self.find_workspace(subagent), subagent.contract, ending
            )
        redactor = self._make_redactor(subagent)
        return evidence if redactor is None else redactor.redact_evidence(evidence)

    def _read_secrets(self, contract: Contract) -> dict[str, str]:
        return read_secrets(contract.secrets, self._known, self.root)

    def _make_redactor(self, subagent: Subagent) -> Redactor | None:
        contract = subagent.contract
        if not (contract.redact and contract.secrets):
            return None
        now: dict[str, str] | None = None
        with suppress(Refused):  # an earlier steward could read them
            now = self._read_secrets(contract)
        kept = read_own(Path(f"{self._place(subagent.task, subagent.id)}/runtime/{GIVEN}"))
        try:
            return Redactor(self._given.find((subagent.task, subagent.id), kept, now))
        except StorageFailed:  # the key of the digests
            return Redactor(None)

    def publish(self, subagent: Subagent, result: Result, ends: Ends = ()) -> None:
        folder = self._place(subagent.task, subagent.id)
        artifacts = f"{folder}/artifacts"
        own_folder(folder, f"{folder}/runtime", artifacts)
        workspace = Path(f"{folder}/workspace") if subagent.contract.outputs.base else None
        if workspace and find_base(workspace) and not os.path.lexists(workspace):
            make_folder(workspace)  # the layout failed; a continuation lays it out again
        if result.answer is not None:
            put_first(f"{artifacts}/{ANSWER}", result.answer.encode("utf-8", "replace"))
        self._keep_conversation(subagent, result, folder)
        put_first(self._report_place(subagent), self._report(subagent, result))
        document = result_to_json(result)
        if ends:
            every = ((nth, document if end is result else result_to_json(end)) for nth, end in ends)
            lines = b"".join(to_line({"attempt": nth} | end) for nth, end in every)
            put_first(f"{folder}/runtime/attempts.jsonl", lines)
        if not os.path.exists(f"{folder}/contract.json"):  # no attempt got that far
            _put_contract(subagent, folder)
        # After the answer and the report: a reader that finds result.json finds these, too.
        put(f"{folder}/result.json", json_to_text(document).encode())
        if result.status is Status.BLOCKED:
            self._write_gate_note(subagent, result)

    def publish_joined(self, subagent: Subagent, result: Result) -> None:
        """Update result and report after the join, which may have failed."""
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
            put(f"{folder}/{CONVERSATION}", before + read_last_attempt(Path(folder)))
        elif result.answer is not None:
            said = {"role": "assistant", "content": result.answer}
            add(f"{folder}/{CONVERSATION}", to_line(said))

    def _make(self, subagent: Subagent, folder: str) -> None:
        own = ["runtime", "full_logs", "artifacts"]
        if not subagent.contract.continues:
            own.append("workspace")
        make_folders(*(f"{folder}/{name}" for name in own))
        if subagent.contract.team is not None:
            make_folder(f"{folder}/inbox", mode=0o755)  # the child may run as another user
        workspace = f"{folder}/workspace"
        if subagent.contract.continues and not os.path.islink(workspace):
            os.symlink(f"../{subagent.contract.continues}/workspace", workspace)
        lay_out(subagent.contract.context, Path(f"{folder}/context"))
        session = {"sub_agent_id": subagent.id, "workspace": str(self.find_workspace(subagent))}
        put_first(f"{folder}/session.json", to_line(session))
        # The contract comes last: its presence says that the folder is complete.
        _put_contract(subagent, folder)

    def _make_again(self, subagent: Subagent, folder: str, attempt: int) -> None:
        """Prepare the folder for a new attempt, whatever an earlier one or a crash left there."""
        own_folder(folder, f"{folder}/runtime")
        if not os.path.exists(f"{folder}/contract.json"):
            self._make(subagent, folder)
        else:
            lay_out(subagent.contract.context, Path(f"{folder}/context"))
        _move_previous_attempt(Path(folder), attempt)

    def _build_variables(self, subagent: Subagent, attempt: int, base: str) -> dict[str, str]:
        sockets = self._list_sockets(subagent)
        granted = {"RETINUE_STEWARD": f"{sockets[0]}/{SOCKET}"} if sockets else {}
        if (python := subagent.contract.python) is not None:
            usual = self._environment.get("PATH", os.defpath)
            granted["PATH"] = f"{python.folder}{os.pathsep}{usual}"
            if python.environment:
                granted["VIRTUAL_ENV"] = python.environment
        return granted | {
            "RETINUE_SUBAGENT_ID": subagent.id,
            "RETINUE_TASK_ID": subagent.task,
            "RETINUE_ATTEMPT": str(attempt),
            "RETINUE_WORKSPACE": str(self.find_workspace(subagent)),
            "RETINUE_CONTRACT": f"{base}/contract.json",
            "RETINUE_BRIEF": f"{base}/runtime/brief.txt",
            "RETINUE_CONTEXT": _find_context_place(subagent, base),
            "RETINUE_LOGS": f"{base}/full_logs",
            "RETINUE_ANSWER": f"{base}/full_logs/{ANSWER}",
            "RETINUE_FINAL": f"{base}/full_logs/{FINAL}",
        }

    def _report(self, subagent: Subagent, result: Result) -> bytes:
        """Return the subagent's own report, or one made from its result."""
        try:
            path = subagent.contract.report_path
            data = read_child_file(
                self.find_workspace(subagent), path, ANSWER_LIMIT_BYTES, cut=True
            ).data
            redactor = self._make_redactor(subagent)
            if redactor is None:
                return data
            return redactor.redact(data.decode("utf-8", "replace")).encode()
        except UnreadableFile:
            lines = [f"# {subagent.contract.step.title}", "", f"Status: {result.status.value}"]
            if result.error:
                lines += ["", f"Error: {result.error}"]
            lines += ["", result.answer or "No answer.", ""]
            return "\n".join(lines).encode("utf-8", "replace")

    def _write_gate_note(self, subagent: Subagent, result: Result) -> None:
        shared = self._tasks / subagent.task / "shared"
        make_folder(shared)
        text = format_gate_note(subagent.task, subagent.gate, result.questions)
        add(shared / "human-notes.md", text.encode("utf-8", "replace"))


def _find_context_place(subagent: Subagent, folder: str) -> str:
    isolated = subagent.contract.boundary.mode == ISOLATED
    return ISOLATED_PLACE if isolated else f"{folder}/context"


def _build_views(subagent: Subagent, folder: str) -> tuple[tuple[str, str], ...]:
    """Return pairs of a place in the context folder and the path shown there."""
    here = _find_context_place(subagent, folder)
    places = list_context_places(subagent.contract.context)
    views = tuple((f"{here}/{place}", path) for path, place in places)
    return ((here, f"{folder}/context"), *views) if here == ISOLATED_PLACE else views


def _map_owners(subagent: Subagent) -> dict[str, tuple[int, int]]:
    """Return the owner whose files each path lends, for paths that another subagent gave.

    That subagent can read only files of this owner.
    """
    if not subagent.contract.delegated_by:
        return {}
    paths = list_recorded(subagent.contract.context)
    return {path: (each.uid, each.gid) for path, each in paths if each is not None}


def _put_contract(subagent: Subagent, folder: str) -> None:
    put(f"{folder}/contract.json", subagent.contract_text.encode(), mode=0o444)


def _move_previous_attempt(folder: Path, attempt: int) -> None:
    """Move streams and logs of the previous attempt to attempts/<n>, so that none is mixed up."""
    runtime = folder / "runtime"
    logs = folder / "full_logs"
    kept = runtime / "attempts" / str(attempt - 1)
    left = [runtime / name for name in OF_ONE_ATTEMPT if os.path.lexists(runtime / name)]
    if attempt > 1 and not kept.exists():
        # The folder gets its final name when it is complete, so an interrupted move is continued.
        moving = kept.with_name(f".{kept.name}")
        own_folder(kept.parent, moving)
        with storage_failures(kept):
            for path in left:
                path.rename(moving / path.name)
            if os.path.lexists(logs):
                logs.rename(moving / "full_logs")
            moving.rename(kept)
    else:  # the same attempt is launched again, because it never ran
        for path in left:
            path.unlink()
    own_folder(logs)
