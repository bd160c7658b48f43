"""Output of Slurm's commands as values (jobs, nodes), and running these commands.

The parsers are pure. `launcher` starts commands in an allocation; submitting jobs is left to
callers.
"""

from pytest_mnode.launchers.slurm.commands import Slurm, SlurmError
from pytest_mnode.launchers.slurm.jobs import JobState
from pytest_mnode.launchers.slurm.nodes import NodeState

__all__ = ["JobState", "NodeState", "Slurm", "SlurmError"]
