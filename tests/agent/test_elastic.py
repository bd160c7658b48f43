"""What an elastic launcher does for the end of its world, without ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

COMMON = """
import os, subprocess, sys, time
from pytest_mnode.agent import elastic
from pytest_mnode.agent.pipe import Pipe
from pytest_mnode.protocol.agent_messages import AgentOrder, BindingOrder, Launch
from pytest_mnode.protocol.world import Shape, WorldInfo
"""
ADOPTS = """
class Agent:
    def __init__(self, *_, **__): ...

    def run(self):  # a process whose parent ends at once
        made = ["sh", "-c", "setsid sleep 300 >/dev/null 2>&1 & echo $!"]
        orphan = int(subprocess.run(made, capture_output=True, check=True).stdout)
        with open(f"/proc/{orphan}/stat") as file:
            os.kill(orphan, 9)
            parent = int(file.read().rpartition(")")[2].split()[1])
        print("adopted" if parent == os.getpid() else parent)

elastic.WatchfulAgent = Agent
world = WorldInfo("w1", Shape(1, 1), ("n0",), log_dir=sys.argv[1])
launch = Launch("n0", world, 0, "127.0.0.1", 1, "gloo", 0, {}, BindingOrder())
ours, theirs = Pipe.pair()
elastic.main(AgentOrder(0, "", {}, "", ""), launch, ours, None, lambda *_: None)
"""
ENDS = """
made = elastic.WatchfulAgent.__new__(elastic.WatchfulAgent)
ours, made.agent = Pipe.pair()
ours.close()
made._obey()
"""


@pytest.mark.parametrize(
    ("code", "printed"), [(ADOPTS, "adopted\n"), (ENDS, "")], ids=["adopts", "ends"]
)
def test_a_launcher_adopts_orphans_and_ends_with_its_pipe(
    tmp_path: Path, code: str, printed: str
) -> None:
    """Otherwise its agent would not find them, or would wait for it."""
    done = subprocess.run(
        [sys.executable, "-c", COMMON + code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, printed), done.stderr
