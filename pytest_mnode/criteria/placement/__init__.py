"""Judges whether ranks run, allocate memory and send near their accelerators. Pure.

`rank_placement` describes a rank, and `machine.Machine` its node. `binding` judges CPUs and cores,
`memory` and `nics` the rest: each returns one measurement per rank, and
`rank_placement.over_ranks` merges them. A placement that is not known is inconclusive.
"""
