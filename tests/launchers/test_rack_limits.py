"""A rack whose first process, nodes or switch never answer."""

from __future__ import annotations

import os
import pickle
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode import processes
from pytest_mnode.errors import TimeLimitError
from pytest_mnode.launchers.rack import channel, rack_init, wiring
from pytest_mnode.launchers.rack.plan import Link, Plan
from pytest_mnode.launchers.rack.protocol import Booted, Setup
from pytest_mnode.launchers.rack.rack_init import Booting, RackInit
from pytest_mnode.launchers.rack.wiring import Switch
from pytest_mnode.protocol.launcher_requests import PowerOff
from tests.waiting import soon, until

PLAN = Plan(2, Link("fab0", 200), Link("mgmt0", 20), 1 << 20)
LIMIT_S = 60.0


class Mute:
    """A cleanup daemon whose rack takes requests and answers none."""

    pid = os.getpid()

    def __init__(self, *_: Any) -> None: ...

    def start(self, remove: Any, pass_fds: Any) -> int:
        self.rack = socket.socket(fileno=os.dup(pass_fds[0]))
        return self.pid

    def order(self, **_: Any) -> None: ...

    def last_words(self) -> str:
        return ": its last line"

    def close(self) -> None:
        self.rack.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(channel, "CleanupDaemon", Mute)
    for limit in ("REQUEST_LIMIT_S", "CLOSE_LIMIT_S"):
        monkeypatch.setattr(channel, limit, 0.2)
    for limit in ("BOOT_LIMIT_S", "KILL_LIMIT_S"):
        monkeypatch.setattr(rack_init, limit, 0.2)
    monkeypatch.setattr(wiring, "FORWARDING_LIMIT_S", 0.2)
    with soon():
        yield


def test_a_rack_that_never_answers() -> None:
    made = channel.RackChannel(Setup(PLAN, True), (), lambda _: None)
    with pytest.raises(TimeLimitError, match=r"^rack: start: no answer in 0\.2 s .*: its last l"):
        made.await_up()
    with pytest.raises(TimeLimitError, match=r"^rack: cannot switch nodes off: node1: no answer"):
        made.ask(PowerOff("node1"), "node1")
    made.close()


@pytest.mark.parametrize("stopped", ["the cleanup process", "the rack's first process"])
def test_a_process_that_is_stopped_is_named(stopped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon starts the rack's first process, and one that is stopped starts none."""
    with subprocess.Popen(["sh", "-c", "sleep 60 & wait"]) as daemon:
        until(lambda: processes.children(daemon.pid))
        below = processes.children(daemon.pid)
        try:
            os.kill(daemon.pid if "cleanup" in stopped else below[0], signal.SIGSTOP)
            monkeypatch.setattr(Mute, "pid", daemon.pid)
            made = channel.RackChannel(Setup(PLAN, True), (), lambda _: None)
            with pytest.raises(TimeLimitError, match=f"from {stopped}: its process is stopped"):
                made.await_up()
            made.close()
        finally:
            for pid in (*below, daemon.pid):
                os.kill(pid, signal.SIGKILL)


def test_a_listener_that_is_busy_does_not_keep_a_rack_open() -> None:
    busy, over = threading.Event(), threading.Event()

    def on_event(_: object) -> None:
        busy.set()
        over.wait(LIMIT_S)

    made = channel.RackChannel(Setup(PLAN, True), (), on_event)
    rack: Any = made._daemon
    rack.rack.send(pickle.dumps(Booted(0, 7)))
    assert busy.wait(LIMIT_S)
    made.close()
    over.set()


@pytest.fixture
def rack() -> RackInit:
    made = RackInit.__new__(RackInit)
    made._plan, made._pids = PLAN, {}
    switch = SimpleNamespace(cut=print, unplug=print)
    made._switch = switch  # type: ignore[assignment]
    made._send = print  # type: ignore[method-assign, assignment]
    return made


def test_a_node_that_is_never_up(rack: RackInit) -> None:
    node = subprocess.Popen(["sleep", "60"])
    report, reports = os.pipe()
    os.write(reports, b"mounts\n")
    with pytest.raises(TimeoutError, match=r"^node1 was not up after 0\.2 s; last step: mounts$"):
        rack._finish([Booting(1, node.pid, report)])
    assert node.wait(LIMIT_S) == -9
    os.close(reports)


def test_a_node_whose_processes_outlive_sigkill(
    rack: RackInit, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = subprocess.Popen(["sleep", "60"])
    rack._pids[1] = node.pid
    with monkeypatch.context() as patch:
        patch.setattr(os, "waitpid", lambda *_: (0, 0))
        with pytest.raises(TimeoutError, match=re.escape("still run 0.2 s after SIGKILL")):
            rack._power_off(1)
    node.wait(LIMIT_S)


def test_a_node_that_ends_a_moment_after_sigkill_is_awaited(
    rack: RackInit, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = subprocess.Popen(["sleep", "60"])
    rack._pids[1] = node.pid
    waits = iter(((0, 0), (node.pid, signal.SIGKILL)))
    with monkeypatch.context() as patch:
        patch.setattr(os, "waitpid", lambda *_: next(waits))
        rack._power_off(1)
    assert list(waits) == []
    node.wait(LIMIT_S)


def switch_of(get_links: Callable[[], list[Any]]) -> Switch:
    switch = Switch.__new__(Switch)
    switch._plan, switch._pulled, switch._absent = PLAN, set(), set()
    netlink: Any = SimpleNamespace(get_links=get_links)
    switch._netlink = netlink
    return switch


def test_a_switch_that_never_forwards() -> None:
    with pytest.raises(TimeoutError, match="switch port fab0-node1 does not forward"):
        switch_of(list).await_forwarding([1])


def test_a_switch_that_forwards_a_moment_later_is_awaited() -> None:
    ports = [{"IFLA_OPERSTATE": "UP", "IFLA_IFNAME": PLAN.port(1, x.name)} for x in PLAN.links]
    looks = iter(([], [SimpleNamespace(get_attr=port.get) for port in ports]))
    switch_of(lambda: next(looks)).await_forwarding([1])
    assert list(looks) == []
