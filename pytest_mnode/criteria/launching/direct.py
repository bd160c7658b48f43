"""The submission path of launchers that run commands on nodes: a login on each node."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.criteria.launching import login, styles
from pytest_mnode.criteria.launching.contract import CANARY
from pytest_mnode.criteria.launching.paths import Outcome, Submitted
from pytest_mnode.criteria.launching.reports import read_nodes
from pytest_mnode.criteria.launching.styles import LaunchJob
from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.node import socket_pins
from pytest_mnode.launchers.remote.node_process import Program
from pytest_mnode.processes import end_programs

if TYPE_CHECKING:
    from pytest_mnode.launchers.nodes import Nodes

_HAS = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
_END_S = 15.0
"""Time that a node may take to end a job after SIGTERM."""


def pins_of(cluster: Nodes, node: str, own: Mapping[str, str]) -> dict[str, str]:
    """The site's variables on a node, which name the fabric's interface, without the job's own."""
    pins = socket_pins(cluster.fabric_interface(node))
    return {name: value for name, value in pins.items() if name not in own}


class Direct:
    """Logs in to each node with its own environment, the site's pins and the job's variables.

    If the login is root, the job runs as an unprivileged user, unless that user could not read the
    job or run Python.
    """

    name = "direct"
    runs_images = False

    def __init__(self, cluster: Nodes) -> None:
        self._cluster = cluster

    def submit(self, job: LaunchJob, nodes: Sequence[str]) -> DirectSubmission:
        if job.image is not None:
            raise UsageError(
                f"job {job.name}: image {job.image}: the launcher of this run starts commands on "
                "nodes as they are and runs no images; leave image out, or use a launcher that "
                "runs images"
            )
        names = tuple(nodes)
        place = styles.Placement(
            names, self._cluster.address(names[0]), self._cluster.free_port(names[0])
        )
        pins = {name: pins_of(self._cluster, name, job.env) for name in names}
        by_deepspeed = job.style == "deepspeed" and self._has("deepspeed", names)
        notes = []
        if job.style == "deepspeed" and not by_deepspeed:
            notes.append(
                "deepspeed is not installed on every node: its ranks were started one by one, "
                "with the variables that its launcher sets"
            )
        started = styles.processes(job, place, pins, by_deepspeed)
        submitted = Submitted(names, pins, tuple(notes), profile=not self._cluster.share_kernel)
        return DirectSubmission(self._cluster, submitted, self._plans(started))

    def _plans(self, started: Mapping[str, Sequence[styles.Process]]) -> dict[str, str]:
        files = [word for one in started.values() for p in one for word in p.argv if "/" in word]
        must_read = sorted({word for word in files if Path(word).is_file()})
        # The folder of the run's Python comes first, as in an activated environment.
        beside = Path(self._cluster.python).parent
        path = [str(beside)] if beside.is_absolute() else []
        path += ["/usr/local/bin", "/usr/bin", "/bin"] if self._cluster.share_kernel else []
        common = {
            "unprivileged": True,
            "remote": not self._cluster.share_kernel,
            "must_read": must_read,
            "must_run": [self._cluster.python],
            "path": os.pathsep.join(path),
            "lang": "C.UTF-8",
        }
        return {
            node: json.dumps(
                common | {"processes": [{"argv": p.argv, "env": dict(p.env)} for p in processes]}
            )
            for node, processes in started.items()
        }

    def _has(self, package: str, nodes: Sequence[str]) -> bool:
        results = self._cluster.run([self._cluster.python, "-I", "-c", _HAS, package], nodes)
        return all(result.ok for result in results)


class DirectSubmission:
    """One login per node."""

    def __init__(self, cluster: Nodes, submitted: Submitted, plans: Mapping[str, str]) -> None:
        self.submitted = submitted
        self._logs = tempfile.TemporaryDirectory(prefix="launch-", dir=cluster.scratch)
        self._began = time.monotonic()
        self._processes: dict[str, Program] = {}
        canary = {CANARY: uuid.uuid4().hex}
        program = [cluster.python, "-I", "-S", str(Path(login.__file__))]
        try:
            for node, plan in plans.items():
                log = Path(self._logs.name) / node
                self._processes[node] = cluster.start(
                    program, node, env=canary, text=plan, output=log
                )
        except BaseException:
            self.close()
            raise

    def wait(self, timeout_s: float) -> Outcome:
        until = self._began + timeout_s
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
        seconds = time.monotonic() - self._began
        codes = {node: process.poll() for node, process in self._processes.items()}
        self._end()
        output = {
            node: (Path(self._logs.name) / node).read_text(errors="replace")
            for node in self._processes
        }
        self._logs.cleanup()
        reports, logins, hosts = read_nodes(output)
        return Outcome(codes, reports, tuple(logins), hosts, output, seconds)

    def close(self) -> None:
        self._end()
        self._logs.cleanup()

    def _end(self) -> None:
        """Send SIGTERM to logins that still run; each login ends all of its descendants."""
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        until = time.monotonic() + _END_S
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
        end_programs([one for one in self._processes.values() if one.returncode is None])
