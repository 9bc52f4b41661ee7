"""Installed packages that Retinue brings along, with all its extras but `dev`.

Run as a program, it prints them as a list of components (CycloneDX), which `./dev sbom` keeps.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCK = Path(__file__).parents[2] / "requirements.lock"
EXTRAS = ("hub", "local", "mcp", "nodes", "otel", "web")
PIN = re.compile(r"^([\w.-]+)==(\S+)(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)


def list_runtime_packages() -> list[Distribution]:
    """Return each package that an installation with all extras needs, in order of names."""
    found: dict[str, Distribution] = {}
    waiting = [("retinue", ("", *EXTRAS))]
    seen: set[tuple[str, tuple[str, ...]]] = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        package = distribution(name)
        if name != "retinue":
            found[name] = package
        waiting += [
            (canonicalize_name(needed.name), ("", *sorted(needed.extras)))
            for needed in list_needs(package, extras)
        ]
    return [found[name] for name in sorted(found)]


def list_needs(package: Distribution, extras: tuple[str, ...]) -> list[Requirement]:
    """Return what a package with these extras requires on this machine."""
    requirements = [Requirement(text) for text in package.requires or []]
    return [
        each
        for each in requirements
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras)
    ]


def read_licence(package: Distribution) -> str:
    """Return the licence expression of a package, or what it says in place of one."""
    told = package.metadata.get("License-Expression") or package.metadata.get("License") or ""
    if told and len(told) < 80:
        return told
    classifiers = package.metadata.get_all("Classifier") or []
    return " OR ".join(
        each.rpartition(" :: ")[2] for each in classifiers if each.startswith("License ::")
    )


def read_lock() -> dict[str, tuple[str, str]]:
    """Return the version and the text with hashes of each locked package."""
    pins = PIN.finditer(LOCK.read_text())
    return {canonicalize_name(pin[1]): (pin[2], pin[0]) for pin in pins}


def build_sbom() -> dict[str, object]:
    """Return the list of components; it is the same for the same lock, and names no server."""
    root = distribution("retinue")
    packages = list_runtime_packages()
    names = {canonicalize_name(each.name) for each in packages}
    depends = [{"ref": "retinue", "dependsOn": sorted(names & _list_names(root, ("", *EXTRAS)))}]
    depends += [
        {
            "ref": canonicalize_name(each.name),
            "dependsOn": sorted(names & _list_names(each, ("",))),
        }
        for each in packages
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": _to_component(root)},
        "components": [_to_component(each) for each in packages],
        "dependencies": depends,
    }


def _list_names(package: Distribution, extras: tuple[str, ...]) -> set[str]:
    return {canonicalize_name(each.name) for each in list_needs(package, extras)}


def _to_component(package: Distribution) -> dict[str, object]:
    name = canonicalize_name(package.name)
    return {
        "type": "library",
        "bom-ref": name,
        "name": package.name,
        "version": package.version,
        "purl": f"pkg:pypi/{name}@{package.version}",
        "licenses": [{"license": {"name": read_licence(package)}}],
    }


if __name__ == "__main__":
    json.dump(build_sbom(), sys.stdout, indent=1)
    print()
