"""A plan as people write it.

Apart from what a plan is: a team that hands one in reads no YAML, and need not carry what does.
"""

from __future__ import annotations

from retinue.domain.plan import Plan
from retinue.wire.plan import plan_from_json
from retinue.wire.yaml import Place, load_yaml


def parse_plan(text: str, *, where: str) -> Plan:
    """A plan file's content, sound as a whole.

    Raises:
        BadInput: names the key or the steps, and the line where there is one.
    """
    lines: dict[Place, int] = {}
    document = load_yaml(text, where=where, lines=lines)
    return plan_from_json(document, where=where, lines=lines)
