"""Commits that workspaces start from, carried to nodes as git packs.

The first pack of a repository is shallow: the files of one commit, without history. Later ones are
thin: what differs from a commit that the node has. The node keeps its own repository for each one
of a steward, and checks out each commit once, like a steward does.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from retinue.cluster import archive
from retinue.cluster.blob_store import BlobRef, BlobStore
from retinue.cluster.ignored_files import list_ignored_beyond
from retinue.cluster.messages import InvalidMessage
from retinue.cluster.sealing import derive_key
from retinue.core.errors import LaunchFailed
from retinue.files import append, make_folder
from retinue.runtime.process_runtime import ProcessRuntime
from retinue.workspaces import overlay
from retinue.workspaces.git.git_command import Git, GitFailed, GitTarget
from retinue.workspaces.git.shared_checkouts import SharedCheckouts
from retinue.workspaces.git.task_repository import (
    GIT,
    SEEN_THROUGH,
    TrustedRepository,
    write_git_history,
    write_git_identity,
)

MOST_ANNOUNCED = 32
PACK_SECONDS = 600.0
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
NAME = re.compile(r"[0-9a-f]{16}")
SHALLOW = "shallow"

Fetch = Callable[[Mapping[str, Any]], Awaitable[bytes]]


class StewardPacks:
    """The steward's end: packs commits and puts them into the hub, each once."""

    def __init__(self, git: Git, blobs: BlobStore, secret: bytes) -> None:
        self._git = git
        self._blobs = blobs
        self._secret = secret
        self._made: dict[tuple[str, str, str], dict[str, Any]] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    async def offer(
        self, repository: Path, source: str, commit: str, has: Sequence[str]
    ) -> dict[str, Any]:
        """Return the base section of an order, after its pack is in the hub.

        Args:
            repository: that of the task, which has the commit.
            source: the user's repository: what a node has of it serves all tasks.
            has: what the node announced, as REPOSITORY:COMMIT.

        Raises:
            LaunchFailed: the pack could not be made.
            HubUnreachable: the hub did not take it.
        """
        name = derive_key(self._secret, f"repository {source or repository}").hex()[:16]
        section: dict[str, Any] = {"repository": name, "commit": commit, "pack": None, "on": ""}
        here = [each.partition(":")[2] for each in has if each.startswith(f"{name}:")]
        if commit in here:
            return section
        # Children of one call ask for the same commit at once: it is packed once.
        async with self._turns.setdefault(commit, asyncio.Lock()):
            on = await self._choose_known(repository, here)
            made = self._made.get((name, commit, on))
            # The hub may have dropped it for newer files, or because of its age.
            if made is None or not await self._blobs.has(BlobRef.from_json(made)):
                made = await self._make(repository, name, commit, on)
                self._made[name, commit, on] = made
        return section | {"pack": made, "on": on, "format": await self._read_format(repository)}

    async def _choose_known(self, repository: Path, here: Sequence[str]) -> str:
        """Return the newest announced commit that this repository has, too."""
        for commit in reversed(here):
            if COMMIT.fullmatch(commit):
                words = ("cat-file", "-e", f"{commit}^{{commit}}")
                where = GitTarget(git_dir=repository)
                with suppress(GitFailed):
                    said = await self._git.run(where, *words, accept=(0, 1, 128))
                    if said.code == 0:
                        return commit
        return ""

    async def _make(self, repository: Path, name: str, commit: str, on: str) -> dict[str, Any]:
        wanted = f"--shallow {commit}\n{commit}\n" + (f"--not\n{on}\n" if on else "")
        words = ["pack-objects", "-q", "--revs", "--shallow", "--delta-base-offset", "--stdout"]
        words += ["--thin"] if on else []
        try:
            with tempfile.TemporaryFile() as out:
                await self._git.run(
                    GitTarget(git_dir=repository),
                    *words,
                    stdin=wanted.encode(),
                    stdout=out.fileno(),
                    seconds=PACK_SECONDS,
                )
                out.seek(0)
                data = await asyncio.to_thread(out.read)
        except (GitFailed, OSError) as error:
            raise LaunchFailed(f"its base could not be packed: {error}") from error
        key = derive_key(self._secret, f"pack {name} {commit} {on}")
        digest = await asyncio.to_thread(archive.digest, data, key)
        ref = await self._blobs.put(f"pack{digest}", key, data)
        return asdict(ref) | {"key": key.hex()}

    async def _read_format(self, repository: Path) -> str:
        said = await self._git.run(
            GitTarget(git_dir=repository), "rev-parse", "--show-object-format"
        )
        return said.text


