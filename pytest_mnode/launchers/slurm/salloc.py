"""What is asked of salloc for a run, how long it is waited for, and when waiting is hopeless."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.slurm.jobs import JobState
from pytest_mnode.launchers.slurm.nodes import NodeState, shortage

QUEUE_LIMIT_S = 3600.0
"""How long a request may wait in the queue where --immediate in the arguments does not say."""
_IMMEDIATE = re.compile(r"(?:-I|--immediate=)(\d+)")


def salloc(name: str, nodes: int, arguments: Sequence[str], gpus: Sequence[str] = ()) -> list[str]:
    """The command that asks for nodes; gpus: an option of `gpus_option`.

    Whole nodes, or what is measured would be somebody else's doing too; and kept when one of them
    fails, for it is the others that say what became of it. What the user says comes last and wins.
    """
    refused = [word for word in arguments if word.startswith("--no-shell")]
    if refused:
        raise UsageError(f"--mnode-slurm-args: {refused[0]}: the allocation is held by a command")
    ours = [f"--job-name={name}", f"--nodes={nodes}", "--exclusive", "--no-kill", "--no-bell"]
    return ["salloc", *ours, *gpus, *arguments]


def gpus_option(
    per_node: int, arguments: Sequence[str], nodes: Iterable[NodeState] | None
) -> list[str]:
    """The option that asks for the spec's GPUs, unless the user speaks of GPUs.

    nodes: of the cluster; None where Slurm did not answer. A Slurm that knows of no GPUs would
    refuse: its whole nodes come with what is in them.
    """
    spoken = any(word.startswith(("--gpus", "--gres", "--tres", "-G")) for word in arguments)
    known = nodes is None or any(node.gpus is not None for node in nodes)
    return [f"--gpus-per-node={per_node}"] if per_node and known and not spoken else []


def queue_limit_s(arguments: Sequence[str]) -> float:
    """How long to wait for nodes: as --immediate says, and a little, for salloc itself obeys it."""
    for word in reversed(arguments):
        if match := _IMMEDIATE.fullmatch(word):
            return float(match[1]) + 10.0
    return QUEUE_LIMIT_S


def hopeless(job: JobState | None, nodes: Iterable[NodeState], wanted: int) -> str | None:
    """What is missing for a job that waits even if nobody else ran; None: nothing, or not known.

    A job in a reservation may wait for the reservation's nodes, whatever they are now.
    """
    if job is None or not job.waits or job.reservation is not None:
        return None
    # Where it may run in several partitions, their nodes are not added up.
    one = job.partition if job.partition and "," not in job.partition else None
    return shortage(nodes, wanted, one)
