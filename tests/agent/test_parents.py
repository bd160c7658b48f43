"""Processes of an agent end with the process that forked them, even if they are stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from pytest_mnode import processes
from tests.waiting import until

STAYS = """
import os, socket, sys, time
from types import SimpleNamespace

def stays(*_, **__):
    print(os.getpid(), flush=True)
    time.sleep(60)
"""
LAUNCHER = """
from pytest_mnode.agent import fork_server
from pytest_mnode.machine import namespaces
sys.modules["pytest_mnode.agent.elastic"] = SimpleNamespace(main=stays)
namespaces.enter = lambda pid: print(os.getpid(), flush=True)
fork_server.take_fds = lambda *_: (socket.socket().detach(), None)
world = SimpleNamespace(id="w1")
launch = SimpleNamespace(node="n0", world=world, node_rank=1, namespace_pid={pid})
fork_server.fork_launcher(None, launch, SimpleNamespace(close=lambda: None), None)
time.sleep(60)
"""
COLLECTOR = """
from pytest_mnode.agent import fork_server
from pytest_mnode.protocol.channel import Pipe
from pytest_mnode.protocol.messages import AgentOrder, Call
from pytest_mnode.protocol.messages import Collect
fork_server.ForkServer.import_torch = lambda _: None
fork_server.Collector = lambda *_, **__: SimpleNamespace(run=stays)
agent, ours = Pipe.pair()
agent.send(Call(0, "import_torch"))
agent.send(Collect((), frozenset({"test_a.py"}), {}, None, "/", "/", (), "/tmp"))
fork_server.main(AgentOrder(0, "", ""), ours)
"""


@pytest.mark.parametrize(
    ("code", "chain"),
    [
        (LAUNCHER.replace("{pid}", "None"), ["launcher"]),
        (LAUNCHER.replace("{pid}", "7"), ["enters", "launcher"]),
        (COLLECTOR, ["collector"]),
    ],
    ids=["launcher", "launcher on a node of the rack", "collector"],
)
def test_a_stopped_child_ends_with_its_parent(code: str, chain: list[str]) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", STAYS + code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    pids = [int(parent.stdout.readline()) for _ in chain]
    try:
        os.kill(pids[-1], signal.SIGSTOP)
        parent.kill()
        parent.wait(30.0)
        for pid, what in zip(pids, chain, strict=True):
            until(lambda pid=pid: processes.has_ended(pid), what)  # type: ignore[misc]
    finally:
        for pid in pids:
            processes.kill(pid)
        parent.kill()
        parent.communicate()
