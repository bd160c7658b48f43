"""Which nodes of an allocation a run still has, from what Slurm says of job and nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.node import count
from pytest_mnode.launchers.slurm.allocation import Granted
from pytest_mnode.launchers.slurm.jobs import JobState
from pytest_mnode.launchers.slurm.nodes import NodeState


def present(granted: Granted, states: Mapping[str, NodeState], wanted: int) -> tuple[str, ...]:
    """The first nodes of an allocation that Slurm has not given up, `wanted` of them.

    Raises ClusterError that names those that are missing.
    """
    bad = {
        name: state.text if (state := states.get(name)) is not None else "unknown to Slurm"
        for name in granted.names
        if name not in states or states[name].lost
    }
    there = tuple(name for name in granted.names if name not in bad)
    if len(there) >= wanted:
        return there[:wanted]
    told = ", ".join(f"{name} ({why})" for name, why in bad.items())
    raise ClusterError(
        f"slurm: {count(wanted)} asked for, and allocation {granted.job_id} has {len(there)} that "
        f"are up: {', '.join(there) or 'none'}; missing: {told}"
    )


def too_few_gpus(
    job: JobState | None,
    states: Iterable[NodeState],
    per_node: int,
    others: Iterable[NodeState] = (),
) -> str | None:
    """What is missing where Slurm accounts for GPUs and gave fewer than the spec promises a node.

    states: of the nodes that the run uses; others: of the rest of the allocation, where a node may
    have fewer, or none.

    None where nothing is, and where nobody counted: GPUs are in no job's resources unless
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
        f"slurm: allocation {job.job_id} has {held} GPUs on {count(len(job.nodes))}, and the "
        f"spec promises {per_node} a node; ask for them with --gpus-per-node={per_node}"
    )


def not_back(
    job: JobState | None, job_id: int, own: str, name: str, states: Iterable[NodeState]
) -> str | None:
    """What Slurm has against a node of the allocation that was switched on; None: nothing.

    own, name: what it calls itself, and what Slurm calls it. One that is drained has its allocation
    still. Raises ClusterError where it is never given back.
    """
    if job is not None and job.runs and name not in job.nodes:
        raise ClusterError(
            f"{own} was down for so long that Slurm took it out of allocation {job_id} "
            "(SlurmdTimeout); it stays out until another one is given"
        )
    return next((f"Slurm says {state.text}" for state in states if not state.up), None)


def lost(
    job: JobState | None,
    job_id: int,
    states: Mapping[str, NodeState],
    names: Mapping[str, str],
) -> dict[str, str]:
    """Which nodes are gone, by their own names, and why, from what Slurm says of job and nodes.

    names: Slurm's names by the nodes' own.
    """
    if job is None or job.state == "COMPLETING" or (job.known and not job.runs):
        how = "it is unknown to Slurm" if job is None else job.text
        return dict.fromkeys(names, f"allocation {job_id} ended: {how}")
    found = {}
    for own, name in names.items():
        state = states.get(name)
        if state is not None and state.lost:
            found[own] = f"Slurm says {state.text}"
        elif job.runs and name not in job.nodes:
            found[own] = f"Slurm took it out of allocation {job_id}"
    return found
