"""Where no rack can be had, one line says why."""

from __future__ import annotations

import errno
import os
import pwd
import re
import subprocess
import sys
import time

import pytest

from pytest_mnode.cluster.rack import Rack, mounts, namespaces, probe
from pytest_mnode.errors import ClusterError


def deny(number: int, step: str) -> OSError:
    return OSError(number, os.strerror(number), step)


@pytest.mark.parametrize(
    ("mode", "number", "message"),
    [
        ("root", errno.EPERM, r"unshare as root: Operation not permitted \(a container without"),
        ("rootless", errno.ENOSPC, "unshare in a user namespace: No space left on device"),
        ("root", errno.EINVAL, "unshare as root: Invalid argument$"),
    ],
)
def test_reason_when_namespaces_are_denied(
    monkeypatch: pytest.MonkeyPatch, mode: str, number: int, message: str
) -> None:
    def denied(flags: int) -> None:
        raise deny(number, "unshare")

    monkeypatch.setattr(namespaces, "unshare", denied)
    reason = Rack.unavailable(mode)
    assert reason is not None
    assert re.match(message, reason)
    assert "\n" not in reason


def test_reason_names_the_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]
) -> None:
    setting = os.path.join(tmp_path, "max")  # noqa: PTH118
    with open(setting, "w") as file:  # noqa: PTH123
        file.write("0\n")
    monkeypatch.setattr(probe, "_HINTS", ((setting, "0", "user.max_user_namespaces=0"),))
    error = deny(errno.ENOSPC, "unshare(user)")
    assert probe.reason(error, rootless=True) == (
        "unshare(user) in a user namespace: No space left on device (user.max_user_namespaces=0)"
    )
    assert "max_user" not in probe.reason(error, rootless=False)


@pytest.mark.usefixtures("_rack_possible")
def test_reason_when_mounts_are_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied() -> None:
        raise deny(errno.EPERM, "mount sysfs on /sys")

    monkeypatch.setattr(mounts, "mount_sys", denied)
    reason = Rack.unavailable()
    assert reason is not None
    assert reason.startswith("mount sysfs on /sys ")


def test_a_probe_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "LIMIT_S", 0.1)
    monkeypatch.setattr(namespaces, "unshare", lambda flags: time.sleep(60))
    assert Rack.unavailable() == "trying namespaces took more than 0.1 s"


def test_a_probe_that_crashes_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "unshare", lambda flags: os._exit(3))
    assert Rack.unavailable("root") == "trying namespaces crashed"


def test_probing_changes_nothing_here(mode: str) -> None:
    before = [os.readlink(f"/proc/self/ns/{kind}") for kind in namespaces.KINDS]
    assert Rack.unavailable(mode) is None
    assert [os.readlink(f"/proc/self/ns/{kind}") for kind in namespaces.KINDS] == before


@pytest.mark.usefixtures("_rack_possible")
def test_a_start_that_fails_names_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    rack = Rack(1)
    monkeypatch.setattr(sys, "path", [])  # the keeper cannot import anything of ours
    with pytest.raises(ClusterError, match="rack: start: the keeper is gone: .*pytest_mnode"):
        rack.start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become an ordinary user")
@pytest.mark.usefixtures("_rack_possible")
def test_an_ordinary_user_gets_a_rack() -> None:
    script = (
        "import os, subprocess\n"
        "from pytest_mnode.cluster.rack import Rack\n"
        "assert os.geteuid() != 0\n"
        "print(Rack.unavailable())\n"
        "with Rack(2) as rack:\n"
        "    for command in rack.commands(rack.nodes, ['sh', '-c', 'uname -n; id -u']):\n"
        "        subprocess.run(command, check=True)\n"
        "    rack.power_off(rack.nodes[1])\n"
        "    rack.power_on(rack.nodes[1])\n"
        "    rack.set_rate(rack.nodes[1], 'fab0', 50)\n"
        "    print(rack.switch(['cat', '/sys/class/net/fab0-node1/operstate']), end='')\n"
    )
    nobody = pwd.getpwnam("nobody")
    done = subprocess.run(
        [sys.executable, "-u", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        user=nobody.pw_uid,
        group=nobody.pw_gid,
        extra_groups=[],
        cwd="/",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    if "No module named" in done.stderr or "Permission denied" in done.stderr:
        pytest.skip("an ordinary user cannot read this checkout")
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["None", "node0", "0", "node1", "0", "up"]
