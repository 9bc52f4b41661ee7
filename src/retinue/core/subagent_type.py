"""Subagent types: roles with instructions, and the catalogue that parents choose from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from retinue.core.errors import BadInput

NOVELTY = "novelty"
EVALUATOR = "evaluator"
MAX_DESCRIPTION = 4000  # characters
DEFAULT_ACTIVE = ("explorer", "researcher", EVALUATOR)


@dataclass(frozen=True, kw_only=True)
class SubagentType:
    name: str
    description: str  # when to use it
    instructions: str
    skills: tuple[str, ...] = ()
    expected_input: tuple[str, ...] = ()  # what a brief for it should say
    source: str = ""  # the file it was read from
    built_in: bool = False


@dataclass(frozen=True, kw_only=True)
class BrokenType:
    """A type whose file is invalid; a request for it fails with this problem."""

    name: str  # of its folder; empty if the folder of all types cannot be read
    source: str
    code: str
    problem: str
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """All types that were found, with unique names, and the files that are invalid."""

    types: tuple[SubagentType, ...]
    broken: tuple[BrokenType, ...] = ()
    inactive: tuple[str, ...] = ()  # types that exist but may not be requested

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.types)

    def list_active(
        self, configured: Sequence[str] | None
    ) -> tuple[tuple[SubagentType, ...], tuple[str, ...]]:
        """Return the types that parents are shown, in configured order, and warnings.

        None means the default set; an empty list means no types.
        """
        if configured is not None and not configured:
            return (), ()
        known = {each.name: each for each in self.types}
        asked = tuple(dict.fromkeys(DEFAULT_ACTIVE if configured is None else configured))
        unreadable = {each.name for each in self.broken}
        warnings = [
            f"there is no subagent type {name[:80]!a}; available: {self._list_names()}"
            for name in asked
            if name not in known and name not in unreadable
        ]
        warnings += [f"a subagent type is left out: {each.problem}" for each in self.broken]
        return tuple(known[name] for name in asked if name in known), tuple(warnings)

    def narrow(self, configured: Sequence[str] | None) -> Catalogue:
        """Return the catalogue of types that a parent may request.

        These are the configured types. Without a configuration they are the default set and
        the project's own types: only built-in types are opt-in.
        """
        shown, _ = self.list_active(configured)
        own = () if configured is not None else tuple(t for t in self.types if not t.built_in)
        kept = tuple(dict.fromkeys((*shown, *own)))
        names = None if configured is None else set(configured)
        return replace(
            self,
            types=kept,
            inactive=tuple(each.name for each in self.types if each not in kept),
            broken=tuple(each for each in self.broken if names is None or each.name in names),
        )

    def require(self, name: str) -> SubagentType:
        """Return the type of that name.

        Raises:
            BadInput: the type is unknown or inactive (code unknown_type), or its file is invalid.
        """
        for each in self.types:
            if each.name == name:
                return each
        # An invalid file is an error, even if a built-in type has the same name: the project meant
        # its own.
        for broken in self.broken:
            if broken.name == name:
                raise BadInput(broken.problem, code=broken.code, hint=broken.hint)
        if name in self.inactive:
            raise BadInput(
                f"the subagent type {name} is not active; available: {self._list_names()}",
                code="unknown_type",
                hint="add it to subagent_types in the configuration",
            )
        raise BadInput(
            f"there is no subagent type {name[:80]!a}; available: {self._list_names()}",
            code="unknown_type",
            hint="leave the type out for a general subagent",
        )

    def _list_names(self) -> str:
        return ", ".join(self.names) or "none"
