"""What was measured between nodes so far, and which of it is slow. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from pytest_mnode.measuring.locating.rounds import Reading

STANDS_OUT = 0.8
"""Slow is what is below the bound, and below this part of what healthy peers reach."""
_FURTHER = 0.6
"""Of what a slow node reaches with others: below it, one of its paths is slow by itself. What was
queued while a receiver waited for a core makes a reading of a slow link up to a third too high."""
_ENOUGH_FOR_SECOND = 4
_DIP = 0.6
"""Of the best reading of a link alone: below it the link did not keep its rate."""
_FEW_DIPS = 0.1
"""Of all readings alone; one dip at least is forgiven on any machine."""


class Rates:
    """The best rate of every link, one direction of a pair on one rail, in Mbit/s.

    The best, because whatever else a machine does makes a link look slow, and never fast. Arrays
    are indexed by rail, then by sender and receiver, or by node; nan is not measured.
    slow_below_mbits_s: the spec's bound for the NICs of one rail together.
    """

    def __init__(self, nodes: int, rails: int, slow_below_mbits_s: float) -> None:
        self.nodes = nodes
        self.rails = rails
        self.slow_below_mbits_s = slow_below_mbits_s
        self.best = np.full((rails, nodes, nodes), np.nan)
        self.best_alone = np.full((rails, nodes, nodes), np.nan)
        self.times_alone = np.zeros((rails, nodes, nodes), dtype=np.int32)
        self._alone: dict[tuple[int, int, int], list[float]] = {}
        self.in_vain = np.zeros((rails, nodes, nodes), dtype=np.bool_)
        """Which links were tried once at least with nothing measured."""
        self.wrong = np.zeros((nodes, nodes), dtype=np.bool_)
        """Which paths changed what was sent, once at least."""
        self.tx = np.full((rails, nodes), np.nan)
        """How fast each node sends to the partner that it sends to fastest."""
        self.rx = np.full((rails, nodes), np.nan)
        self._reference: NDArray[np.float64] | None = None
        self._threshold: NDArray[np.float64] | None = None

    def add(self, readings: Iterable[Reading]) -> None:
        """Readings that are not a number above 0 measured nothing, and count as not measured."""
        self._reference = self._threshold = None
        for reading in readings:
            rate, rail = reading.mbits_s, reading.rail
            link = rail, reading.sender, reading.receiver
            self.wrong[link[1:]] |= reading.wrong
            if not 0 < rate < np.inf:
                self.in_vain[link] = True
                continue
            _raise(self.best, link, rate)
            _raise(self.tx, (rail, reading.sender), rate)
            _raise(self.rx, (rail, reading.receiver), rate)
            if reading.alone:
                _raise(self.best_alone, link, rate)
                self.times_alone[link] += 1
                self._alone.setdefault(link, []).append(rate)

    @property
    def unsteady(self) -> tuple[float, float] | None:
        """Lowest and highest reading, alone, of the most unsteady link; None if links are steady.

        Slow hardware keeps its lower rate. Links whose rate falls now and then with nothing else on
        the fabric are slowed by something else, such as cores that other programs take.
        """
        dips = [
            (min(all_), max(all_))
            for all_ in self._alone.values()
            for one in all_
            if one < _DIP * max(all_)
        ]
        if len(dips) <= max(1.0, _FEW_DIPS * self.times_alone.sum()):
            return None
        return min(dips, key=lambda dip: dip[0] / dip[1])

    @property
    def silent(self) -> NDArray[np.bool_]:
        """Which links were tried, and gave no reading at any time."""
        silent: NDArray[np.bool_] = self.in_vain & ~np.isfinite(self.best)
        return silent

    @property
    def reference(self) -> NDArray[np.float64]:
        """By rail: the median of the links that are about as fast as the fastest.

        Not the median of all: most may be slow. Not the fastest itself: one reading may be wrong.
        nan where nothing was measured.
        """
        if self._reference is None:
            self._reference = np.array([_typical_of_the_fast(self.best[r]) for r in self.each_rail])
        return self._reference

    @property
    def each_rail(self) -> range:
        return range(self.rails)

    @property
    def threshold(self) -> NDArray[np.float64]:
        """By rail: below it a link is slow."""
        if self._threshold is None:
            self._threshold = np.fmin(self.slow_below_mbits_s, STANDS_OUT * self.reference)
        return self._threshold

    @property
    def slow_tx(self) -> NDArray[np.bool_]:
        """By rail and node: whether it sends slowly to everybody it was tried with."""
        return self.tx < self.threshold[:, None]

    @property
    def slow_rx(self) -> NDArray[np.bool_]:
        """By rail and node: whether it receives slowly from everybody it was tried with."""
        return self.rx < self.threshold[:, None]

    @property
    def slow_nodes(self) -> list[int]:
        """Nodes that are slow in a direction on a rail."""
        return [int(i) for i in np.flatnonzero((self.slow_tx | self.slow_rx).any(axis=0))]

    @property
    def slow_links(self) -> list[tuple[int, int, int]]:
        """(rail, sender, receiver) of slow links whose ends are fast or much faster with others."""
        rail, a, b = np.nonzero(self.best < self.threshold[:, None, None])
        ends = np.fmin(self.tx[rail, a], self.rx[rail, b])
        slower = (ends >= self.threshold[rail]) | (self.best[rail, a, b] < _FURTHER * ends)
        links = zip(rail[slower], a[slower], b[slower], strict=True)
        return [(int(rail), int(a), int(b)) for rail, a, b in links]

    @property
    def too_slow_rails(self) -> tuple[int, ...]:
        """Rails on which even the fast links are below the bound."""
        return tuple(r for r in self.each_rail if self.reference[r] < self.slow_below_mbits_s)

    @property
    def paths_measured(self) -> int:
        """Ordered pairs of nodes that were measured on every rail."""
        return int(np.isfinite(self.best).all(axis=0).sum())

    def partners(self, node: int, rails: Sequence[int], sends: bool, times_alone: int) -> list[int]:
        """Whom a node was tried with in one direction on all of `rails`, who are fast themselves.

        sends: whether the node was the sender. times_alone: at least so often with nothing else
        sent meanwhile.
        """
        chosen = list(rails)
        tried = np.isfinite(self.best[chosen]) & (self.times_alone[chosen] >= times_alone)
        with_whom = (tried[:, node, :] if sends else tried[:, :, node]).all(axis=0)
        return np.flatnonzero(with_whom & self.fast(rails, sends=not sends)).tolist()

    def fast(self, rails: Sequence[int], *, sends: bool) -> NDArray[np.bool_]:
        """By node: whether it was measured, and is fast in the one direction on all of `rails`."""
        chosen = list(rails)
        score = (self.tx if sends else self.rx)[chosen]
        enough: NDArray[np.bool_] = np.all(score >= self.threshold[chosen, None], axis=0)
        return enough


def _raise(table: NDArray[np.float64], index: tuple[int, ...], rate: float) -> None:
    if not table[index] >= rate:  # nan is not
        table[index] = rate


def _typical_of_the_fast(rates: NDArray[np.float64]) -> float:
    measured = rates[np.isfinite(rates)]
    if not measured.size:
        return float("nan")
    # One reading too fast must not make all others slow.
    fastest = (
        measured.max() if measured.size < _ENOUGH_FOR_SECOND else np.partition(measured, -2)[-2]
    )
    return float(np.median(measured[measured >= STANDS_OUT * fastest]))
