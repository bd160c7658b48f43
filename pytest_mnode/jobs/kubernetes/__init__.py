"""Torchrun jobs that are Jobs of Kubernetes, with pods of their own beside those of the run.

`PodJob` has the interface of `RunningJob`, and its decisions. Each start is an Indexed Job
(`manifest`), owned by the run's object and deleted with it. `job_pods` watches its pods, reads
their output, and runs commands in them; `in_pod` is the main process of each.
"""
