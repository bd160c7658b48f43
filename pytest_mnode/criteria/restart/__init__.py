"""A training job that is killed: struck, watched as it comes back, and compared with one that was
never killed.

The reference job (`pytest_mnode.reference_job`) runs under torchrun, or in warm ranks, and writes
down what it does. `striking` and `watching` do and see things on nodes, from the controller;
`warm` is what runs in ranks, and the only module that imports torch. What was seen becomes values
(`lives`, `evidence`), and `judging` says of them what is wrong, without a process or a clock.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_mnode.criteria.restart.corrupting import judged_with_a_damaged_checkpoint
    from pytest_mnode.criteria.restart.counting import judged_checkpoints
    from pytest_mnode.criteria.restart.kills import judged_before, judged_kill
    from pytest_mnode.criteria.restart.resharding import judged_on_other_sizes

__all__ = [
    "judged_before",
    "judged_checkpoints",
    "judged_kill",
    "judged_on_other_sizes",
    "judged_with_a_damaged_checkpoint",
]

_HOME = {
    "judged_before": "kills",
    "judged_checkpoints": "counting",
    "judged_kill": "kills",
    "judged_on_other_sizes": "resharding",
    "judged_with_a_damaged_checkpoint": "corrupting",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
