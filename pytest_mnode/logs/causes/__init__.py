"""Why a rank or a job died, by what it printed: NCCL, torch, gloo, UCX, MPI, CUDA, schedulers.

`table` holds all causes in the order of their weight; `causes` finds them in any text.
"""

from pytest_mnode.logs.causes.find import Cause, causes, first_cause, is_peer_lost
from pytest_mnode.logs.causes.programs import ENDINGS

__all__ = ["ENDINGS", "Cause", "causes", "first_cause", "is_peer_lost"]