class NodeBases:
    """The node's end: its repositories and the checkouts that workspaces lie over."""

    def __init__(self, root: Path, runtime: ProcessRuntime) -> None:
        self._root = root
        self._git = Git()
        self._checkouts = SharedCheckouts(self._git, root, self._find_missing)
        self._runtime = runtime
        self._turns: dict[str, asyncio.Lock] = {}

    async def _find_missing(self) -> str | None:
        return await self._runtime.layers_missing(self._root)

    def list_known(self) -> tuple[str, ...]:
        """Return what the node announces: the newest commits, as REPOSITORY:COMMIT."""
        found: list[tuple[float, str]] = []
        with suppress(OSError):
            for repository in (self._root / "repositories" / "git").iterdir():
                with suppress(OSError):
                    for commit in (repository / "have").iterdir():
                        name = f"{repository.name}:{commit.name}"
                        found.append((commit.stat().st_mtime, name))
        return tuple(name for _, name in sorted(found)[-MOST_ANNOUNCED:])

    async def lay_out(
        self,
        base: Mapping[str, Any],
        fetch: Fetch,
        workspace: Path,
        uid: int | None,
        *,
        layered: bool,
    ) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
        """Give a workspace its base; return the layers below it and the folders lent for git.

        Raises:
            LaunchFailed: it could not be made.
            InvalidMessage: the order is wrong.
        """
        name, commit = str(base["repository"]), str(base["commit"])
        if not NAME.fullmatch(name) or not COMMIT.fullmatch(commit):
            raise InvalidMessage("not a base")
        ours = TrustedRepository(self._git, self._root / "repositories" / "git" / name)
        try:
            async with self._turns.setdefault(name, asyncio.Lock()):
                await self._take_pack(ours, base, commit, fetch)
            if not layered:
                await self._give_git(ours, workspace, commit, uid)
                return (), ours.list_lent()
            overlay.lay_over(workspace, self._root / overlay.BASES / commit)
            below = await self._checkouts.ensure_ready(ours, commit)
            write_git_identity(ours.folder, workspace, workspace.parent.name, settings=SEEN_THROUGH)
            (workspace / GIT / SHALLOW).write_text(f"{commit}\n")
            return below.layers, ours.list_lent()
        except (GitFailed, OSError) as error:
            raise LaunchFailed(f"its workspace could not be made: {error}") from error

    async def list_unsent(
        self, base: Mapping[str, Any], workspace: Path, *, layered: bool
    ) -> list[str]:
        """Return the ignored files of a workspace that are too much to send.

        Raises:
            GitFailed, OSError: git could not be asked.
        """
        folder = self._root / "repositories" / "git" / str(base["repository"])
        ours = TrustedRepository(self._git, folder)
        commit = str(base["commit"])
        return await list_ignored_beyond(self._git, ours, commit, workspace, layered=layered)

    async def _take_pack(
        self, ours: TrustedRepository, base: Mapping[str, Any], commit: str, fetch: Fetch
    ) -> None:
        have = ours.folder / "have" / commit
        if have.exists():
            have.touch()
            return
        if base["pack"] is None:
            raise LaunchFailed("its node no longer has the base that it announced")
        data = await fetch(base["pack"])
        empty = self._root / "repositories" / "none" / "objects"
        make_folder(self._root / "repositories", mode=0o711)
        for folder in (ours.folder.parent, empty.parent, empty):
            make_folder(folder, mode=0o755)
        ours.make(empty, str(base.get("format") or "sha1"))
        # git reads which commits have no parents here from this file.
        append(ours.folder / SHALLOW, f"{commit}\n".encode())
        words = ("index-pack", "--stdin", *(("--fix-thin",) if base["on"] else ()))
        with tempfile.TemporaryFile() as file:
            await asyncio.to_thread(file.write, data)
            file.seek(0)
            os.lseek(file.fileno(), 0, os.SEEK_SET)
            where = GitTarget(git_dir=ours.folder)
            await self._git.run(where, *words, stdin=file.fileno(), seconds=PACK_SECONDS)
        for place, _, files in os.walk(ours.objects):
            os.chmod(place, 0o755)
            for each in files:
                os.chmod(os.path.join(place, each), 0o444)
        make_folder(have.parent)
        have.touch()

    async def _give_git(
        self, ours: TrustedRepository, workspace: Path, commit: str, uid: int | None
    ) -> None:
        """Give a workspace with all its files a git folder."""
        name = workspace.parent.name
        index = ours.get_index(workspace.parents[2].name)  # named as the attempt
        where = GitTarget(git_dir=ours.folder, index=index)
        await self._git.run(where, "read-tree", commit)
        write_git_history(workspace, commit, index)
        write_git_identity(ours.folder, workspace, name, settings="")
        (workspace / GIT / SHALLOW).write_text(f"{commit}\n")
        index.unlink(missing_ok=True)
