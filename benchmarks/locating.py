"""Cost of locating on simulated clusters; `python -m benchmarks.locating` writes it to its page.

Times are not simulated: it counts tests, rounds, missed faults and wrongly named culprits.
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
HEADING = "## What it costs"
NODES = (16, 32, 64, 128, 232, 512, 1024)
FAULTS = (0, 1, 2, 3, 4, 5)
OF_NODES = tuple(kind for kind in KINDS if "path" not in kind)
RAILS = 2
LEAF = 16


@dataclass(frozen=True, slots=True)
class Cost:
    """Tests and rounds by case, and the numbers of cases with missed faults or wrong culprits."""

    tests: tuple[int, ...]
    rounds: tuple[int, ...]
    missed: int
    accused: int

    @property
    def cell(self) -> str:
        """Median and maximum of tests, and of rounds."""
        return (
            f"{np.median(self.tests):.0f} / {max(self.tests)} in "
            f"{np.median(self.rounds):.0f} / {max(self.rounds)}"
        )


def cost(
    nodes: int, faults: int, cases: int, kinds: Sequence[str], noise: Noise, *, anywhere: bool
) -> Cost:
    """Search random clusters. anywhere: paths are between any nodes, and all pairs are tried."""
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
    text, _, _ = PAGE.read_text().partition(HEADING)
    PAGE.write_text(text + _costs(options.cases))
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


def _costs(cases: int) -> str:
    """The last section of the page, with its heading."""
    nodes_only = _grid(OF_NODES, cases, False, NODES)
    all_kinds = _grid(KINDS, cases, False, NODES)
    anywhere = _grid(KINDS, cases, True, [n for n in NODES if n <= 232])
    spread = cost(232, 5, max(1, cases // 10), KINDS, Noise(leaf=LEAF), anywhere=False)
    noise = Noise()
    return f"""{HEADING}

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
