"""Times and failure tables of pytest-mnode and its peers, measured on this machine.

`python -m benchmarks` prints the times, `python -m benchmarks.comparison` runs one fault after
another with every peer and writes docs/comparison.md, `python -m benchmarks.wall_clock` writes its
last section. The measuring code lives here; the programs that the peers run live in
`benchmarks.programs`. A peer that is not installed is reported: torch's own test cases need
`expecttest`, pytest-mpi needs `pytest-mpi`, `mpi4py` and an `mpirun`.
"""
