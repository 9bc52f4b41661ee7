"""The user's repository, from which a run starts and into which results are merged.

Retinue only reads its working tree, index, stash and HEAD, unless the user asks for a
fast-forward of the checked-out branch. It adds objects, and moves refs by compare-and-swap.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shlex
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from retinue.core.errors import BadInput, Refused
from retinue.core.ids import TaskId
from retinue.core.join_result import Source
from retinue.files import storage_failures
from retinue.processes import finish_work
from retinue.workspaces.git.git_command import (
    ENVIRONMENT,
    SETTINGS,
    USUAL_SECONDS,
    Git,
    GitFailed,
    GitTarget,
    make_exclude_patterns,
    open_memory_file,
)
from retinue.workspaces.git.repository_location import (
    USE_PROJECT,
    locate_repository,
    make_unfit_error,
    require_outside_of_roots,
)
from retinue.workspaces.git.task_repository import REPOSITORY, TrustedRepository

# How often a waiter tries the lock again, and how many times.
TURN_SECONDS = 0.1
TURNS = int(USUAL_SECONDS / TURN_SECONDS)

# The user's own settings and variables decide these when git works on the user's files.
THEIR_SETTINGS = {
    "core.symlinks",
    "core.fileMode",
    "core.autocrlf",
    "core.safecrlf",
    "core.attributesFile",
    "core.excludesFile",
}
THEIR_VARIABLES = {
    "HOME",
    "XDG_CONFIG_HOME",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_NOSYSTEM",
    "GIT_ATTR_NOSYSTEM",
}


def make_owners_git(variables: Mapping[str, str]) -> Git:
    """Return a git that reads the user's configuration and finds the user's filters."""
    ours = {name: value for name, value in ENVIRONMENT.items() if name not in THEIR_VARIABLES}
    theirs = {name: value for name, value in variables.items() if name in THEIR_VARIABLES}
    search = [*variables.get("PATH", "").split(os.pathsep), ENVIRONMENT["PATH"]]
    path = os.pathsep.join(each for each in search if each.startswith("/"))
    return Git(
        settings={name: value for name, value in SETTINGS.items() if name not in THEIR_SETTINGS},
        environment={**ours, **theirs, "PATH": path},
    )


@asynccontextmanager
async def lock_repository(git_dir: Path) -> AsyncIterator[int]:
    """Hold an exclusive lock on the git folder and yield its descriptor.

    The kernel keeps the lock while any process has the descriptor open. A git process that
    outlives its steward therefore still excludes others.

    Raises:
        GitFailed: the lock stays taken for too long, or the folder cannot be opened.
    """
    try:
        place = os.open(git_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise GitFailed(f"{git_dir}: {error.strerror}") from error
    try:
        # A blocking flock would occupy a thread and could not be cancelled, so the lock is polled.
        for _ in range(TURNS):
            if _is_taken(place):
                break
            await asyncio.sleep(TURN_SECONDS)
        else:
            raise GitFailed("another git process has locked the repository for too long")
        yield place
    finally:
        os.close(place)


def _is_taken(place: int) -> bool:
    """Try to take the lock; return whether it is ours now."""
    with suppress(BlockingIOError):
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


async def apply_fast_forward(git: Git, where: GitTarget, branch: str, place: int) -> None:
    """Fast-forward the checked-out branch and its files to `branch`.

    Args:
        place: the lock's descriptor, which git inherits; see `lock_repository`.

    Raises:
        GitFailed: git could not; the files are restored.
    """
    # The user's options may ask for a squash. Ignored files are in no commit, so git must not
    # overwrite them.
    words = ("merge", "--ff-only", "--no-squash", "--no-overwrite-ignore", "--quiet", "--no-stat")
    top = where.tree
    assert top is not None, "a branch that is checked out has a working tree"
    said = await git.run(where, "diff", "--name-only", "--no-renames", "-z", "HEAD", branch, "--")
    # A failing filter leaves a checkout half done: remember which files have to be restored.
    before = {name: _read_fingerprint(top, name) for name in said.out.split(b"\0") if name}
    try:
        # git never reads stdin here. Passing the descriptor makes git hold the lock as well.
        await git.run(where, *words, branch, stdin=place)
    except GitFailed as error:
        touched = [name for name in before if _read_fingerprint(top, name) != before[name]]
        # Remove files that are new, then check out the old content of those that were changed.
        for name in (name for name in touched if before[name] is None):
            with suppress(OSError):
                os.unlink(os.path.join(os.fsencode(top), name))
        if kept := [name for name in touched if before[name] is not None]:
            try:
                await _check_out_head(git, where, kept)
            except GitFailed:
                # A git that was killed left its lock. It may be that of the user's git, so it
                # stays: another index takes its place for this.
                with tempfile.TemporaryDirectory(dir=where.git_dir) as aside:
                    copy = Path(shutil.copy2(where.git_dir / "index", aside))
                    await _check_out_head(git, replace(where, index=copy), kept)
        lock = where.git_dir / "index.lock"
        if lock.exists():
            raise GitFailed(f"{error.message}; if no git is running, remove {lock}") from error
        raise


async def _check_out_head(git: Git, where: GitTarget, names: Sequence[bytes]) -> None:
    back = ("checkout", "--quiet", "HEAD", "--pathspec-from-file=-", "--pathspec-file-nul")
    await git.run(where, "--literal-pathspecs", *back, stdin=b"\0".join(names))


def _read_fingerprint(top: Path, name: bytes) -> tuple[int, int, int] | None:
    """Return inode, size and time of a file, which change when it is replaced; None without one."""
    with suppress(OSError):
        found = os.lstat(os.path.join(os.fsencode(top), name))
        return found.st_ino, found.st_size, found.st_mtime_ns
    return None


BRANCHES = "refs/heads/"
OBJECTS = "GIT_OBJECT_DIRECTORY"
WHOSE = "name one under base in the plan; the default is that of the folder with .retinue"
COMPLETE = "check it out once, or get all with 'git fetch --refetch --no-filter'"
IGNORED = "let git ignore it, for example in .git/info/exclude; it cannot be included"
OUR_NAME, OUR_ADDRESS = "Retinue", "retinue@retinue.invalid"


@dataclass(frozen=True, kw_only=True)
class RepositoryFacts:
    """Properties of a repository, as git reports them."""

    git_dir: Path
    common: Path
    top: Path | None  # of the working tree; None in a bare repository
    object_format: str


class GitSources:
    """The user's repositories, from which tasks start and to which output is applied."""

    def __init__(self, git: Git, owners: Git, tasks: Path) -> None:
        self.git = git
        self._owners = owners
        self._tasks = tasks

    def get_repository(self, task: TaskId) -> TrustedRepository:
        return TrustedRepository(self.git, self._tasks / task / REPOSITORY)

    async def find(
        self, folder: Path, ref: str, *, dirty: bool, apply: bool, named: bool = False
    ) -> Source:
        """Return the source that a run would start from; create nothing.

        Args:
            named: whether a person named this folder as the repository; see `locate_repository`.

        Raises:
            BadInput: no run can start from there; the message says why.
        """
        facts = await self._read_facts(folder, named=named)
        commit = await self._commit(facts, ref)
        await self._require_files(facts, commit)
        await self._require_room(facts)
        if dirty and apply:
            raise make_unfit_error(
                "uncommitted changes cannot be included when the result is to be applied to them"
            )
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

    def require_same_repository(self, folder: Path, project: Path) -> None:
        """Require that a folder is in the project's own repository.

        Raises:
            BadInput: it is not.
        """
        root = self._tasks.parent
        require_outside_of_roots(folder, root)
        _require_folder(folder)
        own = locate_repository(project, root)
        found = locate_repository(folder, root)
        if found is None or own is None or found.common != own.common:
            raise make_unfit_error(
                f"{str(folder)!a} is not in the project's own repository", USE_PROJECT
            )

    async def open(self, task: TaskId, source: Source, *, dirty: bool) -> Source:
        """Create the task's own repository; with `dirty`, commit uncommitted changes as its base.

        The changes are collected with a copy of the user's index, which knows the files that are
        added although ignored, and those to be treated as unchanged.
        """
        ours = self.get_repository(task)
        ours.make(Path(source.objects), source.object_format)
        if not dirty:
            return source
        theirs = Path(source.git_dir) / "index"
        index = ours.get_index("dirty")
        where = GitTarget(git_dir=Path(source.git_dir), tree=Path(source.top), index=index)
        # New objects go into the task's repository, not into the user's.
        run = partial(self._owners.run, where, environment={OBJECTS: str(ours.objects)})
        if theirs.exists():
            with storage_failures(index):
                # Keep the time: git compares it with those of files to see which may have changed.
                shutil.copy2(theirs, index)
        else:
            await run("read-tree", source.commit)
        try:
            await run("add", "-A", "--", ".", *_list_excluded(self._tasks.parent, source.top))
        except GitFailed as error:  # a missing filter, a file that cannot be read
            raise make_unfit_error(
                f"uncommitted changes cannot be taken: {error.message}"
            ) from None
        tree = (await run("write-tree")).text
        words = ("commit-tree", tree, "-p", source.commit, "-m", "Uncommitted changes")
        made = await self.git.run(ours.where, *words, environment=make_author(OUR_NAME))
        return replace(source, commit=made.text)

    async def ensure(self, task: TaskId, git_dir: str) -> None:
        """Create the task's own repository, reading objects from `git_dir`, unless it exists."""
        ours = self.get_repository(task)
        if (ours.folder / "HEAD").exists():
            return
        words = ("--show-object-format", "--path-format=absolute", "--git-common-dir")
        said = await self.git.run(GitTarget(git_dir=Path(git_dir)), "rev-parse", *words)
        object_format, common = said.lines
        ours.make(Path(common) / "objects", object_format)

    def find_repository(self, task: TaskId, git_dir: str) -> Path:
        """Return the git folder that a run started with, even if the project has moved since."""
        return self.get_repository(task).find_repository(Path(git_dir))

    async def find_tip(self, task: TaskId, git_dir: str, branch: str) -> str:
        """Return the commit of a branch; empty when there is no such branch."""
        words = ("for-each-ref", "--format=%(objectname)", branch)
        return (
            await self.git.run(GitTarget(git_dir=self.find_repository(task, git_dir)), *words)
        ).text

    async def has_commit(self, task: TaskId, source: Source) -> bool:
        """Return whether the user's repository has the commit that the run began with.

        It has not if that commit holds uncommitted changes, which only the task's repository has.
        """
        where = GitTarget(git_dir=self.find_repository(task, source.repository))
        words = ("cat-file", "-e", f"{source.commit}^{{commit}}")
        return (await self.git.run(where, *words, accept=(0, 1, 128))).code == 0

    async def fast_forward(self, source: Source, branch: str) -> None:
        """Fast-forward the checked-out branch and its files to what was joined.

        Raises:
            Refused: the tree is not clean or the branch has moved; nothing was changed.
        """
        where = GitTarget(git_dir=Path(source.git_dir), tree=Path(source.top))
        try:
            # Check and apply under one lock: another run may apply its result to the same tree.
            async with lock_repository(where.git_dir) as place:
                await self._require_same(where, source)
                await self._require_clean(where)
                await self._require_ahead(where, branch)
                applying = apply_fast_forward(self._owners, where, branch, place)
                # Finish even when cancelled: a stopped checkout would be half done.
                await finish_work(applying)
        except (GitFailed, BadInput) as error:
            raise Refused(
                f"not applied: {error.message}",
                code="not_applied",
                hint=f"look at it with 'git log {branch.removeprefix(BRANCHES)}' and merge it",
            ) from None

    async def _read_facts(self, folder: Path, *, named: bool) -> RepositoryFacts:
        _require_folder(folder)
        found = locate_repository(folder, self._tasks.parent, named=named)
        if found is None:
            raise make_unfit_error(
                f"{str(folder)!a} is not in a git repository",
                WHOSE,
                for_agents="leave integration and depends_on out, and copy from the workspaces",
            )
        # git's output and the alternates file hold one path a line.
        if any("\n" in str(path) for path in (found.git_dir, found.common, found.top)):
            raise make_unfit_error(f"{str(folder)!a} has a line break in its path", "rename it")
        words = ("--is-bare-repository", "--is-shallow-repository", "--show-object-format")
        try:
            said = (await self.git.run(GitTarget(git_dir=found.git_dir), "rev-parse", *words)).lines
        except GitFailed as error:
            if "not a git repository" in error.message:
                raise make_unfit_error(
                    f"{str(folder)!a} is not in a git repository", WHOSE
                ) from None
            raise make_unfit_error(f"{str(folder)!a}: {error.message}") from None
        bare, shallow, object_format = said
        if shallow == "true":
            raise make_unfit_error(
                "it is a shallow clone", "complete it with 'git fetch --unshallow'"
            )
        return RepositoryFacts(
            git_dir=found.git_dir,
            common=found.common,
            top=found.top if bare == "false" else None,
            object_format=object_format,
        )

    async def _commit(self, facts: RepositoryFacts, ref: str) -> str:
        where = GitTarget(git_dir=facts.git_dir)
        words = ("rev-parse", "--verify", "--quiet", "--end-of-options")
        # A tag may have the same name: the branch wins.
        named = [ref] if ref == "HEAD" else [f"{BRANCHES}{ref}", ref]
        for name in named:
            found = await self.git.run(where, *words, f"{name}^{{commit}}", accept=(0, 1, 128))
            if found.code == 0:
                return found.text.split("\n")[-1]
        head = ("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        if (await self.git.run(where, *head, accept=(0, 1, 128))).code:
            raise make_unfit_error("the repository has no commits yet", "make a first commit")
        raise make_unfit_error(
            f"there is no commit {ref[:80]!a}", "base.ref names a branch, tag or commit"
        )

    async def _require_files(self, facts: RepositoryFacts, commit: str) -> None:
        """Require that a partial clone has all files of the commit.

        Raises:
            BadInput: some are missing. They are never fetched: no transport is allowed.
        """
        where = GitTarget(git_dir=facts.git_dir)
        partial = ("config", "--get-regexp", r"^(remote\..*\.promisor|extensions\.partialclone)$")
        if (await self.git.run(where, *partial, accept=(0, 1))).code:
            return
        words = ("rev-list", "--objects", "--no-walk", "--quiet", "--missing=print", commit)
        if (await self.git.run(where, *words)).out:
            raise make_unfit_error("it is a partial clone that lacks files of the base", COMPLETE)

    async def _require_room(self, facts: RepositoryFacts) -> None:
        """Require that no branch named `retinue` blocks the names `retinue/<task>`."""
        words = ("show-ref", "--verify", "--quiet", "refs/heads/retinue")
        taken = await self.git.run(GitTarget(git_dir=facts.git_dir), *words, accept=(0, 1, 128))
        if taken.code == 0:
            raise make_unfit_error(
                "a branch named 'retinue' blocks the branch names retinue/<task>"
            )

    async def _require_checked_out(
        self, facts: RepositoryFacts, commit: str, ref: str, *, apply: bool
    ) -> str:
        """Require that the commit is checked out; with `apply`, return the branch to be moved."""
        if facts.top is None:
            raise make_unfit_error("the repository has no working tree")
        where = GitTarget(git_dir=facts.git_dir, tree=facts.top)
        head = (await self.git.run(where, "rev-parse", "HEAD^{commit}")).text
        if head != commit:
            hint = await self._describe_checkout(where, head, commit, ref[:80])
            raise make_unfit_error(f"{ref[:80]!a} is not what is checked out", hint)
        if apply:
            branch = await self._read_branch(where)
            await self._require_clean(where)
            return branch
        words = ("config", "--bool", "--get", "core.sparseCheckout")
        if (await self.git.run(where, *words, accept=(0, 1))).text == "true":
            raise make_unfit_error("a sparse checkout cannot be the base with --include-dirty")
        await self._require_one(where, _list_excluded(self._tasks.parent, str(facts.top)))
        return ""

    async def _describe_checkout(self, where: GitTarget, head: str, commit: str, ref: str) -> str:
        """Return a hint that loses no commit of the base."""
        if await self._is_ancestor(where, commit, head):
            return "leave base.ref out: what is checked out has all of it"
        lost = f"without base.ref the run would start without the commits of {ref!a}"
        if await self._is_ancestor(where, head, commit):
            return f"merge it first with 'git merge --ff-only {shlex.quote(ref)}'; {lost}"
        return f"merge it, or check it out, first; {lost}"

    async def _is_ancestor(self, where: GitTarget, old: str, new: str) -> bool:
        words = ("merge-base", "--is-ancestor", old, new)
        return (await self.git.run(where, *words, accept=(0, 1))).code == 0

    async def _read_branch(self, where: GitTarget) -> str:
        found = await self.git.run(where, "symbolic-ref", "-q", "HEAD", accept=(0, 1))
        if found.code:
            raise make_unfit_error("HEAD is detached: there is no branch to apply the result to")
        return found.text

    async def _require_same(self, where: GitTarget, source: Source) -> None:
        """Require the branch that was checked out when the run began, with the run's base in it.

        Raises:
            BadInput: another branch is checked out, or it was reset.
        """
        branch = await self._read_branch(where)
        if source.branch and branch != source.branch:
            raise make_unfit_error(
                f"{source.branch.removeprefix(BRANCHES)!a} is no longer checked out"
            )
        if not await self._is_ancestor(where, source.commit, "HEAD"):
            raise make_unfit_error(
                f"{branch.removeprefix(BRANCHES)!a} lacks the commit that the run started from"
            )

    async def _require_ahead(self, where: GitTarget, branch: str) -> None:
        """Require that the branch has every commit of what is checked out.

        Raises:
            BadInput: there are commits since the run began.
        """
        if not await self._is_ancestor(where, "HEAD", branch):
            own = (await self._read_branch(where)).removeprefix(BRANCHES) or "HEAD"
            name = shlex.quote(branch.removeprefix(BRANCHES))
            raise make_unfit_error(
                f"{own!a} has commits since the run began; 'git merge {name}' joins both"
            )

    async def _require_one(self, where: GitTarget, spared: list[str]) -> None:
        """Require that the working tree contains no other repository.

        Raises:
            BadInput: it does; uncommitted changes in there could not be included.
        """
        if b"\n160000 " in b"\n" + (await self._owners.run(where, "ls-files", "-s")).out:
            raise make_unfit_error(
                "it has submodules, whose uncommitted changes cannot be included"
            )
        words = ("ls-files", "--others", "--exclude-standard", "-z", "--", ".", *spared)
        with open_memory_file() as out:
            await self._owners.run(where, *words, stdout=out.fileno())
            out.seek(0)
            found = [path for path in out.read().split(b"\0") if path.endswith(b"/")]
        if found:
            shown = os.fsdecode(found[0][:-1])
            raise make_unfit_error(
                f"{shown!a} is a repository of its own within the working tree", IGNORED
            )

    async def _require_clean(self, where: GitTarget) -> None:
        words = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all", "-z")
        if (await self._owners.run(where, *words)).out:
            raise make_unfit_error(
                "the working tree has uncommitted changes", "commit or stash them first"
            )


async def find_head(sources: GitSources, project: Path) -> Source:
    """Return the commit that is checked out in the project.

    Raises:
        BadInput: no run can start from there.
    """
    return await sources.find(project, "HEAD", dirty=False, apply=False)


def make_author(name: str) -> dict[str, str]:
    """Return the identity of a commit as variables; the user's identity is never used."""
    return {
        "GIT_AUTHOR_NAME": name,
        "GIT_AUTHOR_EMAIL": OUR_ADDRESS if name == OUR_NAME else f"{name}@retinue.invalid",
        "GIT_COMMITTER_NAME": OUR_NAME,
        "GIT_COMMITTER_EMAIL": OUR_ADDRESS,
    }


def _list_excluded(root: Path, top: str) -> list[str]:
    """Return pathspecs that leave the `.retinue` folder out of the user's work."""
    inside = os.path.relpath(root, top)
    return [] if inside.startswith("..") else make_exclude_patterns(inside)


def _require_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise make_unfit_error(f"there is no folder {str(folder)!a}")
