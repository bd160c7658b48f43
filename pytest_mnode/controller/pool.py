"""The pool of a run: the hub and its resources, made by the process that owns the nodes."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from datetime import datetime
from pathlib import Path

from pytest_mnode.backends.registry import choose, chosen
from pytest_mnode.controller.agents import RunDirectories
from pytest_mnode.controller.client import Client
from pytest_mnode.controller.hub import Hub
from pytest_mnode.controller.worlds import PoolFacts
from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.launchers.local import Local
from pytest_mnode.launchers.node import Launcher, count
from pytest_mnode.machine import open_files
from pytest_mnode.options import Settings
from pytest_mnode.progress import progress
from pytest_mnode.protocol.channel import Switchboard, new_token
from pytest_mnode.spec import Spec

_STOP_LIMIT_S = 20.0


def backend_of(settings: Settings, spec: Spec) -> str:
    """Backend of process groups; auto: nccl if the spec promises accelerators, else gloo."""
    if settings.backend != "auto":
        return settings.backend
    return "nccl" if spec.accelerators.per_node else "gloo"


def procs_per_node_of(settings: Settings, spec: Spec) -> int:
    """Ranks per node: the option, else one per accelerator, else the fewest slots of any used host
    of the hostfile, else one.

    Raises UsageError for a hostfile that cannot be read.
    """
    asked = settings.procs_per_node or spec.accelerators.per_node
    if asked or settings.hostfile is None:
        return asked or 1
    return chosen(settings)[0].slots(settings) or 1


class Pool:
    """Owns nodes and hub from construction to `close`. root: root directory of the tests."""

    def __init__(self, settings: Settings, spec: Spec, nodes: int, root: Path) -> None:
        self.run_dir = Path(tempfile.mkdtemp(prefix="mnode-"))
        self.kept_logs: Path | None = None
        with contextlib.ExitStack() as undo:  # leaves nothing behind if a step fails
            undo.callback(shutil.rmtree, self.run_dir, ignore_errors=True)
            idle_worlds = 1 if spec.accelerators.per_node else 4
            self.launcher, self.reason = _started(settings, nodes, spec, self.run_dir, root)
            undo.callback(self.launcher.close)
            procs = _connected(self.launcher, settings, spec)
            # Raised only for this process: programs that connect to nodes keep the earlier limit.
            before = open_files.allow(nodes, procs, idle_worlds)
            undo.callback(open_files.give_back, before)
            log_dir = self.run_dir / "logs"
            if settings.log_dir is None:
                log_dir.mkdir()
            else:
                log_dir = self.kept_logs = new_log_dir(settings.log_dir)
            self.path, self.token = f"{self.run_dir}/hub", new_token()
            switchboard = Switchboard(self.path, self.token)
            undo.callback(switchboard.close)
            place = RunDirectories(
                run_dir=str(self.run_dir),
                log_dir=str(log_dir),
                open_files=before,
            )
            numa = spec.criteria.numa
            # Ranks without accelerators get a NIC's CPUs, half of a node's, only if that is wanted.
            near_nics = settings.numa_bind != "auto" or (numa is not None and numa.cpus is not None)
            facts = PoolFacts(
                backend=backend_of(settings, spec),
                accelerators=spec.accelerators.per_node,
                idle_worlds=idle_worlds,
                numa_bind=settings.numa_bind,
                fabric=spec.fabric.interfaces if near_nics else (),
            )
            self.hub = Hub(self.launcher, switchboard, facts, place)
            name = f"client/{os.getpid()}"
            self.client = Client(
                name, self.hub.local_line(name), settings.limits(nodes), alone=True
            )
            self._open_files = before
            undo.pop_all()  # from now on close() cleans up
            self.hub.thread.start()

    def close(self) -> None:
        """End all processes and remove all files of the pool."""
        self.client.tell("stop")
        self.hub.thread.join(_STOP_LIMIT_S)
        if self.hub.thread.is_alive():
            text = f"its nodes were not given back within {_STOP_LIMIT_S:g} s"
            sys.stderr.write(f"mnode: {text}; its clean-up process goes on\n")
        self.client.close()
        shutil.rmtree(self.run_dir, ignore_errors=True)
        open_files.give_back(self._open_files)


def _connected(launcher: Launcher, settings: Settings, spec: Spec) -> int:
    """Ranks of each node that have a connection of their own to this process."""
    return procs_per_node_of(settings, spec) if launcher.shared_kernel else 0


def _started(
    settings: Settings, nodes: int, spec: Spec, run_dir: Path, root: Path
) -> tuple[Launcher, str]:
    """A launcher whose nodes are up, and why it was chosen."""
    launcher, reason = choose(settings, nodes, spec, [str(run_dir)], root)
    open_files.check(nodes, _connected(launcher, settings, spec))
    if not launcher.shared_kernel:
        progress(f"waiting for {count(nodes)} by {launcher.name}")
    try:
        launcher.start()
    except ClusterError as error:
        # Even with all permissions, the kernel may lack a feature, such as a type of link.
        if settings.launcher != "auto" or launcher.name != "rack":
            raise
        launcher, reason = Local(nodes), f"no rack: {error}"
        launcher.start()
    return launcher, reason


def new_log_dir(parent: Path) -> Path:
    """A new directory for the logs of one run, below --mnode-log-dir; names sort by time.

    World and rank numbers start anew in every run, so files of another run in the same directory
    would be mistaken for files of this run.
    """
    name = f"{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
            with contextlib.suppress(FileExistsError):
                made = parent / f"{name}{suffix}"
                made.mkdir()
                return made.absolute()
    except OSError as error:
        raise UsageError(f"--mnode-log-dir={parent}: {error.strerror}") from None
    raise UsageError(
        f"--mnode-log-dir={parent}: {name} to {name}-999 already exist; choose another directory"
    )
