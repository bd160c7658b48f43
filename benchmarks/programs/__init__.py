"""Programs that the peers run: one trivial body and one set of faults, in the form of each peer.

Each file is a program; MNODE_BENCH_* variables give the number of ranks, the number of tests and
the fault. `bodies` holds the code common to all, so that the peers differ in nothing else.
"""
