"""What Slurm's own commands say, as values: jobs, nodes, lists of hosts; and how they are run.

Readers are pure. Launching commands in an allocation is `cluster.slurm`'s; submitting is left to
those who have something to submit.
"""

from pytest_mnode.launchers.hosts import compress, expand
from pytest_mnode.launchers.slurm.commands import (
    COMMAND_LIMIT_S,
    Slurm,
    SlurmError,
)
from pytest_mnode.launchers.slurm.jobs import JobState, jobs_from_json, jobs_from_text
from pytest_mnode.launchers.slurm.nodes import NodeState, nodes_from_text, shortage

__all__ = [
    "COMMAND_LIMIT_S",
    "JobState",
    "NodeState",
    "Slurm",
    "SlurmError",
    "compress",
    "expand",
    "jobs_from_json",
    "jobs_from_text",
    "nodes_from_text",
    "shortage",
]
