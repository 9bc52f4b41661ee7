"""Taking a child's files in: looked through first, then hashed by a git that trusts none."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from retinue.domain.contract import Contract
from retinue.domain.globs import owns
from retinue.domain.join import POLICY, REFUSED, JoinFailed, portions
from retinue.workspaces.git import Git, GitFailed, Where, excluding
from retinue.workspaces.sparse import WORDS as SPARSE_WORDS

OURS = ".retinue"  # at the top of a workspace: a report, the folders of a team; never taken in
MB = 1024 * 1024
SHOWN = 20
LINK, GITLINK = "120000", "160000"


@dataclass(frozen=True, kw_only=True)
class Changed:
    path: str
    old_mode: str
    new_mode: str  # 000000 where it is gone
    old_blob: str
    new_blob: str

    @property
    def is_gone(self) -> bool:
        return self.new_mode == "000000"


@dataclass(frozen=True, kw_only=True)
class Taken:
    """The tree that a workspace is now, and what is different from its base."""

    tree: str
    changed: list[Changed]
    ignored: tuple[str, ...] = ()  # some of what git left out, where nothing else is different


async def take_in(git: Git, where: Where, contract: Contract) -> Taken:
    """The workspace as it is now.

    Raises:
        JoinFailed: something in it is not to be taken.
    """
    workspace = where.tree
    assert workspace is not None, "a workspace has a tree"
    if workspace.is_symlink() or not workspace.is_dir():
        raise JoinFailed("its workspace is gone, or was replaced", reason=REFUSED)
    most = contract.outputs.max_file_mb
    nested, large = await asyncio.to_thread(_survey, workspace, most * MB)
    spared = [*excluding(contract.report_path), *excluding(OURS)]
    try:
        await _refuse_nested(git, where, nested)
        await _refuse_large(git, where, large, most)
        await git.run(where, *SPARSE_WORDS, "add", "-A", "--sparse", "--", ".", *spared)
        tree = (await git.run(where, "write-tree")).text
        changed = await compared(git, where, contract, tree)
        ignored = () if changed else await _ignored(git, where, spared)
        return Taken(tree=tree, changed=changed, ignored=ignored)
    except GitFailed as error:
        reason = POLICY if "invalid path" in error.message else REFUSED
        raise JoinFailed(f"its files cannot be taken: {error.message}", reason=reason) from error


async def _ignored(git: Git, where: Where, spared: Sequence[str]) -> tuple[str, ...]:
    """Some of what git left out: by an ignore file, or as a submodule's."""
    words = ("ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z")
    said = (await git.run(where, *words, "--", ".", *spared)).out.split(b"\0")
    known = (await git.run(where, "ls-files", "--stage", "-z")).out.split(b"\0")
    links = [line.partition(b"\t")[2] for line in known if line.startswith(GITLINK.encode())]
    within = await asyncio.to_thread(_within, os.fsencode(str(where.tree)), links)
    found = [*filter(None, said), *within]
    return tuple(shown_path(os.fsdecode(path)) for path in found[:SHOWN])


def _within(top: bytes, folders: Sequence[bytes]) -> list[bytes]:
    """Some files in these folders, however deep they lie, by their paths from the top."""
    found: list[bytes] = []
    waiting = [*reversed(folders)]
    while waiting and len(found) < SHOWN:
        above = waiting.pop()
        with suppress(OSError), os.scandir(os.path.join(top, above)) as entries:
            for entry in sorted(entries, key=attrgetter("name")):
                is_folder = entry.is_dir(follow_symlinks=False)
                (waiting if is_folder else found).append(os.path.join(above, entry.name))
    return found


async def compared(git: Git, where: Where, contract: Contract, tree: str) -> list[Changed]:
    """What is different in a tree from the base, all of it allowed.

    Raises:
        GitFailed: git could not compare them.
        JoinFailed: something may not be different.
    """
    words = ("diff-tree", "-r", "-z", "--raw", "--no-renames", contract.outputs.base, tree)
    changed = list(parsed((await git.run(where, *words)).out))
    _require_allowed(changed, contract)
    return changed


