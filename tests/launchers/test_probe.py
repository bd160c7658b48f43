"""If no rack is possible, one line gives the reason."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from pytest_mnode import processes
from pytest_mnode.errors import ClusterError
from pytest_mnode.faults.tools import on_switch
from pytest_mnode.launchers.rack import Rack, mounts, probe
from pytest_mnode.machine import namespaces
from tests.programs import write_program
from tests.waiting import until

HANGS_S = 60.0


def deny(number: int, step: str) -> OSError:
    return OSError(number, os.strerror(number), step)


def python(text: str) -> list[str]:
    """A program that imports what this process can import, wherever it runs."""
    return [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path}\n{text}"]


@pytest.mark.parametrize(
    ("mode", "number", "message"),
    [
        ("root", errno.EPERM, r"unshare as root: Operation not permitted \(containers often"),
        ("rootless", errno.ENOSPC, "unshare in a user namespace: No space left on device"),
        ("root", errno.EINVAL, "unshare as root: Invalid argument$"),
    ],
)
def test_reason_when_namespaces_are_denied(
    monkeypatch: pytest.MonkeyPatch, mode: str, number: int, message: str
) -> None:
    monkeypatch.setattr(namespaces, "unshare", Mock(side_effect=deny(number, "unshare")))
    reason = str(Rack.unavailable(mode))
    assert re.match(message, reason)
    assert "\n" not in reason


def test_reason_names_the_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    setting = tmp_path / "max"
    setting.write_text("0\n")
    monkeypatch.setattr(probe, "_HINTS", ((str(setting), "0", "user.max_user_namespaces=0"),))
    error = deny(errno.ENOSPC, "unshare(user)")
    assert probe.reason(error, rootless=True).endswith("(user.max_user_namespaces=0)")
    assert "max_user" not in probe.reason(error, rootless=False)


@pytest.mark.usefixtures("_rack_possible")
def test_reason_when_mounts_are_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    denied = deny(errno.EPERM, "mount sysfs on /sys")
    monkeypatch.setattr(mounts, "mount_sys", Mock(side_effect=denied))
    assert str(Rack.unavailable()).startswith("mount sysfs on /sys ")


def test_a_probe_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "LIMIT_S", 0.1)
    monkeypatch.setattr(namespaces, "unshare", lambda _: time.sleep(60))
    assert Rack.unavailable() == "trying namespaces took more than 0.1 s"


def test_a_probe_that_crashes_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "unshare", lambda _: os._exit(3))
    assert Rack.unavailable("root") == "trying namespaces crashed"


def test_probing_does_not_change_this_process(mode: str) -> None:
    links = [Path("/proc/self/ns", kind) for kind in namespaces.KINDS]
    before = [link.readlink() for link in links]
    assert Rack.unavailable(mode) is None
    assert [link.readlink() for link in links] == before


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo no such thing >&2; exit 1", "no such thing"),
        ("kill -KILL $$", "cleanup process killed by SIGKILL"),
    ],
)
def test_a_failed_start_reports_the_last_output(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, why: str
) -> None:
    write_program(tmp_path / "python", f"#!/bin/sh\n{script}\n")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    rack = Rack(1)
    with pytest.raises(ClusterError, match=f"rack: start: the rack has ended: {why}$"):
        rack.start()
    with pytest.raises(ClusterError, match="node0 is unavailable: the rack is closed"):
        rack.commands(rack.nodes, ["true"])


NESTED = """
from pytest_mnode.faults.tools import on_switch
from pytest_mnode.launchers.rack import Rack
from pytest_mnode.errors import ClusterError
try:
    with Rack(1, mode="root") as rack:
        print(on_switch(rack, ["echo", "nested"]), end="")
except ClusterError as error:
    print(error)
"""


@pytest.mark.usefixtures("_rack_possible")
def test_a_start_that_is_refused_names_the_step() -> None:
    """A rack within a rack, whose limits can be lowered safely."""
    nested = python(NESTED)
    with Rack(1, mode="rootless") as rack:
        assert on_switch(rack, nested, limit_s=HANGS_S) == "nested\n"
        on_switch(rack, ["sh", "-c", "echo 0 > /proc/sys/user/max_uts_namespaces"])
        refused = on_switch(rack, nested, limit_s=HANGS_S)
        assert "node0 did not boot: failed at namespaces: [Errno 28]" in refused


# Python may be in a directory that only root can enter: a mount namespace makes it accessible.
BECOME_ORDINARY = """
import os, sys
from pathlib import Path
from pytest_mnode.machine import namespaces as ns
ns.unshare(ns.NEWNS)
ns.mount("none", "/", flags=ns.MS_REC | ns.MS_PRIVATE)
for place in sorted({sys.base_prefix, sys.prefix, *sys.argv[2:]}, key=len):
    way = [Path(place), *Path(place).parents]
    if shut := [step for step in way if step.stat().st_mode & 5 != 5]:
        fd = os.open(place, os.O_PATH)
        ns.mount("open", str(shut[-1]), "tmpfs", 0, "mode=755")
        Path(place).mkdir(parents=True)
        ns.mount(f"/proc/self/fd/{fd}", place, flags=ns.MS_BIND | ns.MS_REC)
        os.close(fd)
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
os.chdir("/")
os.execv(sys.executable, [sys.executable, "-u", "-c", sys.argv[1]])
"""
ORDINARY = """
import os, subprocess
from pytest_mnode.faults.tools import on_switch
from pytest_mnode.launchers.rack import Rack
from pytest_mnode.protocol.launcher_requests import PowerOff, PowerOn, SetLinkRate
assert os.geteuid() == 65534
print(Rack.unavailable())
with Rack(2) as rack:
    for command in rack.commands(rack.nodes, ["sh", "-c", "uname -n; id -u"]):
        subprocess.run(command, check=True)
    rack.ask(PowerOff("node1"))
    rack.ask(PowerOn("node1"))
    rack.ask(SetLinkRate("node1", "fab0", 50))
    print(on_switch(rack, ["cat", "/sys/class/net/fab0-node1/operstate"]), end="")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.usefixtures("_rack_possible")
def test_an_ordinary_user_gets_a_rack() -> None:
    path = [entry for entry in sys.path if Path(entry).is_dir()]
    done = subprocess.run(
        [sys.executable, "-c", BECOME_ORDINARY, ORDINARY, *path],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["None", "node0", "0", "node1", "0", "up"]


UNMOUNT = """
import os
from pathlib import Path
from pytest_mnode.machine import namespaces
namespaces.leave_host(os.geteuid() != 0)
def mounted(): return " - tmpfs mnode-x " in Path("/proc/self/mountinfo").read_text()
namespaces.mount("mnode-x", "/mnt", "tmpfs", 0, "size=4k")
before = mounted()
namespaces.unmount("/mnt")
print(before, mounted())
"""


def test_a_mount_can_be_undone() -> None:
    """Without that there is no rack, and tests of racks would be skipped."""
    allowed = ["unshare", "--user", "--map-root-user", "--mount", "--net", "--ipc", "--pid", "true"]
    if subprocess.run(allowed, check=False, capture_output=True).returncode:
        pytest.skip("namespaces are not allowed here")
    done = subprocess.run(python(UNMOUNT), capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "True False\n", done.stderr


TIED = """
import os, time
from pytest_mnode.machine import namespaces
if os.fork() == 0:
    namespaces.die_with_parent()
    print(os.getpid(), flush=True)
time.sleep(60)
"""


def test_a_process_can_be_tied_to_its_parent() -> None:
    with subprocess.Popen(python(TIED), stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
        until(lambda: processes.has_ended(child))
