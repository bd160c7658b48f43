"""What launchers end, with values in place of what they end."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import socket
import subprocess
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from pytest_mnode import processes
from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.cleanup import rack as rack_task
from pytest_mnode.launchers.cleanup.client import CleanupDaemon
from pytest_mnode.launchers.cleanup.rack import RackTask
from pytest_mnode.launchers.hosts import parse_hosts
from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.rack import Rack, cgroups
from pytest_mnode.launchers.rack import launcher as rack_launcher
from pytest_mnode.launchers.rack.node_init import READY
from pytest_mnode.launchers.rack.protocol import Setup
from pytest_mnode.launchers.rack.rack_init import Booting, RackInit
from pytest_mnode.launchers.remote.launcher import RemoteOptions
from pytest_mnode.launchers.remote.shared_dir import SharedDir
from pytest_mnode.launchers.slurm import Slurm
from pytest_mnode.launchers.slurm.launcher import Slurm as SlurmLauncher
from pytest_mnode.launchers.ssh import Ssh
from pytest_mnode.machine import namespaces
from pytest_mnode.protocol.launcher_requests import PowerOff
from pytest_mnode.spec import profile_spec
from pytest_mnode.spec.inventory import Power
from tests.programs import write_program
from tests.waiting import soon, until

# Racks.


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pids of the cleanup daemons whose control groups were removed."""
    found: list[int] = []
    monkeypatch.setattr(cgroups, "remove_all", found.append)
    return found


def test_control_groups_end_with_the_racks_processes(
    removed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = subprocess.Popen(["sleep", "60"])
    monkeypatch.setattr(namespaces, "leave_host", lambda _: None)
    monkeypatch.setattr(rack_task, "_fork_first", lambda *_: first.pid)
    monkeypatch.setattr(os, "chdir", lambda _: None)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        ours.send(pickle.dumps(Setup(Rack(1).plan, rootless=True)))
        task = RackTask(theirs.detach())
        assert task.descriptors()
        with soon():
            task.end()
        assert processes.has_ended(first.pid)
        assert removed == [os.getpid()]
        assert ours.recv(1) == b"", "the controller notices the end of the channel"


class Channel:
    """A channel to a rack whose first process has ended, or that is up."""

    closed = 0
    daemon_pid = 77

    def __init__(self, *_: object) -> None: ...

    def await_up(self) -> int:
        return 2**30

    def close(self) -> None:
        type(self).closed += 1


def test_a_rack_that_cannot_be_entered_is_closed(
    removed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rack_launcher, "RackChannel", Channel)
    monkeypatch.setattr(Channel, "closed", 0)
    with pytest.raises(ClusterError, match="ended right after its start"):
        Rack(1).start()
    assert (Channel.closed, removed) == (1, [77])


def test_a_node_whose_links_cannot_be_made_is_ended() -> None:
    refused = Mock(side_effect=OSError("no links"))
    unplugged: list[int] = []
    init = RackInit.__new__(RackInit)
    init._plan = Rack(1).plan
    init._switch = SimpleNamespace(plug_in=refused, unplug=unplugged.append)  # type: ignore[assignment]
    first = subprocess.Popen(["sleep", "60"])
    reads, writes = os.pipe()
    os.write(writes, f"{READY}\n".encode())
    with pytest.raises(OSError, match="no links"):
        init._finish([Booting(0, first.pid, reads)])
    assert first.wait(20.0) == -signal.SIGKILL
    assert unplugged == [0]
    os.close(writes)


# Directories.


def test_a_directory_that_cannot_be_used_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a quota, directories can be made but no files written."""
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", Mock(side_effect=OSError("quota")))
        assert SharedDir(None, tmp_path).directory is None
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_a_node_does_not_see_is_removed(tmp_path: Path) -> None:
    shared = SharedDir(None, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    sees: Any = SimpleNamespace(token=shared.token.read_text())
    blind: Any = SimpleNamespace(token=None)
    assert shared.settle({"n0": sees, "n1": blind}) is None
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_use_keeps_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS keeps a file that a process still has open."""
    shared, unlink = SharedDir(None, tmp_path), os.unlink
    assert shared.directory is not None

    def busy(path: str, **place: Any) -> None:
        if path.endswith("busy"):
            raise OSError(errno.EBUSY, "busy")
        unlink(path, **place)

    monkeypatch.setattr(os, "unlink", busy)
    for name in ("busy", *map(str, range(20))):
        (shared.directory / name).touch()
    left = shared.directory
    shared.remove()
    assert [one.name for one in left.iterdir()] == ["busy"]


# ssh.


def test_the_connection_to_a_node_ends_with_its_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MNODE_SSH_COMMAND", "true")
    section = Power.model_validate({"switch_off": "true {node}", "switch_on": "true {node}"})
    spec = profile_spec("rack").model_copy(update={"power": section})
    launcher = Ssh(parse_hosts("n1", "hosts"), spec, RemoteOptions(str(tmp_path), tmp_path))
    ended: list[tuple[str, str]] = []
    bridge: Any = SimpleNamespace(end=lambda *what: ended.append(what), close=lambda: None)
    launcher._bridge = bridge
    launcher._hosts_by_name = {"host1": "n1"}
    launcher.nodes = (Node("host1", 0, "10.0.0.1"),)
    launcher.ask(PowerOff("host1"))
    assert ended == [("n1", "powered off")]
    launcher.close()


# Slurm.


def test_jobs_are_cancelled_by_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "scancel"
    write_program(program, f'#!/bin/sh\necho "$*" >>"{tmp_path}/asked"\n')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    Slurm().cancel()
    Slurm().cancel(7, 8)
    assert (tmp_path / "asked").read_text() == "--full 7 8\n"


@pytest.mark.parametrize("fails", [False, True])
def test_an_allocation_ends_with_the_launcher(fails: bool) -> None:
    done: list[str] = []

    def close() -> None:
        done.append("released")
        if fails:
            raise ClusterError("no answer")

    launcher: Any = SlurmLauncher.__new__(SlurmLauncher)
    launcher._closed, launcher._watch, launcher._shared = False, None, None
    launcher._watchers = SimpleNamespace(close=lambda: None)
    launcher.allocation = SimpleNamespace(close=close)
    launcher._bridge = SimpleNamespace(close=lambda: done.append("bridge"))
    with pytest.raises(ClusterError) if fails else nullcontext():
        launcher.close()
    assert done == ["bridge", "released"]


# The cleanup daemon.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_signals_of_a_terminal_end_no_daemon(number: signal.Signals, tmp_path: Path) -> None:
    daemon = CleanupDaemon(lambda _: None)
    pid = daemon.start([str(tmp_path)])
    until(lambda: ignores(pid, number), "the daemon ignores it")
    daemon.close([str(tmp_path)])
    assert not tmp_path.exists()


def ignores(pid: int, number: signal.Signals) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next(int(line.split()[1], 16) for line in lines if line.startswith("SigIgn"))
    return bool(mask >> (number - 1) & 1)
