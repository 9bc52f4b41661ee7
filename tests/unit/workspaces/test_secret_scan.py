"""Secret scan: kinds and speed."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable

import pytest

from retinue.workspaces.secret_values import KINDS, find_first_secret

TOKENS = {
    "private key": b"-----BEGIN OPENSSH PRIVATE KEY-----",
    "AWS key": b"ASIA" + b"A" * 16,
    "GitHub token": b"ghs_" + b"a" * 36,
    "GitLab token": b"glpat-" + b"a" * 20,
    "Slack token": b"xoxb-" + b"1" * 20,
    "Google key": b"AIza" + b"a" * 35,
    "Anthropic key": b"sk-ant-" + b"a" * 24,
    "OpenAI key": b"sk-" + b"a" * 40,
    "Stripe key": b"rk_live_" + b"a" * 20,
    "npm token": b"npm_" + b"a" * 36,
    "PyPI token": b"pypi-AgEI" + b"a" * 50,
    "Hugging Face token": b"hf_" + b"a" * 34,
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_named_with_its_line(kind: str) -> None:
    token = TOKENS[kind]
    assert find_first_secret(b"one\nkey = '%b'\n" % token) == f"{kind} on line 2"
    assert find_first_secret(b"one\n%b" % token, b"two %b\n" % token) == ""
    assert find_first_secret(b"x%b" % token.removeprefix(b"-")) == ""
    assert find_first_secret(token[:-1]) == ""


def test_the_first_of_several_is_named() -> None:
    data = b"\n".join([b"hf_", *reversed(TOKENS.values())])
    assert find_first_secret(data) == "Hugging Face token on line 2"


@pytest.mark.parametrize("data", [random.Random(1).randbytes(4_000_000), b"sk-" * 1_000_000])
def test_the_largest_files_are_scanned_quickly(data: bytes) -> None:
    """A thread would not help: the scan holds the interpreter lock."""

    def taken(act: Callable[[bytes], object]) -> float:
        began = time.perf_counter()
        act(data)
        return time.perf_counter() - began

    ours = min(taken(find_first_secret) for _ in range(3))
    assert ours < 100 * min(taken(lambda data: hashlib.sha1(data).digest()) for _ in range(3))
