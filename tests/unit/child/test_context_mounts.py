"""Mount points: no link leads a mount, or a new folder, out of the tree that is being built."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from retinue.child.context_mounts import attach, cover, hidden_in_views


@pytest.mark.parametrize("place", ["/lent/way/new", "/lent/way"])
def test_a_link_on_the_way_is_refused_and_nothing_is_made_behind_it(
    tmp_path: Path, place: str
) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (tmp_path / "root" / "lent").mkdir(parents=True)
    (tmp_path / "root" / "lent" / "way").symlink_to(elsewhere)
    for top in (tmp_path, __file__):  # a folder, a file
        tree = os.open(top, os.O_PATH)
        with pytest.raises(OSError) as refused:
            attach(tree, str(tmp_path / "root"), place)
        assert refused.value.errno in (errno.ELOOP, errno.ENOTDIR)
        os.close(tree)
    assert list(elsewhere.iterdir()) == []


def test_a_missing_path_is_not_covered(tmp_path: Path) -> None:
    assert not cover(str(tmp_path), "/not/there")
    assert list(tmp_path.iterdir()) == []


def test_hidden_folders_are_hidden_in_every_place() -> None:
    views = {"/context/paths": "/project", "/context/outside/lib": "/lib"}
    hidden = ["/project/.retinue", "/project-2/.retinue", "/lib"]
    assert hidden_in_views(views, hidden) == {"/context/paths/.retinue", "/context/outside/lib"}
