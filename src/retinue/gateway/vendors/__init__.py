"""Vendors whose APIs the gateway forwards and team members speak: one module for each.

A module holds all that is particular to its vendor: formats, endpoints, headers, error bodies,
usage fields. The steward and every team member import it, so vendors use the standard library and
`core` only.
"""

from __future__ import annotations

from retinue.gateway.vendors.anthropic import Anthropic
from retinue.gateway.vendors.base import Vendor
from retinue.gateway.vendors.gemini import Gemini
from retinue.gateway.vendors.openai import OpenAI

VENDORS: dict[str, Vendor] = {each.name: each for each in (OpenAI(), Anthropic(), Gemini())}


def find_vendor(wire: str) -> Vendor:
    """Return the vendor of a wire format; all other servers speak OpenAI's."""
    return VENDORS.get(wire, VENDORS[OpenAI.name])
