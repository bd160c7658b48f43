"""Jobs of tests: their ranks, which need no torch, and two nodes that are this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pytest_mnode.errors import NodeLostError
from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.nodes import RunDescription
from pytest_mnode.launchers.slurm.launcher import RunInSlurm
from pytest_mnode.protocol.launcher_requests import DescribeRun

NAMES = ("n0", "n1")
QUICK = {"PYTHONPATH": str(Path(__file__).with_name("quick"))}
"""Environment of jobs with a stand-in for torchrun, which starts in a moment."""

# A rank that prints its number and waits for SIGTERM; if one dies the others end as well, like
# ranks in torch's collectives: all of them watch one file.
RANK = """
import os, pathlib, signal, sys, time
place = pathlib.Path(sys.argv[1])
me = " ".join(os.environ[n] for n in ("RANK", "MNODE_REQUEUE", "TORCHELASTIC_RESTART_COUNT"))
pins = [os.environ.get(n) for n in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")]
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
print("up", me, os.environ["WORLD_SIZE"], *pins, os.uname().nodename, flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    if "stubborn" not in sys.argv and stopped:
        print("sigterm", me, flush=True)
        sys.exit(75)
    if (place / f"broken.{me.split(' ', 1)[1].replace(' ', '.')}").exists():
        sys.exit(1)
    if (place / "done").exists():
        sys.exit(0)
    time.sleep(0.05)
"""


class Here:
    """Answers for a launcher of two nodes that are this machine. gone: nodes without commands."""

    gone: tuple[str, ...] = ()

    def __init__(self, scratch: Path) -> None:
        nodes = tuple(Node(name, i, "127.0.0.1") for i, name in enumerate(NAMES))
        self.scratch = scratch
        self.facts = RunDescription(
            *(nodes, True, True, str(scratch), str(scratch), sys.executable, None),
            job_facts=RunInSlurm({}),
        )

    def __call__(self, request: Any) -> Any:
        if isinstance(request, DescribeRun):
            return self.facts
        for name in set(request.nodes) & set(self.gone):
            raise NodeLostError(name, f"{name} is gone")
        return [list(request.argv) for _ in request.nodes]
