"""Contracts as the text that is stored, hashed and handed to the child."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache

from pydantic import TypeAdapter

from retinue.domain.contract import Contract

_CONTRACT = TypeAdapter(Contract)


def contract_to_text(contract: Contract) -> str:
    """The one text of a contract; its hash is in every event of the subagent."""
    return json.dumps(_CONTRACT.dump_python(contract), ensure_ascii=True, separators=(",", ":"))


@lru_cache(maxsize=256)
def contract_from_text(text: str) -> Contract:
    """The contract that was stored as this text."""
    return _CONTRACT.validate_json(text)


def contract_sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
