"""The reference job: a small transformer trained as a researcher would train it.

torchrun starts `python -m pytest_mnode.reference_job CONFIG.json`; `Trainer` does the same in ranks
that exist already. It trains, saves, resumes and records what it did; it judges nothing. Importing
the package, its config and its records does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pytest_mnode.reference_job.config import JobConfig
from pytest_mnode.reference_job.records import (
    CheckpointRecord,
    EndRecord,
    Record,
    StartRecord,
    StepRecord,
    UnreadableRecord,
    read_records,
)

if TYPE_CHECKING:
    from pytest_mnode.reference_job.trainer import Trainer

EXIT_PREEMPTED = 75
"""Exit status of a run that was asked to stop and saved: EX_TEMPFAIL, "try again later"."""

__all__ = [
    "EXIT_PREEMPTED",
    "CheckpointRecord",
    "EndRecord",
    "JobConfig",
    "Record",
    "StartRecord",
    "StepRecord",
    "Trainer",
    "UnreadableRecord",
    "read_records",
]


def __getattr__(name: str) -> Any:
    if name == "Trainer":
        return import_module(f"{__name__}.trainer").Trainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
