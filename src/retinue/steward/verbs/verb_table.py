"""Table of all verbs by name: those with one response, and streams."""

from __future__ import annotations

from retinue.steward.app import App
from retinue.steward.verbs.admin_verbs import CARE
from retinue.steward.verbs.core_verbs import FOLLOWED, VERBS, Stream, Verb
from retinue.steward.verbs.page_verbs import LOOKING
from retinue.steward.verbs.parent_verbs import FOR_PROGRAMS
from retinue.steward.verbs.run_verbs import ATTENDED, RUNS
from retinue.trust import make_untrusted_error

KNOWN: dict[str, Verb] = {**VERBS, **CARE, **RUNS, **FOR_PROGRAMS, **LOOKING}
STREAMS: dict[str, Stream] = {**FOLLOWED, **ATTENDED}
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
        *LOOKING,
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