def require_owned(paths: Sequence[str], contract: Contract) -> None:
    """Raises:
    JoinFailed: something was changed that is not its own to change.
    """
    patterns = contract.outputs.owns
    astray = [path for path in paths if patterns and not owns(patterns, path)]
    if astray:
        raise against("it changed what it does not own", astray)


def _require_allowed(changed: Sequence[Changed], contract: Contract) -> None:
    require_owned([each.path for each in changed], contract)
    allow = contract.outputs.allow
    for mode, name, said in (
        (LINK, "links", "a symbolic link"),
        (GITLINK, "submodules", "a submodule"),
    ):
        found = [each.path for each in changed if mode in (each.old_mode, each.new_mode)]
        brought = [each.path for each in changed if each.new_mode == mode]
        refused = brought if mode == LINK else found
        if refused and name not in allow:
            raise against(f"it brings {said}, which its plan does not allow", refused)


def against(sentence: str, paths: Sequence[str]) -> JoinFailed:
    """The refusal that names them, as far as they can be shown."""
    shown = [shown_path(path) for path in paths[:SHOWN]]
    more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
    return JoinFailed(f"{sentence}: {', '.join(shown)}{more}", reason=POLICY, files=tuple(shown))


def shown_path(path: str) -> str:
    """A path that can be shown and stored, whatever bytes it has."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _survey(workspace: Path, most: float) -> tuple[list[str], list[str]]:
    """Repositories within the workspace, and files beyond the limit."""
    nested: list[str] = []
    large: list[str] = []
    waiting = [""]
    while waiting:
        above = waiting.pop()
        try:
            with os.scandir(workspace / above) as entries:
                for entry in entries:
                    path = f"{above}{entry.name}"
                    if path == OURS:
                        continue
                    if entry.name.lower() == ".git":
                        if above or entry.name != ".git":
                            nested.append(path)
                    elif entry.is_dir(follow_symlinks=False):
                        waiting.append(f"{path}/")
                    elif (
                        entry.is_file(follow_symlinks=False)
                        and entry.stat(follow_symlinks=False).st_size > most
                    ):
                        large.append(path)
        except OSError as error:
            raise JoinFailed(
                f"{shown_path(above) or 'its workspace'} cannot be read: {error.strerror}",
                reason=REFUSED,
            ) from None
    return nested, large


async def _refuse_nested(git: Git, where: Where, nested: list[str]) -> None:
    """A repository within would be looked into by git itself; unless it is ignored as a whole."""
    for path in sorted(nested):
        folder = path.rpartition("/")[0] or path
        words = ("check-ignore", "--quiet", "--no-index", "--stdin", "-z")
        said = os.fsencode(folder) + b"\0"
        ignored = await git.run(where, *words, stdin=said, accept=(0, 1, 128))
        if ignored.code != 0:
            raise against("it holds a git folder of its own", [path])


async def _refuse_large(git: Git, where: Where, large: list[str], most: float) -> None:
    if not large:
        return
    await git.run(where, "update-index", "-q", "--refresh", accept=(0, 1))
    changed = ("--literal-pathspecs", "diff-files", "--name-only", "-z", "--")
    new = ("--literal-pathspecs", "ls-files", "-o", "--exclude-standard", "-z", "--")
    found = b""
    for part in portions(large):
        found += (await git.run(where, *changed, *part)).out
        found += (await git.run(where, *new, *part)).out
    if found:
        paths = sorted(os.fsdecode(each) for each in found.split(b"\0") if each)
        raise against(f"it brings files of more than {most:g} MB", paths)


def parsed(listed: bytes) -> Iterator[Changed]:
    """What `diff-tree --raw -z` said."""
    fields = listed.split(b"\0")
    for about, path in zip(fields[0::2], fields[1::2], strict=False):
        old, new, before, after, _ = about.decode().removeprefix(":").split(" ")
        yield Changed(
            path=os.fsdecode(path), old_mode=old, new_mode=new, old_blob=before, new_blob=after
        )
