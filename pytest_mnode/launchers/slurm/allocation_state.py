"""Nodes that the run still has, by Slurm's jobs and nodes, and a thread that watches them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.node import count
from pytest_mnode.launchers.slurm.allocation import Granted
from pytest_mnode.launchers.slurm.commands import NodesHidden, Slurm
from pytest_mnode.launchers.slurm.jobs import JobState
from pytest_mnode.launchers.slurm.nodes import NodeState

POLL_NODES_S = 3.0


def present(
    granted: Granted, states: Mapping[str, NodeState] | None, wanted: int
) -> tuple[str, ...]:
    """The first `wanted` nodes of an allocation that Slurm does not report as lost.

    states: None if Slurm hides nodes from this user. Raises ClusterError that names the missing
    nodes.
    """
    if states is None:
        return granted.names[:wanted]
    bad = {
        name: state.text if (state := states.get(name)) is not None else "unknown to Slurm"
        for name in granted.names
        if name not in states or states[name].lost
    }
    there = tuple(name for name in granted.names if name not in bad)
    if len(there) >= wanted:
        return there[:wanted]
    missing = ", ".join(f"{name} ({why})" for name, why in bad.items())
    raise ClusterError(
        f"slurm: {count(wanted)} requested, but allocation {granted.job_id} has {len(there)} up: "
        f"{', '.join(there) or 'none'}; missing: {missing}"
    )


def too_few_gpus(
    job: JobState | None,
    states: Iterable[NodeState],
    per_node: int,
    others: Iterable[NodeState] = (),
) -> str | None:
    """Error if Slurm allocated fewer GPUs than the spec promises per node; else None.

    states: nodes that the run uses; others: other nodes of the allocation, which may have fewer
    GPUs, or none. None also if Slurm does not count GPUs: a job's resources include them only if
    AccountingStorageTRES names them, which it does not by default.
    """
    states = list(states)
    if job is None or not job.nodes or not any(state.gpus is not None for state in states):
        return None
    if job.gpus is None and not all(state.counts_gpus for state in states):
        return None
    held = job.gpus or 0
    besides = sum(min(per_node, state.gpus or 0) for state in others)
    if held >= per_node * len(states) + besides:
        return None
    return (
        f"slurm: allocation {job.job_id} has {held} GPUs on {count(len(job.nodes))}, but the "
        f"spec promises {per_node} per node; request them with --gpus-per-node={per_node}"
    )


def not_back(
    job: JobState | None, job_id: int, own: str, name: str, states: Iterable[NodeState]
) -> str | None:
    """Why Slurm does not use a node of the allocation that was powered on; None if it does.

    own, name: the node's own name, and Slurm's. A drained node keeps its allocation. Raises
    ClusterError if Slurm removed the node from the allocation for good.
    """
    if job is not None and job.runs and name not in job.nodes:
        raise ClusterError(
            f"{own} was down for so long that Slurm removed it from allocation {job_id} "
            "(SlurmdTimeout); only a new allocation can have it again"
        )
    return next((f"Slurm says {state.text}" for state in states if not state.up), None)


def lost(
    job: JobState | None,
    job_id: int,
    states: Mapping[str, NodeState],
    names: Mapping[str, str],
) -> dict[str, str]:
    """Reasons, as Slurm gives them, of the lost nodes, by the nodes' own names.

    names: Slurm's names by the nodes' own names.
    """
    if job is None or job.ending or (job.known and not job.runs):
        how = "it is unknown to Slurm" if job is None else job.text
        return dict.fromkeys(names, f"allocation {job_id} ended: {how}")
    found = {}
    for own, name in names.items():
        state = states.get(name)
        if state is not None and state.lost:
            found[own] = f"Slurm says {state.text}"
        elif job.runs and name not in job.nodes:
            found[own] = f"Slurm removed it from allocation {job_id}"
    return found


class Watch:
    """A thread that asks Slurm for lost nodes every POLL_NODES_S, from `start` to `close`.

    on_lost(name, why) is called at each look for each lost node, by its own name; beside() also.
    """

    def __init__(
        self,
        slurm: Slurm,
        job_id: int,
        on_lost: Callable[[str, str], None],
        beside: Callable[[], None],
    ) -> None:
        self._on_lost, self._beside = on_lost, beside
        self._slurm, self._job_id = slurm, job_id
        self._names: Mapping[str, str] = {}
        self._closing = threading.Event()

    def start(self, names: Mapping[str, str]) -> None:
        """Start the thread. names: Slurm's names by the nodes' own names."""
        self._names = names
        threading.Thread(target=self._run, name="slurm-look", daemon=True).start()

    def close(self) -> None:
        """Stop the thread, without waiting for a command that Slurm has not answered yet."""
        self._closing.set()

    def _run(self) -> None:
        while not self._closing.wait(POLL_NODES_S):
            self._beside()
            self.look()

    def look(self) -> None:
        """Ask now. If Slurm does not answer, that does not mean that nodes are lost."""
        try:
            found = self._found()
        except ClusterError:
            return
        for name, why in found.items():
            self._on_lost(name, why)

    def _found(self) -> dict[str, str]:
        job = self._slurm.job(self._job_id)
        try:
            states = {state.name: state for state in self._slurm.nodes(self._names.values())}
        except NodesHidden:
            states = {}  # the job shows which nodes it still has
        return lost(job, self._job_id, states, self._names)
