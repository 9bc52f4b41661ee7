"""The real local model in a folder of the test's own: its process is nobody else's, and ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from retinue.gateway.local_model.weights import SMOLLM2, find_models_folder, missing
from support.roots import Root, until

CONFIG = """
agents:
  - id: small
    backend: {type: local}
orchestrator:
  coordination:
    subagent_default_timeout: 60
    subagent_min_timeout: 0.1
    subagent_max_concurrent: 20
    subagent_cancel_grace_seconds: [0.4, 0.3]
"""

# Asks with the standard library alone, as a child of the gateway.
ASK = """
import json, os, sys, urllib.error, urllib.request

def chat(words, model="smollm2-135m-instruct", **more):
    body = {"model": model, "messages": [{"role": "user", "content": words}], **more}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json",
                 "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    try:
        return urllib.request.urlopen(request, timeout=120)
    except urllib.error.HTTPError as error:
        return error

def said(words, **more):
    return json.load(chat(words, **more))
"""


@contextmanager
def own_models(folder: Path, *, idle_seconds: float, installed: bool = True) -> Iterator[Path]:
    """What is started in here finds its models in this folder; nothing of it is left."""
    shared = find_models_folder(os.environ)
    assert not installed or missing(shared) is None, f"{missing(shared)} (./dev setup does)"
    folder.mkdir()
    if installed:
        (folder / SMOLLM2.file).symlink_to(shared / SMOLLM2.file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETINUE_MODELS", str(folder))
        patch.setenv("RETINUE_LOCAL_IDLE_SECONDS", str(idle_seconds))
        try:
            yield folder
        finally:
            for pid in servers(folder):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            until(lambda: not servers(folder))


def servers(folder: Path) -> list[int]:
    """The processes that hold the model of this folder."""
    wanted = [b"retinue.gateway.local_model.model_server", str(folder).encode()]
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if wanted == words[3:5]:
                found.append(int(entry.name))
    return found


def local_task(root: Root) -> str:
    return str(root.call("task.create", title="t", config_text=CONFIG)["task_id"])
