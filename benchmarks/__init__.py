"""Times and failure tables of pytest-mnode, side by side with its peers, on the machine at hand.

`python -m benchmarks` prints the times, `python -m benchmarks.comparison` runs one fault after
another through every peer and writes docs/comparison.md, `python -m benchmarks.wall_clock` its last
section. What is measured lives here; the programs that the peers run live in `benchmarks.programs`.
A peer that is not installed is named: torch's own test cases need `expecttest`, pytest-mpi
needs `pytest-mpi`, `mpi4py` and an `mpirun`.
"""
