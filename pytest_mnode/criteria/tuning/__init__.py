"""Measured advice: experiments that try settings in turns on this cluster, and what they gained.

`experiment` says what an experiment is, `catalogue` has all of them, `running` runs one from the
controller by functions in ranks (`in_ranks`), and `judging` is pure.
"""
