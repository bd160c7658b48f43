"""Causes of failed ranks and jobs in their output: NCCL, torch, gloo, UCX, MPI, CUDA, schedulers.

`known.toml` holds all known causes, weightiest first; `causes` finds them in any text.
"""

from pytest_mnode.logs.causes.find import Causes, causes, is_peer_lost
from pytest_mnode.logs.causes.table import Cause

ENDINGS = ("bus error", "crashed", "killed")
"""Causes that only show how a process ended, not why."""

__all__ = ["ENDINGS", "Cause", "Causes", "causes", "is_peer_lost"]
