"""What the peers run: one trivial body and one set of faults, in the shape each peer wants.

Each file is a program of its own; MNODE_BENCH_* variables give how many ranks, tests and which
fault; `bodies` holds what they all do, so that the peers differ in nothing else.
"""
