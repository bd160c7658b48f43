"""Measuring: collectives over sizes, pairs of nodes one at a time, what the links carried.

Runs in ranks, over the default process group, and every function is called by all of them. What is
returned is agreed: the same numbers on every rank, so that all take the same branch. Nothing here
judges; bounds come from the spec and verdicts from `measure`.
"""
