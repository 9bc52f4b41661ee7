"""Resolution of untrusted paths, link by link."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from retinue.files import open_without_links
from retinue.workspaces.contexts import LeadsOutside, is_below, resolve_links

NOWHERE = "/no/such/fence"


@pytest.fixture
def top(tmp_path: Path) -> Path:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "f").touch()
    (tmp_path / "out").mkdir()
    (tmp_path / "in" / "way").symlink_to("deep")
    (tmp_path / "in" / "far").symlink_to(tmp_path / "out")
    (tmp_path / "in" / "loop").symlink_to("loop")
    return tmp_path


def test_links_are_followed_as_the_kernel_follows_them(top: Path) -> None:
    for path in ("in/way/f", "in/./deep/../way/f", "in/far", "in//deep/"):
        given = f"{top}/{path}"
        assert resolve_links(given, lambda _: True, NOWHERE) == str(Path(given).resolve())


def test_places_that_may_not_be_accessed_are_not_accessed(top: Path) -> None:
    looked: list[str] = []

    def may_look(place: str) -> bool:
        looked.append(place)
        return is_below(place, f"{top}/in") or is_below(str(top), place)

    for path in ("in/far", "in/far/f", "out/absent", "in/../out"):
        with pytest.raises(LeadsOutside):
            resolve_links(f"{top}/{path}", may_look, NOWHERE)
    assert f"{top}/out/absent" not in looked


def test_a_link_inside_the_fence_may_not_lead_out_of_it(top: Path) -> None:
    assert resolve_links(f"{top}/in/way", lambda _: True, f"{top}/in") == f"{top}/in/deep"
    with pytest.raises(LeadsOutside):
        resolve_links(f"{top}/in/far", lambda _: True, f"{top}/in")


def test_a_loop_is_an_error(top: Path) -> None:
    with pytest.raises(OSError) as fault:
        resolve_links(f"{top}/in/loop", lambda _: True, NOWHERE)
    assert fault.value.errno == errno.ELOOP


def test_a_recorded_path_is_opened_without_links(top: Path) -> None:
    os.close(open_without_links(f"{top}/in/deep/f"))
    for path in ("in/way/f", "in/way", "in/far"):
        with pytest.raises(OSError) as fault:
            open_without_links(f"{top}/{path}")
        assert fault.value.errno == errno.ELOOP
    with pytest.raises(NotADirectoryError):
        open_without_links(f"{top}/in/deep/f/g")
    with pytest.raises(FileNotFoundError):
        open_without_links(f"{top}/absent")
