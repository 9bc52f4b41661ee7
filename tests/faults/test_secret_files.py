"""Files of secrets: no path through a root is followed, because children write there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.roots import sh
from support.scenes import Scene

READS = 'printf "%s" "$T" | wc -c'


def reader(file: Path) -> dict[str, Any]:
    return sh(READS, secrets=[f"T=file:{file}"])


@pytest.mark.parametrize("through", ["itself", "a link of the user"])
def test_a_link_that_a_child_left_is_no_way_to_another_file(scene: Scene, through: str) -> None:
    key = scene.home / ".ssh" / "id_ed25519"
    task = scene.task()
    (left,) = scene.root.run(task, sh(f"ln -s {key} token; echo left it"))
    token = Path(left["workspace"]) / "token"
    assert token.readlink() == key
    if through == "a link of the user":
        (scene.place / "mine").symlink_to(token)
        token = scene.place / "mine"
    refusal = scene.root.refusal("subagent.spawn", task=task, tasks=[reader(token)])
    assert refusal.code == "no_secret"
    assert "where children write" in refusal.message
    assert scene.secrets["file"] not in str(refusal)


def test_a_file_in_another_root_is_refused(scene: Scene) -> None:
    other = scene.place / "elsewhere" / ".retinue"
    other.mkdir(parents=True)
    (other / "retinue.db").touch()
    (other / "token").symlink_to(scene.home / ".ssh" / "id_ed25519")
    wanted = reader(other / "token")
    refusal = scene.root.refusal("subagent.spawn", task=scene.task(), tasks=[wanted])
    assert refusal.code == "no_secret"


def test_links_of_the_user_are_followed(scene: Scene) -> None:
    # As Kubernetes mounts a secret: the file is a link through a folder that is a link.
    folder = scene.place / "mounted"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "token").write_text("four\n")
    (folder / "..data").symlink_to("data")
    (folder / "token").symlink_to("..data/token")
    (result,) = scene.root.run(scene.task(), reader(folder / "token"))
    assert result["answer"].strip() == "4", result
