"""Table of all verbs by name: those with one response, and streams."""

from __future__ import annotations

from retinue.steward.app import App
from retinue.steward.verbs.admin_verbs import ADMIN_VERBS
from retinue.steward.verbs.delegation_verbs import FOR_PROGRAMS
from retinue.steward.verbs.page_verbs import PAGE_VERBS
from retinue.steward.verbs.run_verbs import RUN_STREAMS, RUN_VERBS
from retinue.steward.verbs.subagent_verbs import SUBAGENT_STREAMS, SUBAGENT_VERBS
from retinue.steward.verbs.task_verbs import TASK_STREAMS, TASK_VERBS, Stream, Verb
from retinue.trust import make_untrusted_error

KNOWN: dict[str, Verb] = {
    **TASK_VERBS,
    **SUBAGENT_VERBS,
    **RUN_VERBS,
    **FOR_PROGRAMS,
    **PAGE_VERBS,
    **ADMIN_VERBS,
}
STREAMS: dict[str, Stream] = {**TASK_STREAMS, **SUBAGENT_STREAMS, **RUN_STREAMS}
# Verbs that only read, and therefore work in an untrusted root
READING = frozenset(
    {
        "task.list",
        "task.show",
        "task.events",
        "subagent.list",
        "subagent.show",
        "subagent.result",
        "subagent.logs",
        "gate.list",
        "parent.look",
        "verify",
        "root.review",
        "steward.status",
        *PAGE_VERBS,
    }
)


def require_trusted(app: App, verb: str) -> None:
    """Raises:
    Refused: the root is not trusted, and the verb does more than read.
    """
    # An untrusted root is opened without its lock.
    known = verb in KNOWN or verb in STREAMS
    if app.lock is None and known and verb not in READING:
        raise make_untrusted_error(app.settings.root)
