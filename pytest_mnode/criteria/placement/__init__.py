"""Judges whether ranks run, allocate and send beside their accelerators. Pure.

`rank_placement` is what is known of a rank; the machine is `machine.Machine`. `binding` judges CPUs
and cores, `memory` and `nics` the rest: each returns one measurement per rank, and
`rank_placement.over_ranks` makes one of all. What is not known is inconclusive.
"""
