"""Torchrun jobs that are submitted to Slurm and requeued by it.

`SubmittedJob` has the interface of `RunningJob`. `sbatch` submits, `queued` watches the queue,
`files` is the job's directory, and `on_node` runs inside the job. A `Cleanup` process cancels
the job when the controller is gone.
"""
