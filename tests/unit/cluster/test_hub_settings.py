"""What `retinue hub start` refuses leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nats")
from cryptography import x509

from retinue.cluster.hub_server import CERTIFICATE, CONFIG, PROCESS, SETTINGS, Hub
from retinue.core.errors import BadInput, Refused


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"cluster": "0.0.0.0:6222"}, "invalid_cluster"),
        ({"cluster": "0.0.0.0:6222", "routes": ["a:6222", "b:6222"]}, "invalid_cluster"),
        ({"listen": "0.0.0.0:²"}, "invalid_listen"),
        ({"listen": "0.0.0.0:" + "9" * 5000}, "invalid_listen"),
    ],
)
def test_a_refused_setting_leaves_neither_keys_nor_a_folder(
    tmp_path: Path, given: dict[str, Any], code: str
) -> None:
    with pytest.raises(BadInput) as refused:
        Hub(tmp_path / "hub").prepare(**given)

    assert refused.value.code == code
    assert not (tmp_path / "hub").exists()


def test_the_settings_of_a_running_hub_are_not_changed(tmp_path: Path) -> None:
    hub = Hub(tmp_path / "hub")
    hub.prepare(listen="127.0.0.1:4222")
    before = (hub.folder / SETTINGS).read_bytes(), (hub.folder / CONFIG).read_bytes()
    # A server is known by the configuration in its command line.
    words = [sys.executable, "-uc", "print(); input()", str(hub.folder / CONFIG)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe) as server:
        try:
            assert server.stdout is not None
            server.stdout.readline()  # its command line is there now
            (hub.folder / PROCESS).write_text(f"{server.pid}\n")
            with pytest.raises(Refused) as refused:
                hub.prepare(listen="127.0.0.1:5000", lease_s=60)
        finally:
            server.kill()
    assert refused.value.code == "hub_running"
    assert ((hub.folder / SETTINGS).read_bytes(), (hub.folder / CONFIG).read_bytes()) == before


def test_members_that_are_made_at_once_are_all_known(tmp_path: Path) -> None:
    hub = Hub(tmp_path / "hub")
    hub.prepare()
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: hub.make_steward().address.identity, range(40)))
    assert set(made) == set(hub.read_settings().members)


def test_files_have_a_limit_of_their_own_below_that_of_the_server(tmp_path: Path) -> None:
    hub = Hub(tmp_path / "hub")
    hub.prepare(disk_mb=40)
    assert "max_file_store: 1064MB" in (hub.folder / CONFIG).read_text()


def test_a_small_disk_has_a_smaller_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(tmp_path)
    small = os.statvfs_result((4096, 4096, 2**20, 2**18, 2**18, *real[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: small)
    assert Hub(tmp_path / "hub").prepare().disk_mb == 768


def test_its_certificate_is_valid_where_a_clock_is_years_behind(tmp_path: Path) -> None:
    hub = Hub(tmp_path / "hub")
    hub.prepare()
    made = x509.load_pem_x509_certificate((hub.folder / CERTIFICATE).read_bytes())
    assert made.not_valid_before_utc.year < 2010
