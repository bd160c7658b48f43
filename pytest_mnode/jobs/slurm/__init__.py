"""Torchrun jobs that are submitted to Slurm, where it is the scheduler that starts them again.

What is asked of sbatch, what the queue says of a job from one look to the next, and whether a
submitted job could start at all are functions from values to values (`request`, `following`,
`room`). `lead` and `onnode` run inside the job: the first once, on its first node, the other on
each. `SubmittedJob` is what a test holds, with the same interface as `RunningJob`; `guard` takes
the job out of the queue when the controller is gone, however it went.
"""

from __future__ import annotations

from pytest_mnode.jobs.slurm.submitted import SubmittedJob

__all__ = ["SubmittedJob"]
