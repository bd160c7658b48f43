"""Creates, reads, watches, lists and removes the directory of a run.

The controller may not see the nodes' file systems, so each operation is a command on a node.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.criteria.restart.history import History, history_of
from pytest_mnode.criteria.restart.judging import StoreListing
from pytest_mnode.criteria.storage.meeting import guarded
from pytest_mnode.errors import ClusterError, MnodeError
from pytest_mnode.processes import end_programs, last_line
from pytest_mnode.reference_job.config import JobConfig
from pytest_mnode.reference_job.records import read_records

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.spec import Spec

_SPARE_S = 10.0
"""Time beyond the watcher's own limit in which it starts."""
_LAST_S = 0.5
_WRITE = "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"
_READ = r"""
import json, pathlib, sys
files = pathlib.Path(sys.argv[1]).glob("rank*.jsonl")
json.dump({f.name: f.read_bytes().decode("utf-8", "replace") for f in files}, sys.stdout)
"""
# Waits until `ranks` ranks have started `starts` times and done `step` since, or with ranks=0 until
# a checkpoint is held open. Prints the time of its last check that found neither.
_AWAIT = r"""
import glob, json, os, sys, time
place, ranks, starts, step, limit = sys.argv[1], *map(int, sys.argv[2:5]), float(sys.argv[5])
def done(path):
    begun, last = 0, -1
    with open(path, errors="replace") as file:
        for line in file:
            try:
                one = json.loads(line)
                if one["kind"] == "start":
                    begun, last = begun + 1, -1
                elif one["kind"] == "step" and line.endswith("\n"):
                    last = int(one["step"])
            except (ValueError, TypeError, KeyError):
                pass  # torn by a kill: it is no step
    return begun >= starts and last >= step
began = time.monotonic()
missed, end = 0.0, began + limit
def seen():
    print(f"missed {missed}")
    sys.exit(0)
while time.monotonic() < end:
    looked = time.monotonic() - began
    if ranks == 0:
        if os.path.exists(f"{place}/HELD-{step}"):
            seen()
    elif sum(map(done, glob.glob(glob.escape(place) + "/records/rank*.jsonl"))) >= ranks:
        seen()
    missed = looked
    time.sleep(0.02)
sys.exit(3)
"""
_NOT_SEEN = 3
_SURVEY = r"""
import json, sys
from pytest_mnode.reference_job.checkpoint import Store
found = [(one.step, one.reason) for one in Store(sys.argv[1]).survey()]
json.dump(found, sys.stdout)
"""


def shared_directory(cluster: Cluster, spec: Spec, base: Path) -> Path | str:
    """A directory that all nodes share; a str says why there is none.

    base: a directory on this machine, used if all nodes are on it.
    """
    if spec.storage is not None and spec.storage.checkpoints is not None:
        return Path(spec.storage.checkpoints)
    if cluster.share_kernel:
        return base
    if cluster.share_files:
        return cluster.scratch
    return "storage.checkpoints of the spec names no directory that all nodes share"


@contextlib.contextmanager
def run_directory(cluster: Cluster, node: str, parent: Path, name: str) -> Iterator[str]:
    """A directory for one run, created on `node` and removed at the end; where this machine sees
    it also after a kill of this process."""
    directory = str(parent / f"mnode-{name}-{secrets.token_hex(4)}")
    with guarded(Path(directory), cluster.limits.reported_s):
        [made] = cluster.run(["mkdir", "-m", "700", "--", directory], node)
        if not made.ok:
            raise ClusterError(f"{node}: no directory for a run: {made.stderr.strip()}")
        try:
            yield directory
        finally:
            with contextlib.suppress(MnodeError):
                cluster.run(["rm", "-rf", "--", directory], node)


def write_config(cluster: Cluster, node: str, config: JobConfig) -> str:
    """Write a run's config into its directory, and return the path."""
    path = f"{config.directory}/config.json"
    _ask(cluster, node, _WRITE, path, json.dumps(asdict(config)))
    return path


def read_history(cluster: Cluster, node: str, directory: str, into: Path) -> History:
    """The history of a run; its records are copied to `into` on this machine."""
    files = json.loads(_ask(cluster, node, _READ, f"{directory}/records"))
    into.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (into / Path(name).name).write_text(text)
    return history_of(read_records(into))


def list_store(cluster: Cluster, node: str, directory: str) -> StoreListing | None:
    """The checkpoints in the run's store; None if the store cannot be read."""
    argv = [cluster.python, "-c", _SURVEY, f"{directory}/checkpoints"]
    [found] = cluster.run(argv, node)
    try:
        steps = json.loads(found.stdout)
    except ValueError:
        return None
    complete = tuple(step for step, reason in steps if reason is None)
    return StoreListing(complete, tuple((step, why) for step, why in steps if why is not None))


@dataclass(frozen=True, slots=True)
class SeenBetween:
    """Bounds of the time when a step was seen, in seconds of this process's monotonic clock.

    not_before: None if the first check saw the step.
    """

    not_before: float | None
    not_after: float


def await_steps(
    cluster: Cluster,
    node: str,
    directory: str,
    *,
    ranks: int,
    step: int,
    starts: int = 1,
    limit_s: float,
    over: Callable[[], bool],
) -> SeenBetween | None:
    """Wait until `ranks` ranks did `step` since their start number `starts`; None if they did not.

    over: called repeatedly during the wait; True ends it. With ranks=0, wait for a checkpoint that
    is held open. Raises ClusterError if the watcher on the node failed: that says nothing about the
    run.
    """
    words = [directory, str(ranks), str(starts), str(step), str(limit_s)]
    began = time.monotonic()
    argv = [cluster.python, "-S", "-c", _AWAIT, *words]
    with tempfile.NamedTemporaryFile(dir=cluster.run_id) as output:
        watcher = cluster.start(argv, node, output=Path(output.name))
        end = time.monotonic() + limit_s + _SPARE_S
        try:
            while watcher.poll() is None and time.monotonic() < end:
                if over():
                    # The step may have been written just before the end.
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        watcher.wait(_LAST_S)
                    break
                time.sleep(0.02)
            code, ended = watcher.poll(), time.monotonic()
        finally:
            end_programs([watcher])
        printed = output.read().decode(errors="replace")
    if code not in (None, 0, _NOT_SEEN):
        raise ClusterError(
            f"{node}: the run could not be watched: {last_line(printed) or f'status {code}'}"
        )
    return _seen(began, ended, printed) if code == 0 else None


def _seen(began: float, ended: float, printed: str) -> SeenBetween:
    """printed: in a line, seconds from the watcher's start to its last check that did not see the
    step."""
    found = re.search(r"^missed ([\d.e-]+)$", printed, re.MULTILINE)
    missed_s = float(found[1]) if found else 0.0
    return SeenBetween(began + missed_s if missed_s else None, ended)


def _ask(cluster: Cluster, node: str, code: str, *words: str) -> str:
    [found] = cluster.run([cluster.python, "-S", "-c", code, *words], node)
    if not found.ok:
        raise ClusterError(f"{node}: {last_line(found.stderr) or 'no answer'}")
    return found.stdout


def copy_run(cluster: Cluster, node: str, source: str, target: str) -> None:
    """Copy a run's records and checkpoints. Raises ClusterError."""
    [done] = cluster.run(["cp", "-a", f"{source}/.", f"{target}/"], node)
    if not done.ok:
        raise ClusterError(f"{node}: {done.stderr.strip()}")
