"""Output of Slurm's commands as values (jobs, nodes, host lists), and running these commands.

The parsers are pure. `launcher` starts commands in an allocation; submitting jobs is left to
callers.
"""

from pytest_mnode.launchers.hosts import compress, expand
from pytest_mnode.launchers.slurm.commands import COMMAND_LIMIT_S, Slurm, SlurmError
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
