"""Dependencies are locked with hashes and listed for users; their licences are acceptable."""

from __future__ import annotations

import json
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from architecture.source import TOP
from support.dependencies import build_sbom, list_runtime_packages, read_licence, read_lock

ALLOWED = {
    "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT-0", "MPL-2.0", "PSF-2.0",
}  # fmt: skip
# What packages without a licence expression write instead.
SPELLINGS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2 License": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}


def test_every_runtime_dependency_has_an_allowed_licence() -> None:
    packages = list_runtime_packages()
    assert len(packages) > 30
    refused = {each.name: read_licence(each) for each in packages}
    assert not {name: text for name, text in refused.items() if not is_allowed(text)}


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("MIT", True),
        ("Apache 2.0", True),
        ("Apache-2.0 AND MIT", True),
        ("GPL-3.0-only OR BSD-3-Clause", True),
        ("MIT AND GPL-3.0-only", False),
        ("", False),
    ],
)
def test_a_licence_is_allowed_if_one_alternative_is_allowed_whole(text: str, allowed: bool) -> None:
    assert is_allowed(text) == allowed


def test_everything_that_is_installed_for_development_is_locked_with_hashes() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    needed = [Requirement(text) for group in groups for text in group]
    locked = read_lock()
    assert all("--hash=sha256:" in text for _, text in locked.values())
    wrong = [
        str(each)
        for each in needed
        if each.name != "retinue"
        and (
            (name := canonicalize_name(each.name)) not in locked
            or locked[name][0] not in each.specifier
        )
    ]
    assert not wrong, "run './dev lock'"


def test_every_runtime_dependency_is_the_locked_one() -> None:
    locked = read_lock()
    found = {canonicalize_name(each.name): each.version for each in list_runtime_packages()}
    assert found == {name: locked[name][0] for name in found}, "run './dev setup'"


def test_the_list_of_components_names_every_package_and_no_server() -> None:
    listed = build_sbom()
    names = [each["bom-ref"] for each in listed["components"]]  # type: ignore[attr-defined]
    assert names == [canonicalize_name(each.name) for each in list_runtime_packages()]
    refs = {each["ref"] for each in listed["dependencies"]}  # type: ignore[attr-defined]
    assert refs == {"retinue", *names}
    assert not re.search(r"https?:|file:", json.dumps(listed))


def is_allowed(text: str) -> bool:
    return any(
        all(SPELLINGS.get(part.strip(), part.strip()) in ALLOWED for part in choice.split(" AND "))
        for choice in text.split(" OR ")
    )
