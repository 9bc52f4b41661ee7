"""Overview of what can be used in a folder: root, coding agents, keys, local servers, local model.

`retinue` alone and `retinue run` without a prompt show it. No program is started and no file is
written: programs are looked up, variables are read by name, servers on loopback are asked once.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from retinue.cli import render
from retinue.cli.steward_session import CliSession
from retinue.core.errors import BadInput, RetinueError

# A server on loopback answers or refuses at once; a program that does neither is not a server.
SERVER_SECONDS = 0.3
MOST_BYTES = 1024 * 1024
MOST_SERVER_MODELS = 5
# Coding agents that `retinue mcp install` can give the delegation tools to
INSTALLABLE = ("claude", "codex", "gemini", "opencode")


def show_overview(session: CliSession) -> None:
    """Print what is possible here and the next commands."""
    session.answer(describe_surroundings(session), _format_overview)


def describe_surroundings(session: CliSession) -> dict[str, Any]:
    """Return what was found, and the commands that fit it."""
    from retinue.version import VERSION

    found: dict[str, Any] = {
        "version": VERSION,
        "root": _describe_root(session),
        "agents": _find_agents(),
        "keys": _find_keys(),
        "servers": find_servers(),
        "embedded_model": _describe_embedded(),
    }
    return found | {"next": [{"command": it, "does": why} for it, why in _choose_next(found)]}


def _describe_root(session: CliSession) -> dict[str, Any]:
    from retinue.settings import was_used

    try:
        folder = session.find_folder()
        made = folder.is_dir() and was_used(folder)
        tasks = len(os.listdir(folder / "tasks")) if made and (folder / "tasks").is_dir() else 0
    except (RetinueError, OSError) as error:
        return {"path": session.root or "", "exists": False, "tasks": 0, "problem": str(error)}
    about: dict[str, Any] = {"path": str(folder), "exists": made, "tasks": tasks}
    if (wide := find_wide_folder(folder)) and made:
        about["problem"] = f"it is in {wide}, so every folder below without its own root uses it"
    return about


def find_wide_folder(root: Path) -> str:
    """Return a name for the folder of a root that would serve unrelated projects; else empty.

    The nearest root upwards is used, so a root in a home folder serves every project of a user.
    """
    place = os.path.realpath(root.parent)
    if place == os.path.realpath(os.path.expanduser("~")):
        return "your home folder"
    return "the top folder of this machine" if place == "/" else ""


def _find_agents() -> list[dict[str, str]]:
    import shutil

    from retinue.agents.profiles import PROFILES

    places = ((each, shutil.which(each.program)) for each in PROFILES)
    return [
        {"agent": each.short_name, "title": each.title, "program": place}
        for each, place in places
        if place is not None
    ]


def _find_keys() -> list[str]:
    """Return the names of the variables of known providers that are set; never their values."""
    from retinue.gateway.providers import BUILT_IN

    names = dict.fromkeys(name for each in BUILT_IN.values() for name in each.key_variables)
    return [name for name in names if os.environ.get(name, "").strip()]


def find_servers() -> list[dict[str, Any]]:
    """Return the model servers that answer on this machine, with the models that can answer."""
    from urllib.parse import urlsplit

    from retinue.gateway.providers import BUILT_IN, EMBEDDING

    found = []
    for provider in BUILT_IN.values():
        address = urlsplit(provider.base_url)
        if address.hostname != "127.0.0.1" or not address.port:
            continue
        names = ask_server(address.port, address.path + provider.vendor.models_path)
        if names is not None:
            models = [name for name in names if EMBEDDING not in name.lower()]
            found.append({"server": provider.name, "url": provider.base_url, "models": models})
    return found


def ask_server(port: int, path: str) -> list[str] | None:
    """Return the models that a server on loopback lists; None if none listens or it is another."""
    import http.client
    import json

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SERVER_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        document = json.loads(answer.read(MOST_BYTES)) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError, RecursionError):
        return None
    finally:
        connection.close()
    rows = document.get("data") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        return None
    names = [row.get("id") for row in rows if isinstance(row, dict)]
    return [name for name in names if isinstance(name, str)]


def _describe_embedded() -> dict[str, Any]:
    from retinue.gateway.local_model.weights import SMOLLM2, find_models_folder, missing

    try:
        problem = missing(find_models_folder(os.environ))
    except BadInput as error:
        problem = error.message
    return {"model": SMOLLM2.name, "installed": problem is None}


def _choose_next(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the commands that work with what was found, the most useful first."""
    from retinue.core.default_models import KEY_VARIABLES

    ways = []
    prompt = '"Write a note about rivers and one about mountains"'
    # The steward decides who works on it: an agent or a model with a key, else a server.
    keyed = any(name in KEY_VARIABLES for name in found["keys"])
    if keyed or any(each["models"] for each in found["servers"]):
        ways.append((f"retinue run {prompt}", "a team works on it and may delegate"))
    agents = [each["agent"] for each in found["agents"] if each["agent"] in INSTALLABLE]
    if agents:
        ways.append((f"retinue mcp install {agents[0]}", f"{agents[0]} can delegate to subagents"))
    if found["servers"]:
        ways.append(("retinue docs how-to/models", "how to use the server on this machine"))
    if found["embedded_model"]["installed"]:
        ways.append((f"retinue run --config @demo {prompt}", "a demonstration without a key"))
    elif not ways:
        ways.append(("retinue model install", "a small model that needs no key, 98 MB"))
    if found["root"]["tasks"]:
        ways.append(("retinue task list", "the tasks of this root"))
    else:
        ways.append(("retinue demo", "three commands as subagents, in a few seconds"))
    ways.append(("retinue --help", "all commands"))
    return ways


def _format_overview(found: dict[str, Any]) -> str:
    root = found["root"]
    place = f"none yet; the first task or run makes {root['path']}"
    if root["exists"]:
        place = f"{root['path']} with {root['tasks']} task{'' if root['tasks'] == 1 else 's'}"
    embedded = found["embedded_model"]
    servers = [_format_server(each) for each in found["servers"]]
    rows = [
        ("root", place),
        ("warning", root.get("problem")),
        ("coding agents", ", ".join(each["agent"] for each in found["agents"]) or "none on PATH"),
        ("keys", ", ".join(found["keys"]) or "none in the environment"),
        ("local servers", "; ".join(servers) or "none"),
        ("embedded model", embedded["model"] if embedded["installed"] else "not installed"),
    ]
    ways = [f"  {each['command']}\n      {each['does']}" for each in found["next"]]
    heading = f"retinue {found['version']}: delegate work to subagents"
    return "\n".join([heading, "", render.format_facts(rows), "", "next:", *ways])


def _format_server(server: dict[str, Any]) -> str:
    names = server["models"]
    left = len(names) - MOST_SERVER_MODELS
    more = f" and {left} more" if left > 0 else ""
    return f"{server['server']} ({', '.join(names[:MOST_SERVER_MODELS]) or 'no models'}{more})"
