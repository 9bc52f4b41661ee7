"""Results and rows as a parent's model reads them: compact and bounded.

Some clients give their model only the structured content, others only the text. The text is made
from the same view, so both say the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Any

from retinue.delegation import answer_text

MOST_FILES = 20
MOST_OUTPUT_LINES = 40  # the last lines of a failed command's output
MOST_OUTPUT = 4_000  # characters of these lines
# Of each result that shares the budget of a call, however many there are.
LEAST_OUTPUT = 400
LEAST_QUESTIONS = 2_048  # the longest question fits
LONGEST_TITLE = 80
# One call carries at most this many times the characters of one answer.
ANSWERS_PER_CALL = 4
# What to do next, by status; a completed result needs no advice.
ADVICE = {
    "completed": "",
    "completed_but_timeout": "use the answer: it was complete when time ran out",
    "partial": "no final answer: look into the workspace, without running git there; finish it "
    "yourself or with continue_subagent, or spawn a smaller task under another subagent_id",
    "timeout": "nothing recovered: look into the workspace, without running git there; split the "
    "task or allow more time, under another subagent_id or with continue_subagent",
    "error": "fix the cause, then continue_subagent, or spawn it under another subagent_id",
    "cancelled": "it was stopped; its answer, if any, is a draft",
    "blocked": "answer its questions with continue_subagent",
}
_RESULT_KEYS = (
    "subagent_id",
    "status",
    "success",
    "next",
    "completion_percentage",
    "error",
    "error_output",
    "warning",
    "questions",
    "answer",
    "answer_rest",
    "structured_answer",
    "integration",
    "agent",
    "workspace",
    "workspace_path",
    "workspace_removed",
    "workspace_files",
    "execution_time_seconds",
    "token_usage",
    "log_path",
    "continues",
)
_ROW_KEYS = (
    "subagent_id",
    "status",
    "phase",
    "completion_percentage",
    "waiting_for",
    "elapsed_seconds",
    "task",
    "workspace",
    "continues",
)
_STATUS_KEYS = (*_ROW_KEYS, "started_at", "token_usage", "attempt", "node")

MOST_PATCH_BYTES = 4 << 20
_FILE = re.compile(r"diff --git a/(?P<name>.*) b/(?P=name)$")

Document = Mapping[str, Any]


class AnswerBudget:
    """Characters of subagents' own words that one call may still carry."""

    def __init__(self, most_each: int, fetch_tool: str) -> None:
        self._each = most_each
        self._left = most_each * ANSWERS_PER_CALL
        self._fetch_tool = fetch_tool

    def shape_results(self, results: Iterable[Document]) -> list[dict[str, Any]]:
        """Return the views of several results, which share the rest of the budget."""
        found = list(results)
        views = []
        for number, each in enumerate(found):
            # Shorter answers leave more for those after them.
            share = self._left // (len(found) - number)
            views.append(self._shape(each, min(self._each, share)))
            self._left = max(0, self._left - _measure(views[-1]))
        return views

    def shape_result(self, result: Document, offset: int = 0) -> dict[str, Any]:
        """Return the view of one result, with its answer from `offset` on."""
        view = self._shape(result, self._each, offset)
        self._left = max(0, self._left - _measure(view))
        return view

    def _shape(self, result: Document, most: int, offset: int = 0) -> dict[str, Any]:
        view = dict(result)
        view["next"] = ADVICE.get(str(result.get("status")), "")
        answer = result.get("answer")
        end = offset + most
        if isinstance(answer, str) and (offset or len(answer) > end):
            view["answer"] = answer[offset:end]
            view["answer_rest"] = self._describe_rest(result, len(answer), end)
        most = max(0, most - len(view.get("answer") or ""))
        if output := result.get("error_output"):
            view["error_output"] = shorten_output(str(output), max(most, LEAST_OUTPUT))
        if questions := result.get("questions"):
            view["questions"] = _shorten_questions(questions, max(most, LEAST_QUESTIONS))
        if files := result.get("workspace_files"):
            more = [f"… {len(files) - MOST_FILES} more"] if len(files) > MOST_FILES else []
            view["workspace_files"] = [*files[:MOST_FILES], *more]
        # The logs help to find out what went wrong, and only then.
        if result.get("success") or result.get("status") == "blocked":
            view.pop("log_path", None)
        # The result's fixed shape has an answer, even if there is none.
        view.setdefault("answer", None)
        ordered = dict.fromkeys(_RESULT_KEYS) | view
        return {
            key: value for key, value in ordered.items() if key == "answer" or not is_empty(value)
        }

    def _describe_rest(self, result: Document, length: int, end: int) -> str:
        if end >= length:
            return ""
        by_tool = f"{self._fetch_tool} with job_id {result['subagent_id']} and offset {end}"
        logs = result.get("log_path")
        file = f", or read {PurePosixPath(logs).parent / 'artifacts/answer.txt'}" if logs else ""
        return f"the answer has {length} characters, cut at {end}: call {by_tool}{file}"


def is_empty(value: object) -> bool:
    """Return whether a field says nothing. False and 0 do say something."""
    return value is None or (isinstance(value, str | list | tuple | dict) and not value)


def shape_summary(summary: Document) -> dict[str, Any]:
    """Return the counts without zeros, except for the four that every batch has."""
    always = ("total", "completed", "failed", "timeout")
    return {key: value for key, value in summary.items() if value or key in always}


