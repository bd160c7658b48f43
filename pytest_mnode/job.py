"""A real torchrun job on the nodes of a controller-side test: started, watched, killed."""

from __future__ import annotations

import contextlib
import signal as signals
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.errors import ClusterError, TimeLimitError, UsageError

if TYPE_CHECKING:
    from pytest_mnode.handle import Cluster

_FREE_PORT = "import socket; s = socket.create_server((%r, 0)); print(s.getsockname()[1])"
# Ranks of a job by what torchrun told them; a child that a rank started has a parent with RANK.
_FIND = r"""
import os, sys
job, wanted = sys.argv[1], sys.argv[2]
def env(pid):
    try:
        pairs = open(f"/proc/{pid}/environ", "rb").read().split(b"\0")
    except OSError:
        return {}
    return dict(p.decode(errors="replace").partition("=")[::2] for p in pairs if p)
def parent(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1]
    except OSError:
        return "0"
for pid in filter(str.isdigit, os.listdir("/proc")):
    e = env(pid)
    if e.get("MNODE_JOB") != job or int(pid) == os.getpid():
        continue
    if wanted == "all":
        print(pid)
    elif e.get("RANK") == wanted and "RANK" not in env(parent(pid)):
        print(pid)
"""


@dataclass(frozen=True, slots=True)
class Job:
    """What to run: `argv` as after torchrun's own options, such as ["train.py", "--steps=5"].

    nodes: how many, or which (None: all). torchrun: further options of torchrun itself.
    """

    argv: Sequence[str]
    nodes: int | Sequence[str] | None = None
    procs_per_node: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    torchrun: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class JobResult:
    """Exit status of torchrun on every node, and what the job printed there."""

    returncodes: dict[str, int]
    output: dict[str, str]

    @property
    def ok(self) -> bool:
        return all(code == 0 for code in self.returncodes.values())


class RunningJob:
    """A torchrun job, one torchrun a node. Ends with its test."""

    def __init__(
        self,
        cluster: Cluster,
        job_id: str,
        processes: dict[str, subprocess.Popen[str]],
        logs: tempfile.TemporaryDirectory[str],
        procs_per_node: int,
    ) -> None:
        self._cluster = cluster
        self._id = job_id
        self._processes = processes
        self._logs = logs
        self._procs_per_node = procs_per_node

    @classmethod
    def start(cls, cluster: Cluster, job: Job) -> RunningJob:
        if isinstance(job.nodes, int):
            if not 1 <= job.nodes <= len(cluster.nodes):
                raise UsageError(f"nodes={job.nodes}: this test has {len(cluster.nodes)} nodes")
            names = cluster.nodes[: job.nodes]
        else:
            names = cluster.nodes if job.nodes is None else tuple(job.nodes)
        addr = cluster.address(names[0])
        [found] = cluster.run([sys.executable, "-S", "-c", _FREE_PORT % addr], names[0])
        if not found.ok:
            raise ClusterError(f"no free port on {names[0]}: {found.stderr.strip()}")
        job_id = uuid.uuid4().hex
        logs = tempfile.TemporaryDirectory(prefix="mnode-job-")
        processes = {}
        for number, name in enumerate(names):
            argv = [
                *(sys.executable, "-m", "torch.distributed.run"),
                *("--nnodes", str(len(names)), "--nproc-per-node", str(job.procs_per_node)),
                *("--node-rank", str(number), "--master-addr", addr),
                # Without a place for them torchrun leaves its logs where nobody finds them.
                *("--master-port", found.stdout.strip(), "--log-dir", f"{logs.name}/{name}-ranks"),
                *(*job.torchrun, *job.argv),
            ]
            env = {"MNODE_JOB": job_id, "OMP_NUM_THREADS": "1", **job.env}
            with (Path(logs.name) / name).open("w") as log:
                processes[name] = cluster.start(argv, name, env=env, output=log)
        return cls(cluster, job_id, processes, logs, job.procs_per_node)

    def kill(
        self,
        *,
        node: str | None = None,
        rank: int | None = None,
        signal: signals.Signals = signals.SIGKILL,
    ) -> list[int]:
        """Send a signal to a rank, or to all processes of the job on a node; pids on that node.

        Raises UsageError for neither or both, ClusterError where there is no such process.
        """
        if (node is None) == (rank is None):
            raise UsageError("kill needs node= or rank=, one of them")
        if rank is not None:
            names = list(self._processes)
            if not 0 <= rank < len(names) * self._procs_per_node:
                raise UsageError(f"rank={rank}: the job has {len(names) * self._procs_per_node}")
            node = names[rank // self._procs_per_node]
        assert node is not None
        pids = self.pids(node, rank)
        if not pids:
            what = "process of the job" if rank is None else f"rank {rank}"
            raise ClusterError(f"no {what} is running on {node}")
        words = [str(pid) for pid in pids]
        code = "import os, sys; [os.kill(int(p), int(sys.argv[1])) for p in sys.argv[2:]]"
        self._cluster.run([sys.executable, "-S", "-c", code, str(int(signal)), *words], node)
        return pids

    def pids(self, node: str, rank: int | None = None) -> list[int]:
        """Pids, as the node sees them, of one rank or of all the job's processes there."""
        wanted = "all" if rank is None else str(rank)
        [found] = self._cluster.run([sys.executable, "-S", "-c", _FIND, self._id, wanted], node)
        return [int(word) for word in found.stdout.split()]

    def output(self, node: str) -> str:
        """What the job has printed on a node so far."""
        path = Path(self._logs.name) / node
        return path.read_text(errors="replace") if path.exists() else ""

    def wait(self, timeout: float) -> JobResult:
        """Wait for torchrun on every node, `timeout` seconds at most.

        Raises TimeLimitError naming the nodes on which it still runs.
        """
        end = time.monotonic() + timeout
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
        running = [name for name, p in self._processes.items() if p.poll() is None]
        if running:
            raise TimeLimitError(f"the job still runs on {', '.join(running)} after {timeout:g} s")
        return JobResult(
            {name: p.returncode for name, p in self._processes.items()},
            {name: self.output(name) for name in self._processes},
        )

    def close(self) -> None:
        """Kill what is left of the job and remove its logs."""
        for name, process in self._processes.items():
            if process.poll() is None:
                with contextlib.suppress(ClusterError):
                    self.kill(node=name)
                process.kill()
                process.wait()
        self._logs.cleanup()
