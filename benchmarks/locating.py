"""What locating costs on simulated clusters; `python -m benchmarks.locating` writes its page.

Times are not simulated: what is counted are tests and rounds, and who was missed or wrongly named.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import table
from benchmarks.simulated import KINDS, Fabric, Noise, before_all_pairs, locate, random_faults

PAGE = Path(__file__).parents[1] / "docs" / "locating.md"
NODES = (16, 32, 64, 128, 232, 512, 1024)
FAULTS = (0, 1, 2, 3, 4, 5)
OF_NODES = tuple(kind for kind in KINDS if "path" not in kind)
RAILS = 2
LEAF = 16


@dataclass(frozen=True, slots=True)
class Cost:
    """Of many cases: tests and rounds by case, and how many cases went wrong."""

    tests: tuple[int, ...]
    rounds: tuple[int, ...]
    missed: int
    accused: int

    @property
    def cell(self) -> str:
        """Median and most tests, and rounds."""
        return (
            f"{np.median(self.tests):.0f} / {max(self.tests)} in "
            f"{np.median(self.rounds):.0f} / {max(self.rounds)}"
        )


def cost(
    nodes: int, faults: int, cases: int, kinds: Sequence[str], noise: Noise, *, anywhere: bool
) -> Cost:
    """Search random clusters; anywhere: paths are between any two nodes, and all pairs tried."""
    found = []
    for seed in range(cases):
        wrong = random_faults(nodes, RAILS, faults, kinds, seed, on_ring=not anywhere)
        fabric = Fabric(nodes, RAILS, wrong, noise, seed)
        found.append(locate(fabric, None if anywhere else before_all_pairs))
    return Cost(
        tuple(case.tests for case in found),
        tuple(case.rounds for case in found),
        sum(bool(case.missed) for case in found),
        sum(bool(case.wrong) for case in found),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.locating", description=__doc__)
    parser.add_argument(
        "--cases", type=int, default=300, help="a cell at 232 nodes; fewer elsewhere"
    )
    options = parser.parse_args()
    PAGE.write_text(_page(options.cases))
    print(f"written: {PAGE}")


def _grid(kinds: Sequence[str], cases: int, anywhere: bool, sizes: Iterable[int]) -> str:
    rows = []
    for nodes in sizes:
        costs = [
            cost(nodes, faults, _cases(nodes, cases, anywhere), kinds, Noise(), anywhere=anywhere)
            for faults in FAULTS
        ]
        missed, accused = sum(c.missed for c in costs), sum(c.accused for c in costs)
        total = sum(len(c.tests) for c in costs)
        rows.append((str(nodes), *(c.cell for c in costs), f"{missed} and {accused} of {total}"))
        print(*rows[-1], sep=" | ", flush=True)
    head = (
        "nodes",
        *(f"{faults} fault{'s' * (faults != 1)}" for faults in FAULTS),
        "missed, wrongly accused",
    )
    return table.markdown(head, rows)


def _cases(nodes: int, cases: int, anywhere: bool) -> int:
    if anywhere:
        return max(1, cases // (100 if nodes > 128 else 20))
    return cases if nodes == 232 else max(1, cases // (5 if nodes < 232 else 50))


def _page(cases: int) -> str:
    nodes_only = _grid(OF_NODES, cases, False, NODES)
    all_kinds = _grid(KINDS, cases, False, NODES)
    anywhere = _grid(KINDS, cases, True, [n for n in NODES if n <= 232])
    spread = cost(232, 5, max(1, cases // 10), KINDS, Noise(leaf=LEAF), anywhere=False)
    noise = Noise()
    return f"""# Who slows the fabric

When a collective falls short of its promise, pairs of nodes send to each other until it is known
who is slow: a node, one direction of it (tx or rx), one of its NICs (a rail), the path between two
nodes, or the fabric as a whole. It takes at most `--mnode-locate-budget` seconds (20), prints a
line a round, and says what it had no time for.

## Every path

A collective sends along a ring, so it does not notice a slow path between two nodes that are not
neighbours in it. The fabric criterion therefore measures every ordered pair of nodes by itself, up
to 16 nodes (on four nodes of the rack in under a second), within the same budget. Of more nodes it
measures neighbours and suspects; `--mnode-locate` makes it measure every path there too. A slow
path fails with its name and direction, `the path node1→node3 (95 Mbit/s)`. The certificate says how
many paths were measured, and how many were not and why: `240 of 240 ordered paths measured`.