def shape_row(row: Document) -> dict[str, Any]:
    """Return the row of a list."""
    return {key: row[key] for key in _ROW_KEYS if not is_empty(row.get(key))} | {
        "task": to_title(row.get("task", ""))
    }


def shape_status(row: Document) -> dict[str, Any]:
    """Return what is known of one subagent, without its result."""
    return {key: row[key] for key in _STATUS_KEYS if not is_empty(row.get(key))}


def to_title(text: object) -> str:
    """Return the first line of a text, shortened."""
    lines = str(text).strip().splitlines() or [""]
    first = lines[0].strip()
    cut = len(first) > LONGEST_TITLE or len(lines) > 1
    return f"{first[: LONGEST_TITLE - 1].rstrip()}…" if cut else first


def shorten_output(text: str, most: int = MOST_OUTPUT) -> str:
    """Return the last lines that a failed command printed."""
    return "\n".join(text.split("\n")[-MOST_OUTPUT_LINES:])[-min(most, MOST_OUTPUT) :]


def _shorten_questions(questions: Sequence[str], most: int) -> list[str]:
    """Return the first questions, whole, and how many more there are."""
    lengths = accumulate(len(each) for each in questions)
    shown = max(1, sum(length <= most for length in lengths))
    more = len(questions) - shown
    return [*questions[:shown], *([f"… {more} more questions"] if more else [])]


def _measure(view: Document) -> int:
    """Return how many characters of a subagent's own words a view has."""
    words = (view.get("answer") or "", view.get("error_output") or "", *view.get("questions", ()))
    return sum(map(len, words))


def describe_integration(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result whose integration says which files changed, and where the patch is."""
    joined = result.get("integration")
    logs = result.get("log_path")
    if not isinstance(joined, Mapping) or joined.get("mode") != "merge" or not logs:
        return dict(result)
    patch = Path(str(logs)).parent / "artifacts" / "changes.patch"
    view = {key: value for key, value in joined.items() if value}
    if stat := read_diffstat(patch):
        view["diffstat"] = stat
        # Their number, which the diffstat shows; of a conflict it is a list.
        if isinstance(view.get("files"), int):
            del view["files"]
    if joined.get("reason") not in ("merged", "no_changes") and patch.is_file():
        view["patch"] = str(patch)
    return {**result, "integration": view}


def read_diffstat(patch: Path) -> list[str]:
    """Return the changed files of a patch with their added and removed lines."""
    try:
        with patch.open("rb") as file:
            lines = file.read(MOST_PATCH_BYTES).decode("utf-8", "replace").split("\n")
    except OSError:
        return []
    found: list[list[Any]] = []
    inside = False  # a hunk, where lines are content and not headers
    for line in lines:
        if line.startswith("diff --git "):
            match = _FILE.match(line)
            found.append([match["name"] if match else line[11:], 0, 0])
            inside = False
        elif line.startswith("@@"):
            inside = True
        elif inside and found and line[:1] in ("+", "-"):
            found[-1][1 if line[0] == "+" else 2] += 1
    shown = [f"{name} +{added} -{removed}" for name, added, removed in found[:MOST_FILES]]
    more = len(found) - MOST_FILES
    return [*shown, f"… {more} more"] if more > 0 else shown


def count_statuses(results: Sequence[Document], total: int) -> dict[str, int]:
    """Return the counts of a call's results; some of its tasks may not have ended."""
    counts = Counter(str(each["status"]) for each in results)
    return {"total": total, "completed": 0, "failed": 0, "timeout": 0} | {
        {"error": "failed"}.get(status, status): number for status, number in counts.items()
    }


def shape_run_end(end: Document) -> dict[str, Any]:
    """Return how a plan ended, without its results."""
    view = {"plan": end["task_id"], "success": end["outcome"] == "succeeded"}
    kept = ("branch", "applied", "not_started")
    return view | {key: end[key] for key in kept if not is_empty(end.get(key))}


# Key in the steward's answers: the subagents whose results it delivers. Not shown to parents.
TELLS = "tells"


async def _ignore_progress(seconds: float, message: str) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Request:
    """One tool call, with what the client says about the caller."""

    tool: str
    arguments: Mapping[str, Any]
    caller: Mapping[str, str] = field(default_factory=dict)
    report: Callable[[float, str], Awaitable[None]] = _ignore_progress
    was_cut: Callable[[], bool] = lambda: False  # whether the client's call timeout ended it


@dataclass(frozen=True, kw_only=True)
class ToolAnswer:
    """Answer of a tool: a document for programs and texts for the model."""

    document: dict[str, Any]
    texts: tuple[str, ...]
    started: tuple[str, ...] = ()  # subagents reported as started, even if they ended since
    started_in: str = ""  # the task of these subagents, if it is known
    # Subagents whose results it delivers; if it is lost, a later answer delivers them again.
    delivered: tuple[str, ...] = ()

    def add_warning(self, warning: str) -> ToolAnswer:
        """Return a copy with one more warning."""
        said = [*self.document.get("warnings", ()), warning]
        texts = (*self.texts, f"warning: {answer_text.quote_on_one_line(warning)}")
        return replace(self, document=self.document | {"warnings": said}, texts=texts)


def list_delivered(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the subagents whose results this answer of the steward delivers first."""
    return tuple(document.get(TELLS, ()))


def to_parent_view(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the steward's answer without its internal keys."""
    return {key: value for key, value in document.items() if key != TELLS}
