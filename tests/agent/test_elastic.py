"""What an elastic launcher does for the end of its world, without ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import warm
from tests.inner import clean_env

pytest.importorskip("torch")

PROGRAM = """
import os, pickle, socket, subprocess, sys
from types import SimpleNamespace as Of
from pytest_mnode.agent import elastic
from pytest_mnode.protocol.channel import Pipe
from pytest_mnode.protocol.messages import AgentOrder, BindingOrder, Launch
from pytest_mnode.protocol.messages import Shape, WorldInfo

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
elastic.main(AgentOrder(0, "", ""), launch, ours, None, lambda *_: None)

def ended(used_bytes):
    if (pid := os.fork()) == 0:
        b"x" * used_bytes
        os._exit(3)
    return pid

made = Watchful.__new__(Watchful)
ours, made.agent = Pipe.pair()
made.order, made.launch = AgentOrder(0, "", ""), launch
made._oom_before = elastic.read_oom_kills()
made._given, other = socket.socketpair(type=socket.SOCK_SEQPACKET)
made._given.setblocking(False)
made._live, made._outputs, made._terminal = None, {}, Of(close=lambda rank: None)
made._pcontext = Of(stdouts=["", ""], stderrs=["", ""], error_files=["", ""])
made._pids = {0: ended(200 << 20), 1: ended(0)}
for local in (0, 1):
    made._report(local, Of(workers=[Of(global_rank=0), Of(global_rank=1)]))
deaths = [pickle.loads(one) for one in ours.receive()]
peaks = [death.peak_rss_bytes for death in deaths]
ends = [(death.rank, death.code, death.signal) for death in deaths]
print(ends, peaks[0] > peaks[1] + (100 << 20), flush=True)
ours.close()
made._obey()
print("goes on without its agent")
"""


def test_a_launcher_adopts_orphans_and_ends_with_its_pipe(tmp_path: Path) -> None:
    """Otherwise its agent would not find them, or would wait for it. Each rank's memory is its own:
    that of a rank which died before is not reported of the next one."""
    (tmp_path / "program.py").write_text(PROGRAM)
    argv = [sys.executable, "-m", "program", str(tmp_path)]
    told = "adopted\n[(0, 3, None), (1, 3, None)] True\n"
    assert warm.run(argv, tmp_path, clean_env(), 120) == (0, told)
