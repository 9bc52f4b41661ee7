"""Every verb by its name: those with one answer, and those with many."""

from __future__ import annotations

from retinue.steward.care import CARE
from retinue.steward.looking import LOOKING
from retinue.steward.parents import FOR_PROGRAMS
from retinue.steward.runs import ATTENDED, RUNS
from retinue.steward.verbs import FOLLOWED, VERBS, Stream, Verb

KNOWN: dict[str, Verb] = {**VERBS, **CARE, **RUNS, **FOR_PROGRAMS, **LOOKING}
STREAMS: dict[str, Stream] = {**FOLLOWED, **ATTENDED}
