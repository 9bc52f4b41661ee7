"""Each setting that refuses namespaces is named with the command that allows them."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from retinue.child.namespaces import explain_refused_mount, explain_refused_namespaces

MASKED = "30 20 0:5 / /proc rw - proc proc rw\n31 30 0:6 / /proc/kcore rw - tmpfs tmpfs rw\n"


def machine(proc: Path, **settings: str) -> str:
    """Make a /proc with these files; two underscores stand for a slash."""
    for name, text in settings.items():
        path = proc / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(proc)


@pytest.mark.parametrize(
    ("setting", "value", "code", "remedy"),
    [
        (
            "sys__user__max_user_namespaces",
            "0\n",
            errno.ENOSPC,
            "sysctl -w user.max_user_namespaces=15000",
        ),
        (
            "sys__user__max_net_namespaces",
            "0\n",
            errno.ENOSPC,
            "sysctl -w user.max_net_namespaces=15000",
        ),
        (
            "sys__kernel__unprivileged_userns_clone",
            "0\n",
            errno.EPERM,
            "sysctl -w kernel.unprivileged_userns_clone=1",
        ),
        (
            "sys__kernel__apparmor_restrict_unprivileged_userns",
            "1\n",
            errno.EACCES,
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        ("self__status", "Seccomp:\t2\n", errno.EPERM, "--security-opt seccomp=unconfined"),
    ],
)
def test_the_setting_that_refuses_namespaces_is_named_with_its_remedy(
    tmp_path: Path, setting: str, value: str, code: int, remedy: str
) -> None:
    said = explain_refused_namespaces(code, machine(tmp_path, **{setting: value}))
    assert errno.errorcode[code] in said
    assert remedy in said


def test_settings_that_allow_namespaces_are_not_blamed(tmp_path: Path) -> None:
    proc = machine(
        tmp_path,
        sys__user__max_user_namespaces="15000\n",
        sys__kernel__unprivileged_userns_clone="1\n",
        sys__kernel__apparmor_restrict_unprivileged_userns="0\n",
        self__status="Seccomp:\t0\n",
    )
    said = explain_refused_namespaces(errno.EPERM, proc)
    assert "sysctl" not in said
    assert "as many exist as" in explain_refused_namespaces(errno.ENOSPC, proc)


def test_a_covered_proc_and_a_profile_are_named_where_a_mount_is_refused(tmp_path: Path) -> None:
    proc = machine(
        tmp_path, self__mountinfo=MASKED, self__attr__apparmor__current="docker-default (enforce)\n"
    )
    said = explain_refused_mount(errno.EPERM, proc)
    assert "/proc/kcore" in said
    assert "systempaths=unconfined" in said
    assert "docker-default" in said
    assert "apparmor=unconfined" in said


def test_other_faults_of_a_mount_are_not_explained_by_the_container(tmp_path: Path) -> None:
    assert explain_refused_mount(errno.ENOENT, machine(tmp_path, self__mountinfo=MASKED)) == ""
