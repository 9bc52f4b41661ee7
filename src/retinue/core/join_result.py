"""Results of joining a subagent's output, and the values used on the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from retinue.core.errors import Refused

CONFLICT, REFUSED, CHECK = "merge_conflict", "merge_refused", "check_failed"
POLICY = "policy_violation"
REJECTED = "review_rejected"  # by a person or a reviewer
NOT_CHOSEN = "not_chosen"  # another candidate was joined
NO_GIT_THERE = "do not run git in the workspace: its .git is the subagent's and can run commands"
MOST_CHARACTERS = 60_000  # of all paths on one command line
MOST_SAID = 1000  # characters of the reason for a failed join


class JoinFailed(Refused):
    """The output was not joined; the error's code is the close reason."""

    default_code = REFUSED

    def __init__(
        self, message: str, *, reason: str, files: tuple[str, ...] = (), output: str = ""
    ) -> None:
        super().__init__(message, code=reason)
        self.output = output  # the end of a failed check's output
        self.files = files  # files in conflict or not allowed

    @property
    def in_short(self) -> str:
        """The message; of a long one both ends, because the cause may be at either end."""
        if len(self.message) <= MOST_SAID:
            return self.message
        half = (MOST_SAID - 1) // 2
        return f"{self.message[:half]}…{self.message[-half:]}"


@dataclass(frozen=True, kw_only=True)
class Change:
    """A subagent's changes, as one commit on its base, or on what it continues."""

    commit: str
    tree: str
    files: int  # number of changed files
    brought: tuple[str, ...] = ()  # changed files that were not deleted
    ignored: tuple[str, ...] = ()  # some of the files that git ignores, if nothing was changed
    continued: str = (
        ""  # commit of the merged output that it continues; empty: it begins at its base
    )


@dataclass(frozen=True, kw_only=True)
class MergedTree:
    """A change merged with the integration branch; no branch has been updated yet."""

    tip: str  # of the integration branch when it was read
    tree: str
    has_branch: bool  # the integration branch exists


@dataclass(frozen=True, kw_only=True)
class JoinOutcome:
    """How the output was joined."""

    reason: str  # merged, no_changes, copied, accepted, not_chosen
    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Source:
    """The repository and commit that a run starts from."""

    git_dir: str
    top: str  # of the working tree; empty for a bare repository
    objects: str
    object_format: str
    commit: str
    branch: str = ""  # checked-out branch, if the result is to be applied to it

    @property
    def repository(self) -> str:
        """The main git directory, which outlives a linked working tree."""
        return self.objects.rpartition("/")[0]


def split_paths(paths: Iterable[str]) -> Iterator[list[str]]:
    """Yield the paths in batches, each short enough for one command line."""
    part: list[str] = []
    size = 0
    for path in paths:
        if part and size + len(path) > MOST_CHARACTERS:
            yield part
            part = []
            size = 0
        part.append(path)
        size += len(path) + 3
    if part:
        yield part
