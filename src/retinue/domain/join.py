"""What joining a subagent's output comes to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from retinue.domain.errors import Refused

CONFLICT, REFUSED, CHECK = "merge_conflict", "merge_refused", "check_failed"
POLICY = "policy_violation"
MOST_CHARACTERS = 60_000  # of paths on one command line
MOST_SAID = 1000  # of why output was not joined


class JoinFailed(Refused):
    """Output that does not become part of the parent's work; the code is the close reason."""

    default_code = REFUSED

    def __init__(self, message: str, *, reason: str, files: tuple[str, ...] = ()) -> None:
        super().__init__(message, code=reason)
        self.files = files  # those in conflict, or those that may not be

    @property
    def in_short(self) -> str:
        """The message, of a long one both ends: a path may stand before the cause, or after it."""
        if len(self.message) <= MOST_SAID:
            return self.message
        half = (MOST_SAID - 1) // 2
        return f"{self.message[:half]}…{self.message[-half:]}"


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a subagent changed, as a commit of its own on what it started from."""

    commit: str
    tree: str
    files: int  # how many it changed
    brought: tuple[str, ...] = ()  # those of them that are still there
    ignored: tuple[str, ...] = ()  # some of what it left that git ignores, where it changed nothing


@dataclass(frozen=True, kw_only=True)
class Merged:
    """A change together with what had been joined before it; nothing has moved yet."""

    tip: str  # of the integration branch, when it was looked at
    tree: str
    known: bool  # whether the branch exists


@dataclass(frozen=True, kw_only=True)
class JoinOutcome:
    """How output became part of the parent's work."""

    reason: str  # merged, no_changes, copied, accepted
    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a run starts from: a commit of a repository, all of it text so that it can be kept."""

    git_dir: str
    top: str  # of its working tree; empty where it has none
    objects: str
    object_format: str
    commit: str
    branch: str = ""  # that is checked out, where the result is to be applied to it

    @property
    def repository(self) -> str:
        """git's own folder, which stays when a linked working tree is removed."""
        return self.objects.rpartition("/")[0]


def portions(paths: Iterable[str]) -> Iterator[list[str]]:
    """The paths in as few parts as one command line each can hold."""
    part: list[str] = []
    size = 0
    for path in paths:
        if part and size + len(path) > MOST_CHARACTERS:
            yield part
            part, size = [], 0
        part.append(path)
        size += len(path) + 3
    if part:
        yield part
