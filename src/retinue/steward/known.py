"""Every verb that has one answer, by its name."""

from __future__ import annotations

from retinue.steward.care import CARE
from retinue.steward.looking import LOOKING
from retinue.steward.parents import PARENTS
from retinue.steward.runs import RUNS
from retinue.steward.verbs import VERBS, Verb

KNOWN: dict[str, Verb] = {**VERBS, **CARE, **RUNS, **PARENTS, **LOOKING}
