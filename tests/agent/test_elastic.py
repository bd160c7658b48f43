"""What an elastic launcher does for the end of its world, without ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

PROGRAM = """
import os, subprocess, sys
from pytest_mnode.agent import elastic
from pytest_mnode.protocol.channel import Pipe
from pytest_mnode.protocol.agent_messages import AgentOrder, BindingOrder, Launch
from pytest_mnode.protocol.world import Shape, WorldInfo

Watchful = elastic.WatchfulAgent

class Agent:
    def __init__(self, *_, **__): ...

    def run(self):  # a process whose parent ends at once
        made = ["sh", "-c", "setsid sleep 300 >/dev/null 2>&1 & echo $!"]
        orphan = int(subprocess.run(made, capture_output=True, check=True).stdout)
        with open(f"/proc/{orphan}/stat") as file:
            os.kill(orphan, 9)
            parent = int(file.read().rpartition(")")[2].split()[1])
        print("adopted" if parent == os.getpid() else parent, flush=True)

elastic.WatchfulAgent = Agent
world = WorldInfo("w1", Shape(1, 1), ("n0",), log_dir=sys.argv[1])
launch = Launch("n0", world, 0, "127.0.0.1", 1, "gloo", 0, {}, BindingOrder())
ours, theirs = Pipe.pair()
elastic.main(AgentOrder(0, "", {}, "", ""), launch, ours, None, lambda *_: None)

made = Watchful.__new__(Watchful)
ours, made.agent = Pipe.pair()
ours.close()
made._obey()
print("goes on without its agent")
"""


def test_a_launcher_adopts_orphans_and_ends_with_its_pipe(tmp_path: Path) -> None:
    """Otherwise its agent would not find them, or would wait for it."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "adopted\n"), done.stderr
