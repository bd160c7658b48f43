"""What a job has on nodes: one torchrun each, with all below it, and what they print."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.errors import ClusterError
from pytest_mnode.jobs import processes
from pytest_mnode.jobs.described import Job
from pytest_mnode.jobs.torchrun import Start
from pytest_mnode.launchers.node_env import for_nodes

if TYPE_CHECKING:
    from pytest_mnode.launchers.nodes import Nodes

_FOLLOW_S = 1.0
_BURY_S = 5.0


class Parts:
    """The parts of a job, over all its starts. nodes: those of the last start, in order.

    job_id: marks its processes. note: called as note(what, node, pids, detail, wall clock or None)
    for what is done to them.
    """

    def __init__(self, cluster: Nodes, job: Job, job_id: str, note: Callable[..., None]) -> None:
        self.nodes: tuple[str, ...] = ()
        self._cluster = cluster
        self._job = job
        self._note = note
        self._id = job_id
        self._logs = tempfile.TemporaryDirectory(prefix="job-", dir=cluster.scratch)
        self._requeue = 0
        self._used: dict[str, None] = {}
        self._local: dict[str, subprocess.Popen[str]] = {}

    def launch(self, nodes: tuple[str, ...], requeue: int) -> None:
        """Start torchrun on these nodes. Raises ClusterError."""
        address = self._cluster.address(nodes[0])
        port, python = self._cluster.free_port(nodes[0]), self._cluster.python
        start = Start(self._id, nodes, requeue, address, port, python)
        given = {**for_nodes(), **self._job.env}
        self.nodes, self._requeue, self._local = nodes, requeue, {}
        for name in nodes:
            self._used[name] = None
            log = self._log(name, requeue)
            argv = start.argv(self._job, name, self._cluster.address(name), f"{log}-ranks")
            env = start.env(self._job, name, self._cluster.fabric_interface(name), given)
            if self._cluster.share_files:
                # What killed processes leave in temporary files goes with the job.
                env.setdefault("TMPDIR", self._logs.name)
            with log.open("w") as output:
                self._local[name] = self._cluster.start(argv, name, env=env, output=output)

    def ended(self) -> dict[str, int]:
        """Exit status of torchrun by node, where it ended."""
        return {n: p.returncode for n, p in self._local.items() if p.poll() is not None}

    def running(self) -> list[str]:
        """Nodes on which it has not ended."""
        return [name for name, process in self._local.items() if process.poll() is None]

    def living(self, names: Iterable[str] | None = None) -> list[str]:
        """Those of these nodes (None: its own) that the launcher does not know to be gone."""
        return processes.living(self._cluster, self.nodes if names is None else names)

    def end(self, everywhere: bool = False) -> None:
        """Kill them on all nodes that there are, and see to it that they are gone.

        everywhere: on nodes of earlier starts, too. Raises ClusterError where SIGKILL is not
        enough.
        """
        left = []
        try:
            living = self.living(self._used if everywhere else None)
            for name, ended in processes.end(self._cluster, living, self._id).items():
                if ended.killed:
                    self._note("killed", name, ended.killed, "", None)
                left += [f"pid {pid} on {name}" for pid in ended.left]
        finally:
            until = time.monotonic() + _FOLLOW_S
            for process in self._local.values():
                # It follows those on its node, unless its node is gone.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, until - time.monotonic()))
                process.kill()
                process.wait(_BURY_S)
        if left:
            raise ClusterError(f"SIGKILL did not end {', '.join(left)}")

    def printed(self, node: str) -> str:
        """What its last start printed on a node."""
        path = self._log(node, self._requeue)
        return path.read_text(errors="replace") if path.exists() else ""

    def output(self, node: str) -> str:
        """What all starts printed on a node, in order."""
        logs = (self._log(node, requeue) for requeue in range(self._requeue + 1))
        return "".join(path.read_text(errors="replace") for path in logs if path.exists())

    def close(self) -> None:
        """End them, and remove what they printed."""
        try:
            self.end(everywhere=True)
        finally:
            self._logs.cleanup()

    def _log(self, node: str, requeue: int) -> Path:
        return Path(self._logs.name) / (f"{node}.{requeue}" if requeue else node)
