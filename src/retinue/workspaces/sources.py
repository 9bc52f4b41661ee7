"""The repository that a run works for: looked at, never in its way.

Its working tree, index, stash and HEAD are only read, unless its owner asks for a fast
forward of the branch that is checked out. All that is ever added are objects, and refs
that are moved by compare-and-swap.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from retinue.domain.errors import BadInput, Refused
from retinue.domain.ids import TaskId
from retinue.domain.join import Source
from retinue.files import storage_failures
from retinue.processes import finished
from retinue.workspaces.git import Git, GitFailed, Where, excluding, in_memory
from retinue.workspaces.owners import alone, fast_forward
from retinue.workspaces.trusted import REPOSITORY, TrustedRepository

BRANCHES = "refs/heads/"
OBJECTS = "GIT_OBJECT_DIRECTORY"
WHOSE = "a plan names it under base; without one it is that of the folder that holds .retinue"
OWNED = "work as that user, or make it yours with chown: its configuration could run commands"
COMPLETE = "check it out once, or get all with 'git fetch --refetch --no-filter'"
IGNORED = "have git ignore it, in .git/info/exclude for example: it cannot be included"
OUR_NAME, OUR_ADDRESS = "Retinue", "retinue@retinue.invalid"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What git says of a folder."""

    git_dir: Path
    common: Path
    top: Path | None  # of the working tree; none where there is none
    object_format: str


