"""Kills a training job, watches it come back, and compares it with a job that was not killed.

The reference job (`pytest_mnode.reference_job`) runs under torchrun, or in warm ranks, and records
what it does. `experiments`, `kill_run`, `warm_runs` and `run_files` run in the controller; only the
functions that `warm_runs` starts in ranks import torch. `history`, `plan`, `judging` and
`comparing` are pure: they turn records into measurements.
"""
