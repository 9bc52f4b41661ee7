"""Kinds of subagents: a role with its instructions, and which of them a parent may ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from retinue.domain.errors import BadInput

NOVELTY = "novelty"
EVALUATOR = "evaluator"
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
    """A file that should define a type and does not. Who asks for that type is told why."""

    name: str  # of its folder; empty where a whole folder cannot be read
    source: str
    code: str
    problem: str
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """Every type that was found, in order, no name twice; and what could not be read."""

    types: tuple[SubagentType, ...]
    broken: tuple[BrokenType, ...] = ()
    inactive: tuple[str, ...] = ()  # there are these, too, and nobody may ask for them

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.types)

    def active(
        self, configured: Sequence[str] | None
    ) -> tuple[tuple[SubagentType, ...], tuple[str, ...]]:
        """The types that parents are shown, in the order configured, and what to warn about.

        Nothing configured means the default set, an empty list no types at all.
        """
        if configured is not None and not configured:
            return (), ()
        known = {each.name: each for each in self.types}
        asked = tuple(dict.fromkeys(DEFAULT_ACTIVE if configured is None else configured))
        unreadable = {each.name for each in self.broken}
        warnings = [
            f"there is no subagent type {name[:80]!a}; available: {self._listed()}"
            for name in asked
            if name not in known and name not in unreadable
        ]
        warnings += [f"a subagent type is left out: {each.problem}" for each in self.broken]
        return tuple(known[name] for name in asked if name in known), tuple(warnings)

    def narrowed(self, configured: Sequence[str] | None) -> Catalogue:
        """Only what a parent may ask for by name.

        Where types are configured, those. Where none are, the default set and the project's
        own: who wrote a type for a project may use it, and only built-in ones are opt-in.
        """
        shown, _ = self.active(configured)
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
        """The type of that name.

        Raises:
            BadInput: unknown_type, with the names that are available; or why its file cannot
                be used. A broken file never gives way to a built-in type of the same name.
        """
        for each in self.types:
            if each.name == name:
                return each
        for broken in self.broken:
            if broken.name == name:
                raise BadInput(broken.problem, code=broken.code, hint=broken.hint)
        if name in self.inactive:
            raise BadInput(
                f"the subagent type {name} is not active; available: {self._listed()}",
                code="unknown_type",
                hint="subagent_types in the configuration lists those that are",
            )
        raise BadInput(
            f"there is no subagent type {name[:80]!a}; available: {self._listed()}",
            code="unknown_type",
            hint="leave the type out for a subagent without a special role",
        )

    def _listed(self) -> str:
        return ", ".join(self.names) or "none"