class GitSources:
    """Implements `Sources`."""

    def __init__(self, git: Git, owners: Git, tasks: Path) -> None:
        self.git = git
        self._owners = owners
        self._tasks = tasks

    def trusted(self, task: TaskId) -> TrustedRepository:
        return TrustedRepository(self.git, self._tasks / task / REPOSITORY)

    async def find(self, folder: Path, ref: str, *, dirty: bool, apply: bool) -> Source:
        """What a run would start from; nothing has been made.

        Raises:
            BadInput: in one sentence, why that cannot be.
        """
        facts = await self._facts(folder)
        commit = await self._commit(facts, ref)
        await self._require_files(facts, commit)
        await self._require_room(facts)
        if dirty and apply:
            raise _unfit("uncommitted changes cannot be both the base and left as they are")
        branch = ""
        if dirty or apply:
            branch = await self._require_checked_out(facts, commit, ref, apply=apply)
        return Source(
            git_dir=str(facts.git_dir),
            top=str(facts.top or ""),
            objects=str(facts.common / "objects"),
            object_format=facts.object_format,
            commit=commit,
            branch=branch,
        )

    async def open(self, task: TaskId, source: Source, *, dirty: bool) -> Source:
        """The task has a repository of its own, and with `dirty` a base made of what is there.

        By a copy of its owner's index: that says what is added although it is ignored, and what
        is to be looked at as unchanged.
        """
        ours = self.trusted(task)
        ours.make(Path(source.objects), source.object_format)
        if not dirty:
            return source
        theirs, index = Path(source.git_dir) / "index", ours.index_of("dirty")
        where = Where(git_dir=Path(source.git_dir), tree=Path(source.top), index=index)
        run = partial(self._owners.run, where, environment={OBJECTS: str(ours.objects)})
        if theirs.exists():
            with storage_failures(index):
                shutil.copy2(theirs, index)  # as old: git tells by that what may have changed
        else:
            await run("read-tree", source.commit)
        try:
            await run("add", "-A", "--", ".", *_spared(self._tasks.parent, source.top))
        except GitFailed as error:  # a filter that is not here, a file that is locked
            raise _unfit(f"uncommitted changes cannot be taken: {error.message}") from None
        tree = (await run("write-tree")).text
        words = ("commit-tree", tree, "-p", source.commit, "-m", "Uncommitted changes")
        made = await self.git.run(ours.where, *words, environment=identity(OUR_NAME))
        return replace(source, commit=made.text)

    async def ensure(self, task: TaskId, git_dir: str) -> None:
        """The task has a repository of its own that reads from that one."""
        ours = self.trusted(task)
        if (ours.folder / "HEAD").exists():
            return
        words = ("--show-object-format", "--path-format=absolute", "--git-common-dir")
        said = await self.git.run(Where(git_dir=Path(git_dir)), "rev-parse", *words)
        object_format, common = said.lines
        ours.make(Path(common) / "objects", object_format)

    def located(self, task: TaskId, git_dir: str) -> Path:
        """Where the repository is that a run began with: it moves with the project it is in."""
        return self.trusted(task).located(Path(git_dir))

    async def tip(self, task: TaskId, git_dir: str, branch: str) -> str:
        """Where a branch stands; empty when there is none."""
        words = ("for-each-ref", "--format=%(objectname)", branch)
        return (await self.git.run(Where(git_dir=self.located(task, git_dir)), *words)).text

    async def fast_forward(self, source: Source, branch: str) -> None:
        """The branch that is checked out, and its files, are what was joined.

        Raises:
            Refused: it is not clean, or has moved elsewhere; it is as it was.
        """
        top = Path(source.top)
        where = Where(git_dir=Path(source.git_dir), tree=top)
        try:
            async with alone(where.git_dir) as place:
                await self._require_same(where, source)
                await self._require_clean(where)
                applying = fast_forward(self._owners, top, branch, place)
                await finished(applying)  # or it were half done
        except (GitFailed, BadInput) as error:
            raise Refused(
                f"not applied: {error.message}",
                code="not_applied",
                hint=f"look at it with 'git log {branch.removeprefix(BRANCHES)}' and merge it",
            ) from None

    async def _facts(self, folder: Path) -> Facts:
        _require_folder(folder)
        words = ("--is-inside-work-tree", "--is-shallow-repository", "--show-object-format")
        paths = ("--path-format=absolute", "--git-dir", "--git-common-dir")
        try:
            said = (await self.git.run(folder, "rev-parse", *words, *paths)).lines
        except GitFailed as error:
            if "dubious ownership" in error.message:
                raise _unfit(f"{str(folder)!a} belongs to another user", OWNED) from None
            if "not a git repository" in error.message:
                raise _unfit(f"{str(folder)!a} is not in a git repository", WHOSE) from None
            raise _unfit(f"{str(folder)!a}: {error.message}") from None
        if len(said) > len(words) + 2:
            raise _unfit(f"{str(folder)!a} has a line end in its path", "give it another name")
        inside, shallow, object_format, git_dir, common = said
        _require_own(common)
        if shallow == "true":
            raise _unfit("it is a shallow clone", "complete it with 'git fetch --unshallow'")
        top = None
        if inside == "true":
            top = Path((await self.git.run(folder, "rev-parse", "--show-toplevel")).lines[0])
        return Facts(
            git_dir=Path(git_dir), common=Path(common), top=top, object_format=object_format
        )

    async def _commit(self, facts: Facts, ref: str) -> str:
        where = Where(git_dir=facts.git_dir)
        words = ("rev-parse", "--verify", "--quiet", "--end-of-options")
        named = [ref] if ref == "HEAD" else [f"{BRANCHES}{ref}", ref]  # a tag may be named so, too
        for name in named:
            found = await self.git.run(where, *words, f"{name}^{{commit}}", accept=(0, 1, 128))
            if found.code == 0:
                return found.text.split("\n")[-1]
        head = ("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        if (await self.git.run(where, *head, accept=(0, 1, 128))).code:
            raise _unfit("the repository has no commits yet", "make a first commit")
        raise _unfit(f"there is no commit {ref[:80]!a}", "base.ref names a branch, tag or commit")

    async def _require_files(self, facts: Facts, commit: str) -> None:
        """Raises:
        BadInput: it is a partial clone, and lacks something of the commit.
        """
        where = Where(git_dir=facts.git_dir)
        partial = ("config", "--get-regexp", r"^(remote\..*\.promisor|extensions\.partialclone)$")
        if (await self.git.run(where, *partial, accept=(0, 1))).code:
            return
        words = ("rev-list", "--objects", "--no-walk", "--quiet", "--missing=print", commit)
        if (await self.git.run(where, *words)).out:
            raise _unfit("it is a partial clone that lacks files of the base", COMPLETE)

    async def _require_room(self, facts: Facts) -> None:
        words = ("show-ref", "--verify", "--quiet", "refs/heads/retinue")
        taken = await self.git.run(Where(git_dir=facts.git_dir), *words, accept=(0, 1, 128))
        if taken.code == 0:
            raise _unfit("a branch named 'retinue' leaves no room for retinue/<task>")

    async def _require_checked_out(
        self, facts: Facts, commit: str, ref: str, *, apply: bool
    ) -> str:
        """The branch that is checked out, where the result is to be applied to it."""
        if facts.top is None:
            raise _unfit("there is no working tree in that place")
        where = Where(git_dir=facts.git_dir, tree=facts.top)
        head = (await self.git.run(where, "rev-parse", "HEAD^{commit}")).text
        if head != commit:
            raise _unfit(f"{ref[:80]!a} is not what is checked out", "leave base.ref out")
        if apply:
            branch = await self._branch(where)
            await self._require_clean(where)
            return branch
        words = ("config", "--bool", "--get", "core.sparseCheckout")
        if (await self.git.run(where, *words, accept=(0, 1))).text == "true":
            raise _unfit("a sparse checkout cannot be the base with --include-dirty")
        await self._require_one(where, _spared(self._tasks.parent, str(facts.top)))
        return ""

    async def _branch(self, where: Where) -> str:
        found = await self.git.run(where, "symbolic-ref", "-q", "HEAD", accept=(0, 1))
        if found.code:
            raise _unfit("HEAD is detached: there is no branch to apply the result to")
        return found.text

    async def _require_same(self, where: Where, source: Source) -> None:
        """Raises:
        BadInput: another branch is checked out than when the run began, or it was put back.
        """
        branch = await self._branch(where)
        if source.branch and branch != source.branch:
            raise _unfit(f"{source.branch.removeprefix(BRANCHES)!a} is no longer checked out")
        words = ("merge-base", "--is-ancestor", source.commit, "HEAD")
        if (await self.git.run(where, *words, accept=(0, 1))).code:
            raise _unfit(f"{branch.removeprefix(BRANCHES)!a} lacks what the run began with")

    async def _require_one(self, where: Where, spared: list[str]) -> None:
        """Raises:
        BadInput: there are other repositories in the working tree, with changes of their own.
        """
        if b"\n160000 " in b"\n" + (await self._owners.run(where, "ls-files", "-s")).out:
            raise _unfit("it has submodules, whose uncommitted changes cannot be included")
        words = ("ls-files", "--others", "--exclude-standard", "-z", "--", ".", *spared)
        with in_memory() as out:
            await self._owners.run(where, *words, stdout=out.fileno())
            out.seek(0)
            found = [path for path in out.read().split(b"\0") if path.endswith(b"/")]
        if found:
            shown = os.fsdecode(found[0][:-1])
            raise _unfit(f"{shown!a} is a repository of its own within the working tree", IGNORED)

    async def _require_clean(self, where: Where) -> None:
        words = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all", "-z")
        if (await self._owners.run(where, *words)).out:
            raise _unfit("the working tree has uncommitted changes", "commit or stash them first")


async def head(sources: GitSources, project: Path) -> Source:
    """What is checked out in the project.

    Raises:
        BadInput: why nothing can start from there.
    """
    return await sources.find(project, "HEAD", dirty=False, apply=False)


def identity(name: str) -> dict[str, str]:
    """Who a commit is by; the user's own identity is not ours to use."""
    return {
        "GIT_AUTHOR_NAME": name,
        "GIT_AUTHOR_EMAIL": OUR_ADDRESS if name == OUR_NAME else f"{name}@retinue.invalid",
        "GIT_COMMITTER_NAME": OUR_NAME,
        "GIT_COMMITTER_EMAIL": OUR_ADDRESS,
    }


def _spared(root: Path, top: str) -> list[str]:
    """Our own folder is no part of the user's work."""
    inside = os.path.relpath(root, top)
    return [] if inside.startswith("..") else excluding(inside)


def _require_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise _unfit(f"there is no folder {str(folder)!a}")


def _require_own(git_dir: str) -> None:
    if os.stat(git_dir).st_uid != os.geteuid():
        raise _unfit(f"{git_dir!a} belongs to another user", OWNED)


def _unfit(sentence: str, hint: str = "") -> BadInput:
    return BadInput(sentence, code="unfit_repository", hint=hint)
