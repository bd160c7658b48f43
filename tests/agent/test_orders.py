"""How an agent applies its order, and what it leaves if it is killed with its machine."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from pytest_mnode.agent.orders import (
    private_directory,
    read_order,
    remove_leftovers,
    settled,
    sys_path_here,
)
from pytest_mnode.protocol.messages import AgentOrder, NodeEntry

ORDER = AgentOrder(
    agent=1,
    path="/run/x/hub",
    token="secret",
    run_dir="/run/x",
    log_dir="/run/x/logs",
    nodes=(NodeEntry("n1", "10.0.0.1", None),),
    sys_path=("/work", "/usr/lib/python3.11"),
    incarnation=2,
)


ELSEWHERE = replace(ORDER, path="", token="", run_dir="", remote=True)
"""For an agent on another machine."""


def test_an_order_survives_its_transfer() -> None:
    order = replace(ELSEWHERE, prefixes=("/usr",), own_sys_path=("/opt/lib",))
    assert read_order(json.dumps(asdict(order))) == order
    assert order.peer == "agent/1.2"


def test_on_this_machine_the_order_is_applied_unchanged() -> None:
    assert settled(ORDER) is ORDER
    assert sys_path_here(["/work", "/usr/lib/x"], ORDER) == ["/work", "/usr/lib/x"]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of temporary files of this machine."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_on_another_machine_an_agent_makes_its_own_directory(temporary: Path) -> None:
    order = settled(replace(ELSEWHERE, log_dir=""))
    assert Path(order.run_dir).parent == temporary
    assert order.path == f"{order.run_dir}/ranks"
    assert order.token
    assert order.log_dir == f"{order.run_dir}/logs"
    assert order.logs_are_temporary
    assert order.own_sys_path == tuple(sys.path)
    shutil.rmtree(order.run_dir)
    kept = settled(replace(ELSEWHERE, log_dir=f"{temporary}/kept"))
    assert kept.log_dir == f"{temporary}/kept"
    assert not kept.logs_are_temporary


def test_another_python_keeps_its_own_packages() -> None:
    order = replace(
        ORDER,
        prefixes=("/home/me/venv", "/usr"),
        own_sys_path=("/opt/python/lib", "/opt/venv/site-packages", "/work"),
    )
    kept = ["/work", "/usrlocal", "/home/me"]
    given = ["/usr/lib/python3.11", "/home/me/venv/lib/site-packages", *kept]
    there = ["/opt/python/lib", "/opt/venv/site-packages"]
    assert sys_path_here(given, order) == [*kept, *there]


AGENT = """
import os, sys
from pytest_mnode.agent.orders import private_directory
if os.fork() == 0:  # as a fork server, whose children outlive it for a moment
    sys.stdin.read()
    os._exit(0)
print(private_directory(), flush=True)
sys.stdin.read()
"""


def test_a_directory_is_removed_once_its_agent_has_ended(temporary: Path) -> None:
    others = [temporary / name for name in ("mnode-of-a-controller", "mnode-elsewhere", "else")]
    for other in others:
        other.mkdir()
        (other / "file").touch()
    for other in others[1:]:
        (other / "agent").write_text("another-machine")
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert agent.stdout is not None
    theirs = Path(agent.stdout.readline().strip())
    assert theirs.parent == temporary
    ours = Path(private_directory())
    assert theirs.is_dir(), "the agent of the directory lives"
    (theirs / "logs" / "w1").mkdir(parents=True)
    agent.kill()
    agent.wait()
    remove_leftovers()
    assert not theirs.exists()
    assert {ours, *others} == set(temporary.iterdir())
    agent.communicate()


def test_directories_of_other_users_are_left(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = temporary / "precious"
    precious.write_text(os.uname().nodename)
    (temporary / "mnode-trap").mkdir()
    (temporary / "mnode-trap" / "agent").symlink_to(precious)
    (temporary / "mnode-ours").mkdir()
    (temporary / "mnode-ours" / "agent").write_text(os.uname().nodename)
    holders = [temporary / f"mnode-{name}" / "agent" for name in ("trap", "ours")]
    monkeypatch.setattr(Path, "glob", lambda *_: holders)
    remove_leftovers()
    assert precious.exists()
    assert [holder.parent.is_dir() for holder in holders] == [True, False]


def test_a_new_agent_removes_what_a_killed_one_left(temporary: Path) -> None:
    left = temporary / "mnode-left"
    left.mkdir()
    (left / "agent").write_text(os.uname().nodename)
    made = Path(private_directory())
    assert list(temporary.iterdir()) == [made]


def test_without_locks_there_is_no_file_of_a_lock(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=refused))
    assert list(Path(private_directory()).iterdir()) == []
