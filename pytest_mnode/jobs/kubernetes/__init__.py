"""Torchrun jobs that are Jobs of Kubernetes, with pods of their own beside those of the run.

`PodJob` has the interface of `RunningJob`, and its decisions. Each start is an Indexed Job
(`manifest`), which belongs to the run's object and goes with it. `job_pods` watches its pods, reads
what they print, and runs commands in them; `in_pod` is the main process of each.
"""
