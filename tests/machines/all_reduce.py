"""An all-reduce by MPI between two readings of NICs: `mpirun … python all_reduce.py BYTES CALLS`.

Runs in guests, where Debian's mpi4py is. The facts of each rank are printed in one line.
"""

from __future__ import annotations

import array
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pytest_mnode.criteria.transport.evidence import (
    PARTS,
    Evidence,
    NodeTraffic,
    RankTransport,
    rank_now,
)
from pytest_mnode.machine.encoding import decode, encode
from pytest_mnode.machine.model import Machine
from pytest_mnode.rank.world import World


@dataclass(frozen=True)
class Facts:
    """Facts of a rank, which is alone on its node. wrong: number of wrong values of the sum."""

    rank: RankTransport
    node: NodeTraffic
    wrong: int


def evidence_of(lines: Iterable[str], size_bytes: int, calls: int) -> Evidence:
    """Evidence from the output of all ranks; all their sums must be correct."""
    facts = sorted((decode(Facts, line) for line in lines), key=lambda one: one.rank.rank)
    assert [one.wrong for one in facts] == [0] * len(facts)
    return Evidence(
        backend="mpi",
        size_bytes=size_bytes,
        calls=calls,
        nodes=tuple(one.node for one in facts),
        ranks=tuple(one.rank for one in facts),
    )


def main(size_bytes: int, calls: int) -> None:
    from mpi4py import MPI  # in guests only

    ranks = MPI.COMM_WORLD
    names = tuple(ranks.allgather(os.uname().nodename))
    world = World(ranks.rank, ranks.size, 0, 1, names[ranks.rank], names)
    values = array.array("f", [ranks.rank + 1.0]) * (size_bytes // 4)
    sums = array.array("f", [0.0]) * len(values)
    ranks.Allreduce(values, sums)  # the first call connects
    ranks.Barrier()
    before = Machine.read(parts=PARTS)
    ranks.Barrier()
    for _ in range(calls):
        ranks.Allreduce(values, sums)
    ranks.Barrier()
    node = NodeTraffic.between(world.node, before, Machine.read(parts=PARTS))
    wrong = len(sums) - sums.count(world.size * (world.size + 1) / 2)
    facts = Facts(rank_now(world, "mpi", os.environ, Path("/")), node, wrong)
    # One rank prints for all: mpirun passes on what it read, and longer lines of two would mix.
    for line in ranks.gather(encode(facts)) or ():
        print(line)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
