"""Isolation where the steward may do less than root, and what is said where there is none."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator

import pytest

from retinue.core.errors import IsolationUnavailable
from support.roots import sh
from support.scenes import USERS, Attack, Scene, needs_mounts, needs_python, staged

pytestmark = needs_python
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can lose what root can do")

DOCKER = (
    "chown,dac_override,fowner,fsetid,kill,setgid,setuid,setpcap,net_bind_service,net_raw,"
    "sys_chroot,mknod,audit_write,setfcap"
)


def with_capabilities(kept: str) -> list[str]:
    chosen = ",".join(["-all", *(f"+{name}" for name in kept.split(",") if name)])
    return ["setpriv", f"--bounding-set={chosen}", f"--inh-caps={chosen}"]


LESSER = {
    "root without sys_admin": ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"],
    "docker's default": with_capabilities(DOCKER),
}
COVER = 'set -e; mount --bind /dev/null /proc/interrupts; exec "$@"'
COVERED = ["unshare", "--mount", "sh", "-c", COVER, "sh"]
# An ordinary user in a user namespace of its own, in which there can be no other.
NO_MORE = 'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --ambient-caps=-all "$@"'
SPENT = ["unshare", "--user", "--map-current-user", "--keep-caps", "sh", "-c", NO_MORE, "sh"]


@pytest.fixture(scope="module", params=LESSER)
def lesser(request: pytest.FixtureRequest) -> Iterator[Scene]:
    with staged("root") as scene:
        assert json.loads(scene.start(wrapper=LESSER[request.param]))["ready"]
        yield scene


@pytest.fixture(scope="module")
def attack(lesser: Scene) -> Attack:
    return lesser.attack(
        lesser.task(),
        *("looking", "prying", "reading", "leaving", "planting"),
        targets={
            "processes": {"steward": lesser.root.pid, "us": os.getpid()},
            "forbidden": {"key": str(lesser.home / ".ssh" / "id_ed25519")},
            "mounts": ["/usr", "/"],
        },
    )


@as_root
def test_a_child_is_isolated_by_a_user_namespace_and_is_another_user(
    lesser: Scene, attack: Attack
) -> None:
    status = attack.value("status")
    held = {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
    assert {int(value, 16) for value in held} == {0}
    assert "0" not in {*status["Uid"].split(), *status["Gid"].split(), *status["Groups"].split()}
    checks = {each["name"]: each for each in lesser.root.call("doctor")["checks"]}
    assert checks["isolation"]["ok"], checks
    assert "root without CAP_SYS_ADMIN cannot mount" in checks["workspaces"]["detail"]


@as_root
def test_nothing_gets_out_of_that_user_namespace(attack: Attack) -> None:
    assert not attack.worked("signal ", "hold ", "trace ", "read memory", "renice ", "limit ")
    assert not attack.worked("read ", "unshare", "clone", "enter", "mount", "bind", "remount")
    assert not attack.worked("unmount", "make ", "chmod ", "become root", "give away", "capability")
    assert attack.value("secrets") == []


@as_root
def test_a_child_there_reads_its_context_and_its_work_is_kept(lesser: Scene) -> None:
    lesser.write(lesser.project / "src" / "shown.py", "print('shown')\n", mode=0o644)
    script = f"cat {lesser.project}/src/shown.py; echo made > made; id -u"
    brief = sh(script, context_paths=["src"])
    (result,) = lesser.root.run(lesser.task(), brief, cwd=str(lesser.project))
    assert result["status"] == "completed", result
    shown, uid = result["answer"].splitlines()
    assert shown == "print('shown')"
    made = os.stat(os.path.join(result["workspace"], "made"))
    assert made.st_uid == int(uid) != 0
    lesser.root.sound()


@as_root
def test_a_context_that_its_child_cannot_read_there_is_named_in_the_result(lesser: Scene) -> None:
    shown = lesser.write(lesser.project / "src" / "open.txt", "shown\n", mode=0o644)
    private = lesser.write(lesser.project / "src" / "private.txt", "private\n", mode=0o600)
    reads = sh(f"cat {shown}; cat {private}; true", context_paths=[str(shown), str(private)])
    other = sh(f"cat {shown}", subagent_id="other", context_paths=[str(shown)])
    result, plain = lesser.root.run(lesser.task(), reads, other, cwd=str(lesser.project))
    assert result["answer"] == plain["answer"] == "shown"
    assert f"{private}: only its owner may read this" in result["warning"]
    assert str(shown) not in result["warning"] and "warning" not in plain


@as_root
def test_root_that_cannot_become_another_user_is_told_which_capabilities_it_lacks() -> None:
    with staged("root") as scene:
        assert json.loads(scene.start(wrapper=with_capabilities("setfcap")))["ready"]
        refused = refusal(scene)
        for name in ("CHOWN", "SETUID", "SETGID"):
            assert f"--cap-add {name}" in refused.message
        assert "SETFCAP" not in refused.message


@as_root
@needs_mounts
def test_a_covered_proc_is_named_with_the_flag_that_shows_it() -> None:
    with staged("root") as scene:
        wrapper = [*COVERED, *LESSER["docker's default"]]
        assert json.loads(scene.start(wrapper=wrapper))["ready"]
        refused = refusal(scene)
        assert "systempaths=unconfined" in refused.message
        assert "/proc/interrupts" in refused.message


@pytest.mark.parametrize("who", USERS)
def test_without_user_namespaces_the_setting_is_named(who: str) -> None:
    without = LESSER["docker's default"] if who == "root" else []
    with staged(who) as scene:
        assert json.loads(scene.start(wrapper=[*SPENT, *without]))["ready"]
        refused = refusal(scene)
        assert "sysctl -w user.max_user_namespaces=15000" in refused.message
        assert "No space left" not in refused.message
        words = ["--root", str(scene.root.path), "subagent", "spawn", scene.task(), "--", "true"]
        done = subprocess.run(
            [*scene.who.prefix, scene.who.python, "-P", "-m", "retinue", *words],
            cwd=scene.project,
            env={"PYTHONPATH": scene.who.path, "PATH": os.defpath, "HOME": str(scene.home)},
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.returncode == 7, done
        assert "user.max_user_namespaces is 0" in done.stderr


def refusal(scene: Scene) -> IsolationUnavailable:
    """What a spawn is refused with; it leaves nothing, and doctor says the same."""
    task = scene.task()
    before = scene.root.state()
    refused = scene.root.refusal("subagent.spawn", task=task, tasks=[sh("touch ran")])
    assert isinstance(refused, IsolationUnavailable), refused
    assert scene.root.state() == before
    report = scene.root.call("doctor")
    (check,) = [each for each in report["checks"] if each["name"] == "isolation"]
    assert not check["ok"]
    assert check["detail"] == report["isolation"]["reason"]
    assert check["detail"] in refused.message
    return refused