A rank's path must carry `at_least_fraction` (less `tolerance_fraction`) of `send_recv_busbw` × the
line rate of all NICs that the rank uses. Where only other collectives are promised, the first of
them gives the fraction, and paths that are all slow alike are not a fault: one pair may not fill
the line by itself.

Receivers also compare what arrives with what was sent: a path that changes payloads past checksums
fails, and where all such paths have a node in common, the node is named.

The limit of each test follows from the spec: 30 s for start-up (0.1 s more per rank), the budget
of locating, and ten times what the sweep takes at the promised rate; about 80 to 120 s on four
nodes of the rack. After the first hang the rest of the criterion is not tried.

## How

1. **Rounds of disjoint pairs.** Up to 16 nodes every pair is measured, by the circle method: n−1
   turns of n/2 pairs at the same time. Each direction is a round of its own, and all NICs of a pair
   send at once, each from the rank beside it. Beyond 16 nodes, neighbours in the ring of all nodes
   are measured, in groups of √n; members of slow groups that no reading clears are halved again and
   again, in all groups at the same time, and at last tried with a healthy partner each.
2. **The best counts.** A link's rate is its best reading, and a node's its best link, since
   whatever else goes on makes a link look slow and never fast. Slow is what is below the spec's
   bound *and* below 0.8 of what the fast links do.
3. **Confirmed alone.** Disjoint pairs may still share something, and a slow neighbour may slow
   others. A node is named when it is slow with two healthy partners, each tried while nothing else
   is sent; a path when it is slow alone, time and again, and its two ends are fast alone with
   others. Of each such trial the better of two readings counts. All else is *suspected, not
   confirmed*, and printed as that.
   Before anybody is named, suspects and a fast link are tried three times more, in turn. If the
   same pair, alone, falls below 0.6 of its best reading in more than one reading of ten, pairs do
   not keep a rate (other programs take the cores, for example): the answer is inconclusive and
   names nobody.
4. **Without each node.** Where every pair is fast, a node may be slow only in company, as with tiny
   TCP buffers. With 3 to 16 nodes, all_reduce is then measured without each node in turn. The node
   whose absence alone restores the rate is named when two such trials agree on it, and the best
   readings of all trials as well. A trial may be disturbed and name nobody, so that up to five are
   made, within the budget of the search, while nobody is named and all nodes miss the rate.
5. **All other pairs.** With what time is left, clusters of more than 16 nodes go through the pairs
   that were not tried, by the circle method again.

## What it cannot tell

- Of two nodes, which one is slow: their path is named. Nor where no two nodes are fast with each
  other: that is the fabric as a whole.
- A slow path between nodes that are no neighbours in the ring shows only when that pair is tried;
  see the third table for what that takes.
- A node that is slower than its peers by less than a fifth.
- Why a link gave no reading at all: it is named, and the answer stays open.

## What it costs

Written by `python -m benchmarks.locating` on {time.strftime("%Y-%m-%d", time.gmtime())}, from
simulated clusters with {RAILS} rails: readings spread by {noise.spread:.0%} (standard deviation),
{noise.disturbed:.0%} of them slowed by something else to 0.3 to 0.9, faults
that leave 5 to 65% of the healthy rate. 232 nodes stand for {cases} random clusters a cell, others
for fewer.

A cell is *tests, median / most, in rounds, median / most*. A test is one group, or one pair,
measured once in both directions; that is what schemes that bisect groups count, one of which is
published with about 55 tests for 232 nodes and 5 faults. A round is what runs at the same time, and
is what takes time: about 0.1 s on a healthy link.

Faults of nodes, directions and rails:

{nodes_only}

With slow paths among them, one way or both, between neighbours in the ring:

{all_kinds}

With slow paths between any two nodes, until all pairs were tried:

{anywhere}

Where a slow flow slows all others of its {LEAF} neighbours, as congestion in lossless fabrics can,
232 nodes with 5 faults took {spread.cell} rounds, with {spread.missed} missed
and {spread.accused} wrongly accused in {len(spread.tests)} cases: more than that scheme's 55 tests,
since neighbours have to be cleared alone.
"""


if __name__ == "__main__":
    main()
