"""A training job that is killed, watched as it comes back, and compared with one that was not.

The reference job (`pytest_mnode.reference_job`) runs under torchrun, or in warm ranks, and records
what it does. `experiments`, `resharding`, `kill_run`, `warm_runs` and `run_files` work from the
controller; what `warm_runs` starts in ranks alone imports torch. `history`, `plan`, `judging`,
`resuming` and `comparing` are pure: from records to measurements.
"""
